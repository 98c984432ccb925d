//! The vLLM families that limpid promises: names, types, labels and buckets as vLLM 0.33 has them, written
//! down here a second time on purpose, so that a slip in the code's own catalogue shows.

/// One family.
pub(crate) struct Promised {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) buckets: Option<Buckets>,
}

/// A histogram's bounds.
#[derive(Clone, Copy)]
pub(crate) enum Buckets {
    /// These `le` values, as spelled.
    Spelled(&'static [&'static str]),
    /// 1, 2, 5, 10, 20, 50 … up to the longest sequence.
    OneTwoFive,
}

const FIRST_TOKEN: Buckets = Buckets::Spelled(&[
    "0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5",
    "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0",
]);
const INTER_TOKEN: Buckets = Buckets::Spelled(&[
    "0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5", "0.75", "1.0", "2.5", "5.0",
    "7.5", "10.0", "20.0", "40.0", "80.0",
]);
const REQUEST: Buckets = Buckets::Spelled(&[
    "0.3", "0.5", "0.8", "1.0", "1.5", "2.0", "2.5", "5.0", "10.0", "15.0", "20.0", "30.0", "40.0", "50.0",
    "60.0", "120.0", "240.0", "480.0", "960.0", "1920.0", "7680.0",
]);

const fn gauge(name: &'static str) -> Promised {
    Promised { name, kind: "gauge", buckets: None }
}

const fn counter(name: &'static str) -> Promised {
    Promised { name, kind: "counter", buckets: None }
}

const fn histogram(name: &'static str, buckets: Buckets) -> Promised {
    Promised { name, kind: "histogram", buckets: Some(buckets) }
}

/// Each has exactly the labels `model_name` and `engine`, [`SUCCESS`] also `finished_reason`.
pub(crate) const PROMISED: [Promised; 14] = [
    gauge("vllm:num_requests_running"),
    gauge("vllm:num_requests_waiting"),
    gauge("vllm:kv_cache_usage_perc"),
    counter("vllm:prompt_tokens_total"),
    counter("vllm:generation_tokens_total"),
    counter(SUCCESS),
    histogram("vllm:request_prompt_tokens", Buckets::OneTwoFive),
    histogram("vllm:request_generation_tokens", Buckets::OneTwoFive),
    histogram("vllm:time_to_first_token_seconds", FIRST_TOKEN),
    histogram("vllm:inter_token_latency_seconds", INTER_TOKEN),
    histogram("vllm:e2e_request_latency_seconds", REQUEST),
    histogram("vllm:request_queue_time_seconds", REQUEST),
    histogram("vllm:request_prefill_time_seconds", REQUEST),
    histogram("vllm:request_decode_time_seconds", REQUEST),
];

/// Ended requests by reason.
pub(crate) const SUCCESS: &str = "vllm:request_success_total";

/// The values of `finished_reason`.
pub(crate) const REASONS: [&str; 5] = ["stop", "length", "abort", "error", "repetition"];

impl Buckets {
    /// The `le` values for a model with this longest sequence, `+Inf` included.
    pub(crate) fn spelled(self, max_model_len: usize) -> Vec<String> {
        let mut bounds: Vec<String> = match self {
            Buckets::Spelled(bounds) => bounds.iter().map(|bound| (*bound).to_owned()).collect(),
            Buckets::OneTwoFive => (0..)
                .flat_map(|power| [1u64, 2, 5].map(|mantissa| mantissa * 10u64.pow(power)))
                .take_while(|bound| *bound <= max_model_len as u64)
                .map(|bound| format!("{bound}.0"))
                .collect(),
        };
        bounds.push("+Inf".to_owned());
        bounds
    }
}
