//! SGLang's part of the catalogue, second half: requests and tokens, eviction, the start, and older names.

use super::rows::{DP_RANK, ENGINE_TYPE, MODEL_NAME, MOE_EP_RANK, PP_RANK, TP_RANK, closed, constant, row};
use crate::catalogue::{Kind, Label, Row, Status, Values, buckets};

const STREAMING: Label = closed("is_streaming", &["true", "false"]);

/// Labels of what is known of requests.
const REQUESTS: &[Label] = &[MODEL_NAME, ENGINE_TYPE];
/// Labels of versions before 0.5.
const OLD: &[Label] = &[MODEL_NAME, TP_RANK, DP_RANK];

pub(super) const REALTIME_TOKENS: Row = Row {
    labels: &[
        MODEL_NAME,
        ENGINE_TYPE,
        TP_RANK,
        PP_RANK,
        MOE_EP_RANK,
        DP_RANK,
        closed("mode", &["prefill_compute", "prefill_cache", "decode"]),
    ],
    ..row(
        "sglang.realtime_tokens",
        "sglang:realtime_tokens_total",
        Kind::Counter,
        "{token}",
        "3.2",
        "Tokens as steps handle them: prompt tokens computed and found cached, tokens generated.",
    )
};
pub(super) const PREFILL_EFFECTIVE_TOKENS: Row = Row {
    labels: &[
        MODEL_NAME,
        ENGINE_TYPE,
        TP_RANK,
        PP_RANK,
        MOE_EP_RANK,
        DP_RANK,
        closed("mode", &["input", "device_hit", "host_hit", "storage_hit"]),
    ],
    ..row(
        "sglang.prefill_effective_tokens",
        "sglang:prefill_effective_tokens_total",
        Kind::Counter,
        "{token}",
        "3.2",
        "Prompt tokens at first admission: input are those not found cached, the others by tier.",
    )
};
pub(super) const PER_STAGE_REQ_LATENCY: Row = Row {
    labels: &[
        MODEL_NAME,
        ENGINE_TYPE,
        TP_RANK,
        PP_RANK,
        MOE_EP_RANK,
        DP_RANK,
        closed("stage", &["request_process", "prefill_forward"]),
    ],
    ..row(
        "sglang.per_stage_req_latency_seconds",
        "sglang:per_stage_req_latency_seconds",
        Kind::Histogram(buckets::SGLANG_STAGE),
        "s",
        "3.2",
        "Stages of a request: from arrival to queued, and from first scheduled to first token.",
    )
};
pub(super) const CACHED_TOKENS: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, closed("cache_source", &["device"])],
    ..row(
        "sglang.cached_tokens",
        "sglang:cached_tokens_total",
        Kind::Counter,
        "{token}",
        "3.2",
        "Prompt tokens of finished requests found cached, by where.",
    )
};
pub(super) const PROMPT_TOKENS: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, STREAMING],
    ..row(
        "sglang.prompt_tokens",
        "sglang:prompt_tokens_total",
        Kind::Counter,
        "{token}",
        "3.2",
        "Prompt tokens of finished requests.",
    )
};
pub(super) const GENERATION_TOKENS: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, STREAMING],
    ..row(
        "sglang.generation_tokens",
        "sglang:generation_tokens_total",
        Kind::Counter,
        "{token}",
        "3.2",
        "Tokens that finished requests generated.",
    )
};
pub(super) const NUM_REQUESTS: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, STREAMING],
    ..row(
        "sglang.num_requests",
        "sglang:num_requests_total",
        Kind::Counter,
        "{request}",
        "3.2",
        "Finished requests, aborted and failed ones included.",
    )
};
pub(super) const NUM_ABORTED_REQUESTS: Row = Row {
    labels: REQUESTS,
    ..row(
        "sglang.num_aborted_requests",
        "sglang:num_aborted_requests_total",
        Kind::Counter,
        "{request}",
        "3.2",
        "Aborted requests.",
    )
};
pub(super) const PROMPT_TOKENS_HISTOGRAM: Row = Row {
    labels: REQUESTS,
    ..row(
        "sglang.prompt_tokens_histogram",
        "sglang:prompt_tokens_histogram",
        Kind::Histogram(buckets::SGLANG_TOKENS),
        "{token}",
        "3.2",
        "Prompt tokens of a finished request.",
    )
};
pub(super) const UNCACHED_PROMPT_TOKENS_HISTOGRAM: Row = Row {
    labels: REQUESTS,
    ..row(
        "sglang.uncached_prompt_tokens_histogram",
        "sglang:uncached_prompt_tokens_histogram",
        Kind::Histogram(buckets::SGLANG_TOKENS),
        "{token}",
        "3.2",
        "Prompt tokens of a finished request that were not found cached.",
    )
};
pub(super) const GENERATION_TOKENS_HISTOGRAM: Row = Row {
    labels: REQUESTS,
    ..row(
        "sglang.generation_tokens_histogram",
        "sglang:generation_tokens_histogram",
        Kind::Histogram(buckets::SGLANG_TOKENS),
        "{token}",
        "3.2",
        "Tokens that a finished request generated.",
    )
};
pub(super) const TIME_TO_FIRST_TOKEN: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, STREAMING],
    ..row(
        "sglang.time_to_first_token_seconds",
        "sglang:time_to_first_token_seconds",
        Kind::Histogram(buckets::SGLANG_FIRST_TOKEN),
        "s",
        "3.2",
        "From a request's arrival at the server to its first token.",
    )
};
pub(super) const INTER_TOKEN_LATENCY: Row = Row {
    labels: REQUESTS,
    ..row(
        "sglang.inter_token_latency_seconds",
        "sglang:inter_token_latency_seconds",
        Kind::Histogram(buckets::SGLANG_INTER_TOKEN),
        "s",
        "3.2",
        "Between two tokens of a request; a step that brings several shares its time among them.",
    )
};
pub(super) const TIME_PER_OUTPUT_TOKEN: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, STREAMING],
    ..row(
        "sglang.request_time_per_output_token_seconds",
        "sglang:request_time_per_output_token_seconds",
        Kind::Histogram(buckets::SGLANG_INTER_TOKEN),
        "s",
        "3.2",
        "Decode time over tokens after the first, of a successful request with two tokens or more.",
    )
};
pub(super) const E2E_REQUEST_LATENCY: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, STREAMING],
    ..row(
        "sglang.e2e_request_latency_seconds",
        "sglang:e2e_request_latency_seconds",
        Kind::Histogram(buckets::SGLANG_E2E),
        "s",
        "3.2",
        "From a request's arrival at the server to its end.",
    )
};
pub(super) const STARTUP_TIME: Row = Row {
    labels: &[MODEL_NAME, ENGINE_TYPE, closed("phase", &["load_weight", "scheduler_e2e"])],
    ..row(
        "sglang.startup_time_seconds",
        "sglang:startup_time_seconds",
        Kind::Gauge,
        "s",
        "3.7",
        "How long the parts of the start took that were measured.",
    )
};
pub(super) const EVICTED_TOKENS: Row = Row {
    labels: &[
        constant("cache_type", "prefix"),
        TP_RANK,
        PP_RANK,
        Label { name: "dp_rank", values: Values::Engine },
    ],
    ..row(
        "sglang.evicted_tokens",
        "sglang:evicted_tokens_total",
        Kind::Counter,
        "{token}",
        "3.6",
        "Tokens of KV blocks with a known prefix that were overwritten.",
    )
};
pub(super) const AVG_REQUEST_QUEUE_LATENCY: Row = Row {
    labels: OLD,
    status: Status::Revived,
    ..row(
        "sglang.avg_request_queue_latency",
        "sglang:avg_request_queue_latency",
        Kind::Gauge,
        "s",
        "3.1",
        "Mean time in the queue of the latest 40 finished requests.",
    )
};
pub(super) const TOTAL_RETRACTED_REQS: Row = Row {
    labels: OLD,
    status: Status::Revived,
    ..row(
        "sglang.total_retracted_reqs",
        "sglang:total_retracted_reqs",
        Kind::Gauge,
        "{request}",
        "3.1",
        "Preemptions so far, as a gauge.",
    )
};
pub(super) const QUEUE_TIME_S: Row = Row {
    labels: OLD,
    status: Status::Revived,
    ..row(
        "sglang.queue_time_s",
        "sglang:queue_time_s",
        Kind::Histogram(buckets::SGLANG_QUEUE),
        "s",
        "3.2",
        "From queued to first scheduled; old name of queue_time_seconds.",
    )
};
pub(super) const ENGINE_STARTUP_TIME: Row = Row {
    labels: OLD,
    status: Status::Revived,
    ..row(
        "sglang.engine_startup_time",
        "sglang:engine_startup_time",
        Kind::Gauge,
        "s",
        "3.7",
        "From the first look at the model's file to an engine that takes requests.",
    )
};
pub(super) const ENGINE_LOAD_WEIGHTS_TIME: Row = Row {
    labels: OLD,
    status: Status::Revived,
    ..row(
        "sglang.engine_load_weights_time",
        "sglang:engine_load_weights_time",
        Kind::Gauge,
        "s",
        "3.7",
        "How long it took to bring the weights onto the device.",
    )
};

pub(crate) const ROWS: &[Row] = &[
    REALTIME_TOKENS,
    PREFILL_EFFECTIVE_TOKENS,
    PER_STAGE_REQ_LATENCY,
    CACHED_TOKENS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    NUM_REQUESTS,
    NUM_ABORTED_REQUESTS,
    PROMPT_TOKENS_HISTOGRAM,
    UNCACHED_PROMPT_TOKENS_HISTOGRAM,
    GENERATION_TOKENS_HISTOGRAM,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    TIME_PER_OUTPUT_TOKEN,
    E2E_REQUEST_LATENCY,
    STARTUP_TIME,
    EVICTED_TOKENS,
    AVG_REQUEST_QUEUE_LATENCY,
    TOTAL_RETRACTED_REQS,
    QUEUE_TIME_S,
    ENGINE_STARTUP_TIME,
    ENGINE_LOAD_WEIGHTS_TIME,
];
