//! Bucket boundaries. vLLM's and the semantic conventions' lists are interfaces: dashboards query single
//! `le` values, so a list never changes without its name.

/// Upper bounds of a histogram, `+Inf` apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Buckets {
    /// These.
    Fixed(&'static [f64]),
    /// 1, 2, 5, 10, 20, 50, … up to the longest sequence.
    OneTwoFive,
}

impl Buckets {
    /// The bounds for a model with this longest sequence.
    pub fn bounds(self, max_model_len: usize) -> Vec<f64> {
        match self {
            Buckets::Fixed(bounds) => bounds.to_vec(),
            Buckets::OneTwoFive => one_two_five(max_model_len as u64),
        }
    }
}

fn one_two_five(max: u64) -> Vec<f64> {
    let mut bounds = Vec::new();
    let mut decade = 1u64;
    'series: loop {
        for mantissa in [1, 2, 5] {
            match decade.checked_mul(mantissa) {
                Some(bound) if bound <= max => bounds.push(bound as f64),
                _ => break 'series,
            }
        }
        match decade.checked_mul(10) {
            Some(next) => decade = next,
            None => break,
        }
    }
    bounds
}

/// vLLM: time to first token, seconds.
pub(crate) const VLLM_FIRST_TOKEN: Buckets = Buckets::Fixed(&[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
]);

/// vLLM: latency between tokens and time per output token, seconds.
pub(crate) const VLLM_INTER_TOKEN: Buckets = Buckets::Fixed(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
]);

/// vLLM: whole requests and their phases, seconds.
pub(crate) const VLLM_REQUEST: Buckets = Buckets::Fixed(&[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
]);

/// vLLM: going to sleep and waking up, seconds.
pub(crate) const VLLM_SLEEP: Buckets =
    Buckets::Fixed(&[0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]);

/// vLLM: tokens of one engine step.
pub(crate) const VLLM_ITERATION_TOKENS: Buckets = Buckets::Fixed(&[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
]);

/// vLLM: the parameter `n`.
pub(crate) const VLLM_PARAMS_N: Buckets = Buckets::Fixed(&[1.0, 2.0, 5.0, 10.0, 20.0]);

/// vLLM: preemptions of one request.
pub(crate) const VLLM_PREEMPTIONS: Buckets = Buckets::Fixed(&[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0]);

/// vLLM: times of KV blocks, seconds.
pub(crate) const VLLM_RESIDENCY: Buckets = Buckets::Fixed(&[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1200.0, 1800.0,
]);

/// vLLM's bucket families, which `--custom-histogram-buckets` replaces.
pub(crate) const VLLM_FAMILIES: [(&str, Buckets); 8] = [
    ("request_latency", VLLM_REQUEST),
    ("time_to_first_token", VLLM_FIRST_TOKEN),
    ("inter_token_latency", VLLM_INTER_TOKEN),
    ("iteration_tokens", VLLM_ITERATION_TOKENS),
    ("request_params_n", VLLM_PARAMS_N),
    ("request_num_preemptions", VLLM_PREEMPTIONS),
    ("request_tokens", Buckets::OneTwoFive),
    ("kv_cache_residency", VLLM_RESIDENCY),
];

/// HTTP requests, all together, seconds.
pub(crate) const HTTP_FINE: Buckets = Buckets::Fixed(&[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
]);

/// HTTP requests by route, seconds.
pub(crate) const HTTP_COARSE: Buckets = Buckets::Fixed(&[0.1, 0.5, 1.0]);

/// Semantic conventions: `http.server.request.duration`, seconds.
pub(crate) const HTTP_SERVER: Buckets =
    Buckets::Fixed(&[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]);

/// limpid: the parts of one engine step, seconds.
pub(crate) const STEP_PARTS: Buckets = Buckets::Fixed(&[
    0.00001, 0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
]);

/// SGLang: tokens of a request.
pub(crate) const SGLANG_TOKENS: Buckets = Buckets::Fixed(&[
    100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0,
    9000.0, 10000.0, 12500.0, 15000.0, 17500.0, 20000.0, 22500.0, 25000.0, 27500.0, 30000.0, 35000.0,
    40000.0, 60000.0, 80000.0, 100000.0, 200000.0, 300000.0, 400000.0, 600000.0, 800000.0, 1000000.0,
    1100000.0,
]);

/// SGLang: time to first token, seconds.
pub(crate) const SGLANG_FIRST_TOKEN: Buckets = Buckets::Fixed(&[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
]);

/// SGLang: latency between tokens and time per output token, seconds.
pub(crate) const SGLANG_INTER_TOKEN: Buckets = Buckets::Fixed(&[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6,
    0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
]);

/// SGLang: whole requests, seconds.
pub(crate) const SGLANG_E2E: Buckets = Buckets::Fixed(&[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
    600.0, 1200.0, 1800.0, 2400.0,
]);

/// SGLang: time in the queue, seconds.
pub(crate) const SGLANG_QUEUE: Buckets = Buckets::Fixed(&[
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0,
    1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
]);

/// SGLang: stages of a request, seconds: 0.001 · 1.62ⁱ.
pub(crate) const SGLANG_STAGE: Buckets = Buckets::Fixed(&[
    0.001, 0.00162, 0.0026244, 0.00425153, 0.00688748, 0.0111577, 0.0180755, 0.0292823, 0.0474373, 0.0768485,
    0.124494, 0.201681, 0.326723, 0.529292, 0.857453, 1.38907, 2.2503, 3.64548, 5.90568, 9.56721, 15.4989,
    25.1082, 40.6753, 65.8939, 106.748, 172.932, 280.15, 453.843, 735.225, 1191.06,
]);

/// Time of one request inside the model, milliseconds; vLLM 0.33 no longer has a list of its own.
pub(crate) const MODEL_TIME_MILLISECONDS: Buckets = Buckets::Fixed(&[
    1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 20.0, 30.0, 50.0, 80.0, 100.0, 200.0, 300.0, 500.0, 800.0, 1000.0, 2000.0,
    3000.0, 5000.0, 8000.0, 10000.0, 30000.0, 60000.0,
]);

/// Semantic conventions: `gen_ai.server.request.duration`, seconds.
pub(crate) const GENAI_REQUEST: Buckets =
    Buckets::Fixed(&[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]);

/// Semantic conventions: `gen_ai.server.time_per_output_token`, seconds.
pub(crate) const GENAI_OUTPUT_TOKEN: Buckets =
    Buckets::Fixed(&[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]);

/// Semantic conventions: `gen_ai.server.time_to_first_token`, seconds.
pub(crate) const GENAI_FIRST_TOKEN: Buckets = Buckets::Fixed(&[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
]);

#[cfg(test)]
mod tests {
    use super::Buckets;

    #[test]
    fn token_buckets_end_at_the_longest_sequence() {
        assert_eq!(Buckets::OneTwoFive.bounds(8), [1.0, 2.0, 5.0]);
        assert_eq!(Buckets::OneTwoFive.bounds(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(Buckets::OneTwoFive.bounds(8192).last(), Some(&5000.0));
        assert!(Buckets::OneTwoFive.bounds(0).is_empty());
        assert!(Buckets::OneTwoFive.bounds(usize::MAX).len() < 64);
    }
}
