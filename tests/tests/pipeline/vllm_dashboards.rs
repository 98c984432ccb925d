//! What vLLM's public Grafana dashboards ask: the metrics with the label filters of each file, as of vLLM 0.33.
//!
//! The files themselves are not copied; a query here is a metric in the form in which the file reads it.

/// `grafana.json` of the Prometheus and Grafana example.
const CLASSIC: &str = "{model_name=\"tested\"}";

/// The generated overview.
const OVERVIEW: &str = "{job=~\"$job\", model_name=~\"$model_name\", instance=~\"$instance\"}";

/// The generated dashboards on instances, the KV cache and speculation.
const ENGINE: &str =
    "{job=~\"$job\", model_name=~\"$model_name\", instance=~\"$instance\", engine=~\"$engine\"}";

/// HTTP and process metrics of the generated dashboards.
const INSTANCE: &str = "{job=~\"$job\", instance=~\"$instance\"}";

/// A form in which metrics are read, a dashboard's filter, and the metrics.
type Form = (&'static str, &'static str, Kind, &'static [&'static str]);

#[derive(Clone, Copy)]
enum Kind {
    /// As it is.
    Gauge,
    /// As a rate.
    Counter,
    /// Buckets for a percentile, and sum over count for a mean.
    Histogram,
    /// The rate of a histogram's sum.
    Sum,
}

const FORMS: &[Form] = &[
    (
        "classic",
        CLASSIC,
        Kind::Histogram,
        &[
            "vllm:e2e_request_latency_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:time_to_first_token_seconds",
            "vllm:request_prompt_tokens",
            "vllm:request_generation_tokens",
        ],
    ),
    (
        "classic",
        CLASSIC,
        Kind::Counter,
        &["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"],
    ),
    (
        "classic",
        CLASSIC,
        Kind::Gauge,
        &["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"],
    ),
    (
        "classic",
        CLASSIC,
        Kind::Sum,
        &[
            "vllm:request_queue_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
            "vllm:request_max_num_generation_tokens",
        ],
    ),
    (
        "overview",
        OVERVIEW,
        Kind::Histogram,
        &[
            "vllm:e2e_request_latency_seconds",
            "vllm:time_to_first_token_seconds",
            "vllm:request_time_per_output_token_seconds",
            "vllm:iteration_tokens_total",
        ],
    ),
    (
        "overview",
        OVERVIEW,
        Kind::Counter,
        &[
            "vllm:num_preemptions_total",
            "vllm:prefix_cache_hits_total",
            "vllm:prefix_cache_queries_total",
            "vllm:external_prefix_cache_hits_total",
            "vllm:external_prefix_cache_queries_total",
            "vllm:mm_cache_hits_total",
            "vllm:mm_cache_queries_total",
            "vllm:prompt_tokens_by_source_total",
        ],
    ),
    ("overview", INSTANCE, Kind::Counter, &["http_requests_total"]),
    ("overview", INSTANCE, Kind::Sum, &["http_request_duration_seconds"]),
    (
        "instances",
        INSTANCE,
        Kind::Gauge,
        &[
            "process_start_time_seconds",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "vllm:cache_config_info",
            "up",
        ],
    ),
    ("instances", INSTANCE, Kind::Counter, &["process_cpu_seconds_total"]),
    ("instances", ENGINE, Kind::Gauge, &["vllm:lora_requests_info", "vllm:engine_sleep_state"]),
    (
        "instances",
        ENGINE,
        Kind::Histogram,
        &["vllm:sleep_mode_operation_duration_seconds", "vllm:rl_weight_update_operation_duration_seconds"],
    ),
    (
        "instances",
        ENGINE,
        Kind::Counter,
        &[
            "vllm:estimated_flops_per_gpu_total",
            "vllm:estimated_read_bytes_per_gpu_total",
            "vllm:estimated_write_bytes_per_gpu_total",
        ],
    ),
    (
        "kv cache",
        ENGINE,
        Kind::Counter,
        &[
            "vllm:prompt_tokens_cached_total",
            "vllm:prompt_tokens_cached_by_source_total",
            "vllm:nixl_num_failed_transfers_total",
            "vllm:kv_offload_load_bytes_total",
        ],
    ),
    (
        "kv cache",
        ENGINE,
        Kind::Histogram,
        &[
            "vllm:request_prefill_kv_computed_tokens",
            "vllm:kv_block_lifetime_seconds",
            "vllm:kv_block_idle_before_evict_seconds",
            "vllm:kv_block_reuse_gap_seconds",
            "vllm:nixl_xfer_time_seconds",
        ],
    ),
    ("kv cache", ENGINE, Kind::Gauge, &["vllm:num_requests_kv_fetch_by_stage"]),
    (
        "speculation",
        ENGINE,
        Kind::Counter,
        &[
            "vllm:spec_decode_num_drafts_total",
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        ],
    ),
];

/// Buckets that the overview's tiles on objectives read one by one.
const TIME_TO_FIRST_TOKEN: [&str; 8] = ["0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "10.0"];
const TIME_PER_OUTPUT_TOKEN: [&str; 8] = ["0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5"];

/// Every query with the dashboard it is from.
pub(crate) fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    let mut add = |place: &str, query: String| queries.push((format!("vLLM, {place}"), query));
    for (place, filter, kind, metrics) in FORMS {
        for metric in *metrics {
            match kind {
                Kind::Gauge => add(place, format!("{metric}{filter}")),
                Kind::Counter => add(place, format!("rate({metric}{filter}[$__rate_interval])")),
                Kind::Sum => add(place, format!("rate({metric}_sum{filter}[$__rate_interval])")),
                Kind::Histogram => {
                    add(
                        place,
                        format!(
                            "histogram_quantile(0.99, sum by (le) (rate({metric}_bucket{filter}[$__rate_interval])))"
                        ),
                    );
                    add(
                        place,
                        format!(
                            "rate({metric}_sum{filter}[$__rate_interval]) / rate({metric}_count{filter}[$__rate_interval])"
                        ),
                    );
                }
            }
        }
    }
    let filtered = |metric: &str, label: &str, value: &str| {
        format!("{metric}{}, {label}=\"{value}\"}}", OVERVIEW.trim_end_matches('}'))
    };
    for (metric, bounds) in [
        ("vllm:time_to_first_token_seconds_bucket", TIME_TO_FIRST_TOKEN),
        ("vllm:request_time_per_output_token_seconds_bucket", TIME_PER_OUTPUT_TOKEN),
    ] {
        for bound in bounds {
            add("objectives", format!("sum(rate({}[$__rate_interval]))", filtered(metric, "le", bound)));
        }
    }
    for (metric, label, values) in [
        ("vllm:num_requests_waiting_by_reason", "reason", &["capacity", "deferred"][..]),
        (
            "vllm:prompt_tokens_by_source_total",
            "source",
            &["local_compute", "local_cache_hit", "external_kv_transfer"],
        ),
        (
            "vllm:request_success_total",
            "finished_reason",
            &["stop", "length", "abort", "error", "repetition"],
        ),
    ] {
        for value in values {
            add("by label", format!("sum({})", filtered(metric, label, value)));
        }
    }
    queries
}
