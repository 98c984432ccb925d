//! vLLM's part of the catalogue, second half: caches, what a step computes, states of the engine.

use super::rows::{ENGINE, MODEL_NAME, closed, row};
use crate::catalogue::{Condition, Kind, Label, Row, Values, buckets};

const RESIDENCY: Kind = Kind::Histogram(buckets::VLLM_RESIDENCY);

pub(super) const EXTERNAL_PREFIX_CACHE_QUERIES: Row = row(
    "vllm.external_prefix_cache_queries",
    "vllm:external_prefix_cache_queries_total",
    Kind::Counter,
    "{token}",
    "2.4",
    "Tokens looked up in a cache outside the engine; 0 while there is none.",
);
pub(super) const EXTERNAL_PREFIX_CACHE_HITS: Row = row(
    "vllm.external_prefix_cache_hits",
    "vllm:external_prefix_cache_hits_total",
    Kind::Counter,
    "{token}",
    "2.4",
    "Tokens found in a cache outside the engine; 0 while there is none.",
);
pub(super) const MM_CACHE_QUERIES: Row = row(
    "vllm.mm_cache_queries",
    "vllm:mm_cache_queries_total",
    Kind::Counter,
    "{item}",
    "2.4",
    "Items looked up in the multi-modal cache; 0 while models take text only.",
);
pub(super) const MM_CACHE_HITS: Row = row(
    "vllm.mm_cache_hits",
    "vllm:mm_cache_hits_total",
    Kind::Counter,
    "{item}",
    "2.4",
    "Items found in the multi-modal cache; 0 while models take text only.",
);
pub(super) const PROMPT_TOKENS_CACHED_BY_SOURCE: Row = Row {
    labels: &[
        MODEL_NAME,
        ENGINE,
        closed("source", &["device", "host", "p2p", "disk", "external_unspecified"]),
    ],
    ..row(
        "vllm.prompt_tokens_cached_by_source",
        "vllm:prompt_tokens_cached_by_source_total",
        Kind::Counter,
        "{token}",
        "2.2",
        "Prompt tokens found cached, by where; added at a request's first admission.",
    )
};
pub(super) const KV_BLOCK_LIFETIME: Row = Row {
    condition: Condition::KvCacheMetrics,
    ..row(
        "vllm.kv_block_lifetime_seconds",
        "vllm:kv_block_lifetime_seconds",
        RESIDENCY,
        "s",
        "2.5",
        "From a sampled KV block's allocation to its next one.",
    )
};
pub(super) const KV_BLOCK_IDLE_BEFORE_EVICT: Row = Row {
    condition: Condition::KvCacheMetrics,
    ..row(
        "vllm.kv_block_idle_before_evict_seconds",
        "vllm:kv_block_idle_before_evict_seconds",
        RESIDENCY,
        "s",
        "2.5",
        "From a sampled KV block's last prefix-cache hit, or its allocation, to its next allocation.",
    )
};
pub(super) const KV_BLOCK_REUSE_GAP: Row = Row {
    condition: Condition::KvCacheMetrics,
    ..row(
        "vllm.kv_block_reuse_gap_seconds",
        "vllm:kv_block_reuse_gap_seconds",
        RESIDENCY,
        "s",
        "2.5",
        "Between a sampled KV block's latest four prefix-cache hits.",
    )
};
pub(super) const ESTIMATED_FLOPS: Row = Row {
    condition: Condition::MfuMetrics,
    ..row(
        "vllm.estimated_flops_per_gpu",
        "vllm:estimated_flops_per_gpu_total",
        Kind::Counter,
        "{operation}",
        "2.7",
        "Floating-point operations of all steps, as the model's ops state them.",
    )
};
pub(super) const ESTIMATED_READ_BYTES: Row = Row {
    condition: Condition::MfuMetrics,
    ..row(
        "vllm.estimated_read_bytes_per_gpu",
        "vllm:estimated_read_bytes_per_gpu_total",
        Kind::Counter,
        "By",
        "2.7",
        "Bytes read from device memory in all steps, as the model's ops state them.",
    )
};
pub(super) const ESTIMATED_WRITE_BYTES: Row = Row {
    condition: Condition::MfuMetrics,
    ..row(
        "vllm.estimated_write_bytes_per_gpu",
        "vllm:estimated_write_bytes_per_gpu_total",
        Kind::Counter,
        "By",
        "2.7",
        "Bytes written to device memory in all steps, as the model's ops state them.",
    )
};
pub(super) const CORRUPTED_REQUESTS: Row = row(
    "vllm.corrupted_requests",
    "vllm:corrupted_requests_total",
    Kind::Counter,
    "{request}",
    "2.1",
    "Requests that ended because their logits were not numbers.",
);
pub(super) const ADMISSION_REJECTIONS: Row = Row {
    labels: &[MODEL_NAME, closed("reason", &["max_num_queued_reqs", "max_num_queued_tokens"])],
    ..row(
        "vllm.admission_rejections",
        "vllm:admission_rejections_total",
        Kind::Counter,
        "{request}",
        "2.1",
        "Requests refused because too many requests or tokens were waiting, by limit.",
    )
};
pub(super) const ENGINE_SLEEP_STATE: Row = Row {
    labels: &[MODEL_NAME, ENGINE, closed("sleep_state", &["awake", "weights_offloaded", "discard_all"])],
    ..row(
        "vllm.engine_sleep_state",
        "vllm:engine_sleep_state",
        Kind::Gauge,
        "1",
        "2.1",
        "1 for the state the engine is in, else 0; all 0 while it is only paused.",
    )
};
/// Label values that vLLM has; limpid gives up weights and cache together, so the one between stays at 0.
const OPERATION: Label = closed("operation", &["sleep", "release_kv_cache_memory", "wake"]);
pub(super) const SLEEP_MODE_OPERATION_DURATION: Row = Row {
    labels: &[OPERATION],
    ..row(
        "vllm.sleep_mode_operation_duration_seconds",
        "vllm:sleep_mode_operation_duration_seconds",
        Kind::Histogram(buckets::VLLM_SLEEP),
        "s",
        "2.9",
        "Time that a call of /sleep or /wake_up waited for the engine, failures included.",
    )
};
pub(super) const SLEEP_MODE_OPERATIONS_IN_FLIGHT: Row = Row {
    labels: &[OPERATION],
    ..row(
        "vllm.sleep_mode_operations_in_flight",
        "vllm:sleep_mode_operations_in_flight",
        Kind::Gauge,
        "{operation}",
        "2.9",
        "Calls of /sleep and /wake_up that wait for the engine.",
    )
};
pub(super) const LORA_REQUESTS_INFO: Row = Row {
    labels: &[
        Label { name: "max_lora", values: Values::Constant("0") },
        Label { name: "waiting_lora_adapters", values: Values::Constant("") },
        Label { name: "running_lora_adapters", values: Values::Constant("") },
    ],
    ..row(
        "vllm.lora_requests_info",
        "vllm:lora_requests_info",
        Kind::Gauge,
        "s",
        "2.1",
        "Adapters in use as labels; the value is the Unix time of their last change.",
    )
};

pub(crate) const ROWS: &[Row] = &[
    EXTERNAL_PREFIX_CACHE_QUERIES,
    EXTERNAL_PREFIX_CACHE_HITS,
    MM_CACHE_QUERIES,
    MM_CACHE_HITS,
    PROMPT_TOKENS_CACHED_BY_SOURCE,
    KV_BLOCK_LIFETIME,
    KV_BLOCK_IDLE_BEFORE_EVICT,
    KV_BLOCK_REUSE_GAP,
    ESTIMATED_FLOPS,
    ESTIMATED_READ_BYTES,
    ESTIMATED_WRITE_BYTES,
    CORRUPTED_REQUESTS,
    ADMISSION_REJECTIONS,
    ENGINE_SLEEP_STATE,
    SLEEP_MODE_OPERATION_DURATION,
    SLEEP_MODE_OPERATIONS_IN_FLIGHT,
    LORA_REQUESTS_INFO,
];
