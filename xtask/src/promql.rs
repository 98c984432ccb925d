//! Which metrics a PromQL expression needs, and whether limpid serves them.
//!
//! Served is what the telemetry crate's catalogue declares, plus what the collector makes of limpid's spans.
//! Everything else that a query names has a reason here, or it is a slip: see [`availability`].

use std::collections::BTreeSet;

use limpid_telemetry::catalogue::{Kind, rows};

/// Whether there is data behind a metric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// limpid, or the collector beside it, has it.
    Served,
    /// limpid has not, for this reason.
    Lacking(&'static str),
    /// Nobody knows the name.
    Unknown,
}

/// What limpid does not serve of the names that dashboards for vLLM and SGLang query, by prefix. A name that is
/// served is none of these, and a prefix that no query needs fails a test.
pub const LACKING: &[(&str, &str)] = &[
    ("vllm:nixl_", "limpid has no KV connector"),
    ("vllm:kv_offload_", "limpid has no KV connector"),
    ("vllm:num_requests_kv_fetch_by_stage", "limpid has no KV connector"),
    ("vllm:spec_decode_", "limpid does not decode speculatively"),
    ("vllm:rl_weight_update_", "limpid's weights do not change"),
    ("sglang:spec_", "limpid does not decode speculatively"),
    ("sglang:encoder_cache_", "limpid takes text only"),
    ("sglang:estimated_", "limpid has these under vLLM's names"),
    ("sglang:grammar_", "limpid has no structured output"),
    ("sglang:num_grammar_", "limpid has no structured output"),
    ("sglang:num_so_requests_total", "limpid has no structured output"),
    ("sglang:kv_transfer_", "limpid does not disaggregate prefill and decode"),
    ("sglang:num_transfer_failed_reqs_total", "limpid does not disaggregate prefill and decode"),
    ("sglang:prefetched_tokens_total", "limpid's cache has no storage behind it"),
    ("sglang:backuped_tokens_total", "limpid's cache has no storage behind it"),
];

/// Names that the pipeline makes: span metrics, the collector's own counts, Prometheus' own series.
const PIPELINE: &[&str] = &["traces_span_metrics_", "otelcol_", "limpid:", "up", "ALERTS"];

/// Says whether there is data behind `metric`, a name as it is on samples (`_bucket` and `_total` included).
pub fn availability(metric: &str) -> Availability {
    let declared = rows().any(|row| match metric.strip_prefix(&row.exposed_name()) {
        Some("") => !matches!(row.kind, Kind::Histogram(_) | Kind::Summary),
        Some("_bucket") => matches!(row.kind, Kind::Histogram(_)),
        Some("_sum" | "_count") => matches!(row.kind, Kind::Histogram(_) | Kind::Summary),
        _ => false,
    });
    if declared || PIPELINE.iter().any(|prefix| metric.starts_with(prefix)) {
        return Availability::Served;
    }
    let reason = LACKING.iter().find(|(prefix, _)| metric.starts_with(prefix));
    reason.map_or(Availability::Unknown, |(_, reason)| Availability::Lacking(reason))
}

/// The first reason for which an expression returns nothing, if there is one.
///
/// # Errors
/// The name that nobody knows.
pub fn lacking(expression: &str) -> Result<Option<&'static str>, String> {
    let mut reason = None;
    for metric in metrics(expression) {
        match availability(&metric) {
            Availability::Served => {}
            Availability::Lacking(why) => reason = reason.or(Some(why)),
            Availability::Unknown => return Err(metric),
        }
    }
    Ok(reason)
}

/// The metrics that an expression reads.
pub fn metrics(expression: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let end =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        match first {
            // Label matchers, ranges and strings hold no metric.
            '{' => rest = behind(rest, '}'),
            '[' => rest = behind(rest, ']'),
            '"' => rest = behind(&rest[1..], '"'),
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let word = &rest[..end];
                rest = rest[end..].trim_start();
                match word {
                    "by" | "without" | "on" | "ignoring" => rest = behind(rest, ')'),
                    "group_left" | "group_right" if rest.starts_with("()") => rest = &rest[2..],
                    "and" | "or" | "unless" | "bool" | "offset" | "group_left" | "group_right" => {}
                    // A call or an aggregation, whose labels may stand before its argument.
                    _ if rest.starts_with('(') || rest.starts_with("by") || rest.starts_with("without") => {}
                    _ => {
                        found.insert(word.to_owned());
                    }
                }
            }
            // A number, with an exponent or a unit.
            '0'..='9' => rest = &rest[end..],
            _ => rest = &rest[first.len_utf8()..],
        }
    }
    found
}

/// What comes after the next `close`.
fn behind(text: &str, close: char) -> &str {
    text.split_once(close).map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_metrics_and_nothing_else() {
        let expressions = [
            ("sum(rate(vllm:a_total{job=~\"b\", c=\"d:e\"}[5m])) by (le, f) / 1e12", vec!["vllm:a_total"]),
            ("histogram_quantile(0.95, sum by (le) (rate(a_bucket[1m])))", vec!["a_bucket"]),
            ("a / ignoring(position) group_left sum(b)", vec!["a", "b"]),
            ("up == bool 0 or a and on (x) b offset 5m", vec!["a", "b", "up"]),
            ("avg(a) by (model_name)", vec!["a"]),
        ];
        for (expression, wanted) in expressions {
            let wanted: BTreeSet<String> = wanted.into_iter().map(str::to_owned).collect();
            assert_eq!(metrics(expression), wanted, "{expression}");
        }
    }

    #[test]
    fn a_slip_in_a_name_is_not_a_lack() {
        assert_eq!(availability("vllm:num_requests_running"), Availability::Served);
        assert_eq!(availability("vllm:time_to_first_token_seconds_bucket"), Availability::Served);
        assert_eq!(availability("vllm:time_to_first_token_seconds"), Availability::Unknown, "has no samples");
        assert_eq!(availability("vllm:num_request_running"), Availability::Unknown);
        assert!(matches!(availability("vllm:nixl_xfer_time_seconds_bucket"), Availability::Lacking(_)));
    }
}
