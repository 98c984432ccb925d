//! The reference page, made from the catalogue.

use std::fmt::Write as _;

use super::{Buckets, HIDDEN, Kind, QUERIES, Row, Status, Values, rows};

/// `docs/reference/metrics.md`, whole.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Made from the catalogue in the code by `cargo xtask docs`; do not edit.\n\n\
         Names are those of `/metrics`; pushed streams of the `vllm` and `sglang` dialects have the same names\n\
         and no unit, the others keep their OpenTelemetry names and units, which are in brackets.\n\
         Every series of a closed label exists at 0 from the start, and no label value comes from a client.\n\
         Which dialects there are is chosen with `--metrics-dialects`; `vllm`, `genai` and `limpid` are the default.\n",
    );
    for (dialect, title) in [
        ("vllm", "vLLM's names"),
        ("genai", "The semantic conventions' names"),
        ("limpid", "limpid's own"),
        ("sglang", "SGLang's names"),
    ] {
        section(&mut page, dialect, title);
    }
    hidden(&mut page);
    buckets(&mut page);
    queries(&mut page);
    page
}

fn section(page: &mut String, dialect: &str, title: &str) {
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {title}\n\nDialect `{dialect}`.\n");
    page.push_str("\n| metric | type | labels | what it says | present with |\n|---|---|---|---|---|\n");
    for row in rows().filter(|row| row.dialect == dialect) {
        let stream = match row.renamed {
            Some(_) => String::new(),
            None => {
                format!(" [`{}`, {}]", row.instrument, if row.unit.is_empty() { "no unit" } else { row.unit })
            }
        };
        let description = match row.status {
            Status::Current => row.description.to_owned(),
            Status::Revived => format!("{} No longer exposed there.", row.description),
        };
        let _ = writeln!(
            page,
            "| `{}`{stream} | {} | {} | {description} | {} |",
            row.exposed_name(),
            kind(row),
            labels(row),
            row.condition.describe(),
        );
    }
}

fn kind(row: &Row) -> &'static str {
    match row.kind {
        Kind::Counter => "counter",
        Kind::Gauge | Kind::UpDownCounter => "gauge",
        Kind::Histogram(_) => "histogram",
        Kind::Summary => "summary",
    }
}

/// Names, with the values of those that have several. The settings of an info metric are only named.
fn labels(row: &Row) -> String {
    let label = |label: &super::Label| match label.values {
        Values::Closed(values) if values.len() > 1 => format!("`{}` ({})", label.name, values.join(", ")),
        Values::Rank => format!("`{}` (with several engines)", label.name),
        _ => format!("`{}`", label.name),
    };
    row.labels.iter().map(label).collect::<Vec<_>>().join(", ")
}

fn hidden(page: &mut String) {
    page.push_str(
        "\n## Hidden names\n\n\
         Names that vLLM gave up. `--show-hidden-metrics-for-version` shows those that the given version of vLLM\n\
         still exposed, with the values of what took their place. The versions are not checked against\n\
         vLLM's releases, as 0.33 does not say when it gave a name up; 0.7 shows all of them.\n\n\
         | old name | shown up to | now |\n|---|---|---|\n",
    );
    for hidden in HIDDEN {
        let now = rows().find(|row| row.instrument == hidden.instrument).map(Row::exposed_name);
        let (major, minor) = hidden.until;
        let _ = writeln!(page, "| `{}` | {major}.{minor} | `{}` |", hidden.name, now.unwrap_or_default());
    }
}

fn buckets(page: &mut String) {
    page.push_str(
        "\n## Buckets\n\n\
         Upper bounds, `+Inf` apart. `--custom-histogram-buckets` replaces those of vLLM's histograms by family,\n\
         on `/metrics` and on OTLP alike.\n\n\
         | metric | family | bounds |\n|---|---|---|\n",
    );
    for row in rows() {
        let Kind::Histogram(buckets) = row.kind else { continue };
        let family = super::buckets::VLLM_FAMILIES
            .iter()
            .find(|(_, of_family)| row.dialect == "vllm" && *of_family == buckets)
            .map(|(family, _)| format!("`{family}`"));
        let bounds = match buckets {
            Buckets::OneTwoFive => "1, 2, 5, 10, 20, 50 … up to the longest sequence".to_owned(),
            Buckets::Fixed(bounds) => bounds.iter().map(f64::to_string).collect::<Vec<_>>().join(", "),
        };
        let _ = writeln!(page, "| `{}` | {} | {bounds} |", row.exposed_name(), family.unwrap_or_default());
    }
}

fn queries(page: &mut String) {
    page.push_str(
        "\n## Queries\n\n\
         PromQL in the form that works on these names. `$__rate_interval` is Grafana's; elsewhere write a range\n\
         such as `5m`.\n",
    );
    for dialect in ["vllm", "sglang"] {
        let _ = write!(page, "\n| goal, `{dialect}` | query |\n|---|---|\n");
        for query in QUERIES.iter().filter(|query| query.dialect == dialect) {
            let _ = writeln!(page, "| {} | `{}` |", query.goal, query.expression.replace('|', "\\|"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::reference_page;
    use crate::catalogue::rows;

    #[test]
    fn the_page_has_every_metric_and_no_broken_table() {
        let page = reference_page();
        for row in rows() {
            assert!(page.contains(&format!("| `{}`", row.exposed_name())), "{}", row.exposed_name());
        }
        let mut columns = 0;
        for line in page.lines() {
            let found = line.replace("\\|", "").matches('|').count();
            assert!(found == 0 || columns == 0 || found == columns, "{line}");
            columns = found;
        }
    }
}
