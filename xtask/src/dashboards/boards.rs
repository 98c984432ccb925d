//! What is on each dashboard.
//!
//! A panel stands for a question, and its description says what to do with the answer. Panels on metrics that
//! this build of limpid does not serve are left out of limpid's own boards, and appear by themselves when the
//! catalogue has them; the board for SGLang's names is whole, as it also serves SGLang's own servers.

use super::Dashboard;
use super::panel::{Board, Panel, percentile};
use crate::promql;

/// The labels that the variables of a board for vLLM's names choose.
const VLLM: &str = "{job=~\"$job\", model_name=~\"$model_name\"}";

/// Span metrics of limpid: the job is the service's name.
const SPANS: &str = "{job=~\"$job\", span_kind=\"SPAN_KIND_SERVER\"}";

pub(super) fn all() -> Vec<Dashboard> {
    vec![overview(), kv_cache(), traces(), sglang()]
}

fn rate(counter: &str, filter: &str) -> String {
    format!("rate({counter}{filter}[$__rate_interval])")
}

fn total(counter: &str) -> String {
    format!("sum({})", rate(counter, VLLM))
}

fn by(label: &str, counter: &str) -> String {
    format!("sum by ({label}) ({})", rate(counter, VLLM))
}

/// How much of `whole` was `part`; nothing while nothing happened.
fn share(part: &str, whole: &str) -> String {
    format!("{} / {}", total(part), total(whole))
}

fn mean(histogram: &str) -> String {
    share(&format!("{histogram}_sum"), &format!("{histogram}_count"))
}

fn gauge(aggregation: &str, name: &str) -> String {
    format!("{aggregation} ({name}{VLLM})")
}

/// Drops panels that would stay empty on this build.
fn served(panels: Vec<Panel>) -> Vec<Panel> {
    panels
        .into_iter()
        .filter(|panel| panel.queries().all(|query| !matches!(promql::lacking(query), Ok(Some(_)))))
        .collect()
}

fn vllm_board(uid: &'static str, title: &'static str, description: &'static str) -> Board {
    Board::new(uid, title, description)
        .variable("job", "label_values(vllm:num_requests_running, job)")
        .variable("model_name", "label_values(vllm:num_requests_running{job=~\"$job\"}, model_name)")
}

