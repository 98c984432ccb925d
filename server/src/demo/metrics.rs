//! The main metrics of a scrape in a few lines.
//!
//! Reads the Prometheus text format as far as it needs to: samples with their labels, no exemplars. Lines it
//! does not understand are skipped.

/// What is shown, in this order.
const COUNTS: [&str; 5] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
];

const FINISHED: &str = "vllm:request_success_total";

const HISTOGRAMS: [&str; 4] = [
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:e2e_request_latency_seconds",
];

/// Names and values of the main metrics that the scrape has.
pub(super) fn summary(scrape: &str) -> Vec<(&'static str, String)> {
    let samples: Vec<Sample<'_>> = scrape.lines().filter_map(Sample::parse).collect();
    let of = |name: &str| samples.iter().filter(move |sample| sample.name == name).collect::<Vec<_>>();
    let sum = |name: &str| {
        let found = of(name);
        (!found.is_empty()).then(|| found.iter().map(|sample| sample.value).sum::<f64>())
    };
    let mut rows = Vec::new();
    for name in COUNTS {
        rows.extend(sum(name).map(|value| (name, value.to_string())));
    }
    let reason = |sample: &&Sample<'_>| {
        let reason = sample.label("finished_reason")?;
        (sample.value > 0.0).then(|| format!("{reason} {}", sample.value))
    };
    let reasons: Vec<String> = of(FINISHED).iter().filter_map(reason).collect();
    if !reasons.is_empty() {
        rows.push((FINISHED, reasons.join(", ")));
    }
    for name in HISTOGRAMS {
        let (total, count) = (sum(&format!("{name}_sum")), sum(&format!("{name}_count")));
        if let (Some(total), Some(count)) = (total, count.filter(|count| *count > 0.0)) {
            rows.push((name, format!("mean {:.4} s of {count}", total / count)));
        }
    }
    rows
}

struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        if line.starts_with('#') {
            return None;
        }
        let name_end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(name_end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_at_checked(labels_end(rest)?)?,
            None => ("", rest),
        };
        let value = rest.trim_start_matches('}').split_whitespace().next()?.parse().ok()?;
        Some(Sample { name, labels, value })
    }

    /// Value of a label, without resolving escapes: the labels asked for have none.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some((key, after)) = rest.split_once("=\"") {
            let end = closing_quote(after)?;
            if key.trim_start_matches(',') == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
        None
    }
}

/// Where the labels end: at the first brace outside quotes.
fn labels_end(text: &str) -> Option<usize> {
    let mut start = 0;
    loop {
        let brace = start + text[start..].find('}')?;
        match text[start..].find('"').map(|quote| start + quote).filter(|quote| *quote < brace) {
            None => return Some(brace),
            Some(quote) => start = quote + 1 + closing_quote(&text[quote + 1..])? + 1,
        }
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_main_metrics_are_found_summed_and_averaged() {
        let scrape = r#"
# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} \"b\" "} 2.0
vllm:num_requests_running{engine="1",model_name="x"} 3.0
vllm:prompt_tokens_total 84 1700000000
vllm:request_success_total{engine="0",finished_reason="stop"} 3.0
vllm:request_success_total{engine="0",finished_reason="length"} 0.0
vllm:request_success_total{finished_reason="abort",engine="0"} 1.0
vllm:time_to_first_token_seconds_bucket{le="0.001"} 0.0
vllm:time_to_first_token_seconds_sum{engine="0"} 0.5
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
vllm:e2e_request_latency_seconds_sum 0
vllm:e2e_request_latency_seconds_count 0
other_total 5
"#;
        let expected = [
            ("vllm:num_requests_running", "5"),
            ("vllm:prompt_tokens_total", "84"),
            ("vllm:request_success_total", "stop 3, abort 1"),
            ("vllm:time_to_first_token_seconds", "mean 0.1250 s of 4"),
        ];
        assert_eq!(summary(scrape), expected.map(|(name, value)| (name, value.to_owned())));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(vllm:request_success_total)?[{}a-z=\",\\\\ 0-9.\n]{0,80}") {
            summary(&text);
        }
    }
}
