//! The two text formats. They differ in the name of a counter's family, in escaping HELP, in exemplars and in
//! the end mark; everything else is one code path, so that they cannot drift.

use std::fmt::Write as _;
use std::time::SystemTime;

use super::Format;
use super::family::{Family, FamilyKind, Series, SeriesValue};
use crate::exemplar::Exemplar;

pub(super) fn write(families: &[Family], format: Format) -> String {
    let mut out = String::with_capacity(64 << 10);
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
        SeriesValue::Number(value) => write_sample(out, name, "", &series.labels, None, *value, None),
        SeriesValue::Histogram { bounds, counts, count, sum, exemplars } => {
            let mut total = 0u64;
            let buckets = if bounds.is_empty() { &[] } else { counts.as_slice() };
            for (bucket, count) in buckets.iter().enumerate() {
                total += count;
                let bound = bounds.get(bucket).copied().unwrap_or(f64::INFINITY);
                let exemplar = exemplars.get(bucket).and_then(Option::as_ref);
                write_sample(out, name, "_bucket", &series.labels, Some(bound), total as f64, exemplar);
            }
            write_sample(out, name, "_sum", &series.labels, None, *sum, None);
            write_sample(out, name, "_count", &series.labels, None, *count as f64, None);
        }
    }
}

fn write_sample(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(String, String)],
    bound: Option<f64>,
    value: f64,
    exemplar: Option<&Exemplar>,
) {
    out.push_str(name);
    out.push_str(suffix);
    let mut separator = '{';
    for (name, value) in labels {
        out.push(separator);
        separator = ',';
        out.push_str(name);
        out.push_str("=\"");
        escape(out, value, true);
        out.push('"');
    }
    if let Some(bound) = bound {
        out.push(separator);
        separator = ',';
        out.push_str("le=\"");
        float(out, bound);
        out.push('"');
    }
    if separator == ',' {
        out.push('}');
    }
    out.push(' ');
    float(out, value);
    if let Some(exemplar) = exemplar {
        let time = exemplar.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let link = exemplar.link;
        // Writing to a String cannot fail.
        let _ = write!(out, " # {{trace_id=\"{}\",span_id=\"{}\"}} ", link.trace_id, link.span_id);
        float(out, exemplar.value);
        let _ = write!(out, " {:.3}", time.as_secs_f64());
    }
    out.push('\n');
}

/// `1.0`, never `1`, and `1e+06`, never `1000000.0`: `le` values are queried as text, so they are spelled as Go
/// and Python's client spell them, with an exponent below 1e-4 and from 1e6 on.
fn float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        let scientific = format!("{value:e}");
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let _ = match exponent {
            -4..6 => write!(out, "{value:?}"),
            6.. => write!(out, "{mantissa}e+{exponent:02}"),
            _ => write!(out, "{mantissa}e-{:02}", -exponent),
        };
    }
}

fn escape(out: &mut String, text: &str, quotes: bool) {
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
