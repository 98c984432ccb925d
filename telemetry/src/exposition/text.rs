//! The two text formats. They differ in the name of a counter's family, in escaping HELP, in exemplars and in
//! the end mark; everything else is one code path, so that they cannot drift.

use std::fmt::Write as _;
use std::time::SystemTime;

use super::Format;
use super::family::{Family, FamilyKind, Series, SeriesValue};
use crate::exemplar::Exemplar;

pub(super) fn write(families: &[Family], format: Format) -> String {
    let mut out = String::with_capacity(256 << 10);
    for family in families {
        write_family(&mut out, family, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn write_family(out: &mut String, family: &Family, format: Format) {
    let name = match (format, family.kind) {
        (Format::OpenMetrics, FamilyKind::Counter) => {
            family.name.strip_suffix("_total").unwrap_or(&family.name)
        }
        _ => &family.name,
    };
    let kind = match family.kind {
        FamilyKind::Counter => "counter",
        FamilyKind::Gauge => "gauge",
        FamilyKind::Histogram => "histogram",
        FamilyKind::Summary => "summary",
    };
    out.push_str("# HELP ");
    out.push_str(name);
    out.push(' ');
    escape(out, &family.help, format == Format::OpenMetrics);
    out.push_str("\n# TYPE ");
    out.push_str(name);
    out.push(' ');
    out.push_str(kind);
    out.push('\n');
    for series in &family.series {
        write_series(out, &family.name, series);
    }
}

fn write_series(out: &mut String, name: &str, series: &Series) {
    match &series.value {
        SeriesValue::Number(value) => {
            write_sample(out, name, "", &series.labels, *value);
        }
        SeriesValue::Histogram { bounds, counts, count, sum, exemplars } => {
            // What all buckets begin with; there are many of them.
            let separator = if series.labels.is_empty() { "" } else { "," };
            let stem = format!("{name}_bucket{{{}{separator}le=\"", series.labels);
            let mut total = 0u64;
            let buckets = if bounds.is_empty() { &[] } else { counts.as_slice() };
            for (bucket, count) in buckets.iter().enumerate() {
                total += count;
                out.push_str(&stem);
                float(out, bounds.get(bucket).copied().unwrap_or(f64::INFINITY));
                out.push_str("\"} ");
                float(out, total as f64);
                if let Some(exemplar) = exemplars.get(bucket).and_then(Option::as_ref) {
                    write_exemplar(out, exemplar);
                }
                out.push('\n');
            }
            write_sample(out, name, "_sum", &series.labels, *sum);
            write_sample(out, name, "_count", &series.labels, *count as f64);
        }
    }
}

fn write_sample(out: &mut String, name: &str, suffix: &str, labels: &str, value: f64) {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() {
        out.push('{');
        out.push_str(labels);
        out.push('}');
    }
    out.push(' ');
    float(out, value);
    out.push('\n');
}

fn write_exemplar(out: &mut String, exemplar: &Exemplar) {
    let time = exemplar.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let link = exemplar.link;
    // Writing to a String cannot fail.
    let _ = write!(out, " # {{trace_id=\"{}\",span_id=\"{}\"}} ", link.trace_id, link.span_id);
    float(out, exemplar.value);
    let _ = write!(out, " {:.3}", time.as_secs_f64());
}

/// `name="value"` for each label, with commas between: what stands between a sample's braces.
pub(super) fn label_text<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (name, value) in labels {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(name);
        out.push_str("=\"");
        escape(&mut out, value, true);
        out.push('"');
    }
    out
}

/// `1.0`, never `1`, and `1e+06`, never `1000000.0`: `le` values are queried as text, so they are spelled as Go
/// and Python's client spell them, with an exponent below 1e-4 and from 1e6 on.
fn float(out: &mut String, value: f64) {
    let magnitude = value.abs();
    // Most values are counts, whose digits need no search for the shortest spelling.
    let _ = if magnitude < 1e6 && value.trunc() == value {
        write!(out, "{}.0", value as i64)
    } else if (1e-4..1e6).contains(&magnitude) {
        write!(out, "{value:?}")
    } else if value.is_nan() {
        write!(out, "NaN")
    } else if value.is_infinite() {
        write!(out, "{}Inf", if value > 0.0 { '+' } else { '-' })
    } else {
        let scientific = format!("{value:e}");
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        match exponent.strip_prefix('-') {
            Some(exponent) => write!(out, "{mantissa}e-{exponent:0>2}"),
            None => write!(out, "{mantissa}e+{exponent:0>2}"),
        }
    };
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    if !text.contains(['\\', '\n', '"']) {
        out.push_str(text);
        return;
    }
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests;