fn overview() -> Dashboard {
    let latency =
        |title, histogram, description| Panel::new(title, "s", description).percentiles(histogram, VLLM);
    vllm_board(
        "limpid-overview",
        "limpid: overview",
        "Is it busy, is it fast, where does the time go, and what is wrong.",
    )
    .row("Volume", vec![
        Panel::new("Requests per second", "reqps", "Requests that ended, by model.")
            .query("{{model_name}}", by("model_name", "vllm:request_success_total")),
        Panel::new(
            "Ended requests by reason",
            "reqps",
            "stop and length are good ends. abort is a client that left, error is ours.",
        )
        .query("{{finished_reason}}", by("finished_reason", "vllm:request_success_total")),
        Panel::new("Tokens per second", "short", "Prompt tokens taken in and tokens generated.")
            .query("prompt", total("vllm:prompt_tokens_total"))
            .query("generated", total("vllm:generation_tokens_total")),
    ])
    .row("Latency", vec![
        latency(
            "Time to first token",
            "vllm:time_to_first_token_seconds",
            "From arrival to the first token. Its points open traces.",
        ),
        latency(
            "Inter-token latency",
            "vllm:inter_token_latency_seconds",
            "Between two tokens of one request: what a reader sees.",
        ),
        latency("End to end", "vllm:e2e_request_latency_seconds", "From arrival to the last token."),
        latency(
            "Time in the queue",
            "vllm:request_queue_time_seconds",
            "Until a request is first scheduled. When it grows, add replicas.",
        ),
        latency(
            "Time per output token",
            "vllm:request_time_per_output_token_seconds",
            "Mean over a request's tokens after the first.",
        ),
        Panel::new("Where the time goes", "s", "Means of the phases that follow each other.")
            .query("queue", mean("vllm:request_queue_time_seconds"))
            .query("prefill", mean("vllm:request_prefill_time_seconds"))
            .query("decode", mean("vllm:request_decode_time_seconds")),
    ])
    .row("Saturation", vec![
        Panel::new("Requests in the engine", "short", "Waiting above zero for long means full.")
            .query("running", gauge("sum", "vllm:num_requests_running"))
            .query("waiting", gauge("sum", "vllm:num_requests_waiting")),
        Panel::new("Waiting by reason", "short", "capacity: no room. deferred: not allowed to start yet.")
            .query("{{reason}}", gauge("sum by (reason)", "vllm:num_requests_waiting_by_reason")),
        Panel::new("KV cache in use", "percentunit", "The fullest engine; an average would hide it.")
            .query("{{engine}}", gauge("max by (engine)", "vllm:kv_cache_usage_perc")),
        Panel::new("Preemptions per second", "short", "Running requests thrown out for lack of KV blocks.")
            .query("{{model_name}}", by("model_name", "vllm:num_preemptions_total")),
        Panel::new("Tokens of an engine step", "short", "Small steps under load mean a batch that is not full.")
            .percentiles("vllm:iteration_tokens_total", VLLM),
    ])
    .row("Caches", served(vec![
        Panel::new("Prefix cache hits", "percentunit", "Share of looked-up prompt tokens that were cached.")
            .query("hit rate", share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")),
        Panel::new("Cached prompt tokens", "percentunit", "Share of prompt tokens that needed no prefill.")
            .query("cached", share("vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total")),
        Panel::new("External cache hits", "percentunit", "Share of looked-up tokens a KV connector had.").query(
            "hit rate",
            share("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total"),
        ),
        Panel::new("Multimodal cache hits", "percentunit", "Share of looked-up items already processed.")
            .query("hit rate", share("vllm:mm_cache_hits_total", "vllm:mm_cache_queries_total")),
    ]))
    .row("Device", served(vec![
        Panel::new(
            "Time in the model",
            "ms",
            "Forward pass on the device against hand-over to tokens on the host; with --collect-detailed-traces.",
        )
        .query("forward, p95", percentile("vllm:model_forward_time_milliseconds", VLLM, "0.95"))
        .query("execute, p95", percentile("vllm:model_execute_time_milliseconds", VLLM, "0.95")),
        Panel::new("Estimated TFLOPS", "short", "Work of the model's operations; with --enable-mfu-metrics.")
            .query("{{engine}}", format!("{} / 1e12", by("engine", "vllm:estimated_flops_per_gpu_total"))),
        Panel::new("Estimated memory traffic, GB/s", "short", "Bytes read and written by the operations.")
            .query("read", format!("{} / 1e9", total("vllm:estimated_read_bytes_per_gpu_total")))
            .query("written", format!("{} / 1e9", total("vllm:estimated_write_bytes_per_gpu_total"))),
        Panel::new("Speculation", "percentunit", "Share of drafted tokens that were accepted.").query(
            "accepted",
            share("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
        ),
    ]))
    .row("Telemetry itself", vec![
        Panel::new("Spans by fate", "short", "failed and dropped are lost; the collector is away or too slow.")
            .query("{{result}}", "sum by (result) (rate(limpid_otlp_exporter_spans_total{job=~\"$job\"}[$__rate_interval]))"),
        Panel::new("Data points by fate", "short", "A failed push is made up for by the next one that arrives.")
            .query("{{result}}", "sum by (result) (rate(limpid_otlp_exporter_data_points_total{job=~\"$job\"}[$__rate_interval]))"),
        Panel::new("Spans waiting for export", "short", "Rises while the collector does not take them.")
            .query("{{instance}}", "sum by (instance) (limpid_otlp_exporter_span_queue_length{job=~\"$job\"})"),
    ])
    .build()
}

fn kv_cache() -> Dashboard {
    vllm_board(
        "limpid-kv-cache",
        "limpid: KV cache",
        "How full the KV cache is, what it saves, what it costs.",
    )
    .row(
        "Pressure",
        vec![
            Panel::new(
                "In use",
                "percentunit",
                "Above 0.9 new requests wait and running ones are preempted.",
            )
            .query("{{instance}} {{engine}}", gauge("max by (instance, engine)", "vllm:kv_cache_usage_perc")),
            Panel::new("Blocks", "short", "Blocks of each engine, as configured at start.").query(
                "{{instance}}: {{num_gpu_blocks}} × {{block_size}} tokens",
                "vllm:cache_config_info{job=~\"$job\"}",
            ),
            Panel::new("Preemptions per second", "short", "Running requests thrown out for lack of blocks.")
                .query("{{instance}}", by("instance", "vllm:num_preemptions_total")),
            Panel::new(
                "Preemptions of a request",
                "short",
                "How often the unluckiest requests were thrown out.",
            )
            .query("p99", percentile("vllm:request_num_preemptions", VLLM, "0.99"))
            .query("mean", mean("vllm:request_num_preemptions")),
            Panel::new("Waiting for room", "short", "Requests that fit neither the batch nor the cache.")
                .query("{{reason}}", gauge("sum by (reason)", "vllm:num_requests_waiting_by_reason")),
        ],
    )
    .row(
        "What it saves",
        served(vec![
            Panel::new(
                "Prefix cache hits",
                "percentunit",
                "Share of looked-up prompt tokens that were cached.",
            )
            .query("hit rate", share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")),
            Panel::new("Prompt tokens by source", "short", "Computed here, found here, or fetched.")
                .query("{{source}}", by("source", "vllm:prompt_tokens_by_source_total")),
            Panel::new(
                "Cached prompt tokens",
                "percentunit",
                "Share of prompt tokens that needed no prefill.",
            )
            .query("cached", share("vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total")),
            Panel::new(
                "Prefill computed for a request",
                "short",
                "Prompt tokens whose KV was computed anew.",
            )
            .percentiles("vllm:request_prefill_kv_computed_tokens", VLLM),
            Panel::new("Cached tokens by source", "short", "Where cached prompt tokens came from.")
                .query("{{source}}", by("source", "vllm:prompt_tokens_cached_by_source_total")),
            Panel::new("External cache hits", "percentunit", "Share of looked-up tokens a KV connector had.")
                .query(
                    "hit rate",
                    share(
                        "vllm:external_prefix_cache_hits_total",
                        "vllm:external_prefix_cache_queries_total",
                    ),
                ),
        ]),
    )
    .row(
        "Life of blocks",
        served(vec![
            Panel::new(
                "Lifetime",
                "s",
                "From allocation to eviction, of sampled blocks; with --kv-cache-metrics.",
            )
            .percentiles("vllm:kv_block_lifetime_seconds", VLLM),
            Panel::new("Idle before eviction", "s", "Long means the cache is larger than its use.")
                .percentiles("vllm:kv_block_idle_before_evict_seconds", VLLM),
            Panel::new("Gap between uses", "s", "Longer than the idle time above means blocks go too early.")
                .percentiles("vllm:kv_block_reuse_gap_seconds", VLLM),
        ]),
    )
    .build()
}

fn traces() -> Dashboard {
    let calls = "traces_span_metrics_calls_total";
    let duration = "traces_span_metrics_duration_seconds";
    let errors = "{job=~\"$job\", span_kind=\"SPAN_KIND_SERVER\", status_code=\"STATUS_CODE_ERROR\"}";
    let phase = "{job=~\"$job\", span_name=~\"queue|prefill|decode\"}";
    let per_name = |filter: &str, quantile: &str| {
        let rate = rate(&format!("{duration}_bucket"), filter);
        format!("histogram_quantile({quantile}, sum by (le, span_name) ({rate}))")
    };
    Board::new(
        "limpid-traces",
        "limpid: traces",
        "Rate, errors and duration of spans, from the collector's span metrics; exemplars open traces.",
    )
    .variable("job", "label_values(traces_span_metrics_calls_total, job)")
    .row(
        "Requests",
        vec![
            Panel::new("Rate", "reqps", "Requests by route, refused ones included.")
                .query("{{span_name}}", format!("sum by (span_name) ({})", rate(calls, SPANS))),
            Panel::new(
                "Errors",
                "percentunit",
                "Share of requests that the server failed; refusals do not count.",
            )
            .query(
                "errors",
                format!("(sum({}) or vector(0)) / sum({})", rate(calls, errors), rate(calls, SPANS)),
            ),
            Panel::new("Duration", "s", "From the request's head to the answer's last byte.")
                .percentiles(duration, SPANS),
            Panel::new("By status", "reqps", "400 to 499 are the client's, 500 and above are ours.").query(
                "{{http_response_status_code}}",
                format!("sum by (http_response_status_code) ({})", rate(calls, SPANS)),
            ),
            Panel::new("By kind of error", "reqps", "error.type of refused and failed requests.").query(
                "{{error_type}}",
                format!("sum by (error_type) ({})", rate(calls, "{job=~\"$job\", error_type!=\"\"}")),
            ),
            Panel::new("Duration by route, p95", "s", "Which route is slow.")
                .query("{{span_name}}", per_name(SPANS, "0.95")),
        ],
    )
    .row(
        "Phases",
        vec![
            Panel::new("Phases, p95", "s", "Queue, prefill and decode of requests to the model.")
                .query("{{span_name}}", per_name(phase, "0.95")),
            Panel::new("Phases, p50", "s", "The same for the request in the middle.")
                .query("{{span_name}}", per_name(phase, "0.5")),
            Panel::new("Spans per second", "short", "Everything limpid sends, by name.")
                .query("{{span_name}}", format!("sum by (span_name) ({})", rate(calls, "{job=~\"$job\"}"))),
        ],
    )
    .latest_traces("Latest traces", "limpid")
    .build()
}

fn sglang() -> Dashboard {
    let f = "{model_name=~\"$model_name\"}";
    let sum = |counter: &str| format!("sum by (model_name) ({})", rate(counter, f));
    let latency =
        |title, histogram, description| Panel::new(title, "s", description).percentiles(histogram, f);
    let ratio = |part: &str, whole: &str| format!("sum({}) / sum({})", rate(part, f), rate(whole, f));
    Board::new(
        "limpid-sglang",
        "limpid: SGLang's names",
        "For servers that speak SGLang's metrics: limpid with --metrics-dialects, or SGLang itself.",
    )
    .variable("model_name", "label_values(sglang:num_running_reqs, model_name)")
    .row(
        "Volume",
        vec![
            Panel::new("Requests per second", "reqps", "Requests that ended.")
                .query("{{model_name}}", sum("sglang:num_requests_total")),
            Panel::new(
                "Tokens per second",
                "short",
                "Prompt tokens count when a request ends, decoded ones at once.",
            )
            .query("prompt, {{model_name}}", sum("sglang:prompt_tokens_total"))
            .query(
                "decoded, {{model_name}}",
                format!(
                    "sum by (model_name) ({})",
                    rate("sglang:realtime_tokens_total", "{model_name=~\"$model_name\", mode=\"decode\"}")
                ),
            ),
            Panel::new("Generation throughput", "short", "As the scheduler reports it.")
                .query("{{model_name}}", format!("sum by (model_name) (sglang:gen_throughput{f})")),
        ],
    )
    .row(
        "Latency",
        vec![
            latency(
                "Time to first token",
                "sglang:time_to_first_token_seconds",
                "From arrival to the first token.",
            ),
            latency(
                "Inter-token latency",
                "sglang:inter_token_latency_seconds",
                "Between two tokens of a request.",
            ),
            latency("End to end", "sglang:e2e_request_latency_seconds", "From arrival to the last token."),
            latency("Time in the queue", "sglang:queue_time_seconds", "Until a request is first scheduled."),
        ],
    )
    .row(
        "Saturation",
        vec![
            Panel::new("Requests in the engine", "short", "A queue above zero for long means full.")
                .query("running", format!("sum by (model_name) (sglang:num_running_reqs{f})"))
                .query("queued", format!("sum by (model_name) (sglang:num_queue_reqs{f})")),
            Panel::new("Token usage", "percentunit", "Share of the token pool in use.")
                .query("{{model_name}}", format!("max by (model_name) (sglang:token_usage{f})")),
            Panel::new(
                "Retracted and aborted per second",
                "reqps",
                "Thrown out for lack of room, or given up.",
            )
            .query("retracted", sum("sglang:num_retracted_requests_total"))
            .query("aborted", sum("sglang:num_aborted_requests_total")),
        ],
    )
    .row(
        "Caches",
        vec![
            Panel::new("Hit rate of the last prefill", "percentunit", "A gauge: the latest batch only.")
                .query("{{model_name}}", format!("avg by (model_name) (sglang:cache_hit_rate{f})")),
            Panel::new(
                "Cached prompt tokens",
                "percentunit",
                "Share of prompt tokens that needed no prefill.",
            )
            .query("cached", ratio("sglang:cached_tokens_total", "sglang:prompt_tokens_total")),
            Panel::new("Storage", "short", "Tokens prefetched from and backed up to storage.")
                .query("prefetched", "sum(rate(sglang:prefetched_tokens_total[$__rate_interval]))")
                .query("backed up", "sum(rate(sglang:backuped_tokens_total[$__rate_interval]))"),
        ],
    )
    .row(
        "Speculation and transfer",
        vec![
            Panel::new("Accepted length", "short", "Tokens of a speculative step, the bonus token included.")
                .query("{{model_name}}", format!("avg by (model_name) (sglang:spec_accept_length{f})")),
            Panel::new("KV transfer, p95", "ms", "Between prefill and decode servers.")
                .query("p95", percentile("sglang:kv_transfer_latency_ms", f, "0.95")),
            Panel::new("KV transfer speed, GB/s", "short", "Mean over transfers.").query(
                "mean",
                ratio("sglang:kv_transfer_speed_gb_s_sum", "sglang:kv_transfer_speed_gb_s_count"),
            ),
        ],
    )
    .build()
}
