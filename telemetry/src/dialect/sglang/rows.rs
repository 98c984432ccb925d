//! SGLang's part of the catalogue: names, labels and buckets of SGLang 0.5.23, checked against
//! `catalogue/sglang-0.5.23.json` by a test; and names of older versions where they differ. What has no cause in
//! this engine (graphs, adapters, disaggregation, storage tiers …) is not there.

use crate::catalogue::{Condition, Kind, Label, Row, Status, Values, buckets};

pub(super) const MODEL_NAME: Label = Label { name: "model_name", values: Values::ModelName };
pub(super) const ENGINE_TYPE: Label = constant("engine_type", "unified");
pub(super) const TP_RANK: Label = constant("tp_rank", "0");
pub(super) const PP_RANK: Label = constant("pp_rank", "0");
pub(super) const MOE_EP_RANK: Label = constant("moe_ep_rank", "0");
pub(super) const DP_RANK: Label = Label { name: "dp_rank", values: Values::Rank };

/// Labels of what the scheduler knows.
const SCHEDULER: &[Label] = &[MODEL_NAME, ENGINE_TYPE, TP_RANK, PP_RANK, MOE_EP_RANK, DP_RANK];

pub(super) const fn constant(name: &'static str, value: &'static str) -> Label {
    Label { name, values: Values::Constant(value) }
}

pub(super) const fn closed(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values: Values::Closed(values) }
}

pub(super) const fn row(
    instrument: &'static str,
    renamed: &'static str,
    kind: Kind,
    unit: &'static str,
    group: &'static str,
    description: &'static str,
) -> Row {
    Row {
        dialect: "sglang",
        instrument,
        renamed: Some(renamed),
        kind,
        unit,
        description,
        labels: SCHEDULER,
        group,
        status: Status::Current,
        condition: Condition::Always,
    }
}

pub(super) const NUM_RUNNING_REQS: Row = row(
    "sglang.num_running_reqs",
    "sglang:num_running_reqs",
    Kind::Gauge,
    "{request}",
    "3.1",
    "Requests in the running list at the end of the latest engine step.",
);
pub(super) const NUM_QUEUE_REQS: Row = row(
    "sglang.num_queue_reqs",
    "sglang:num_queue_reqs",
    Kind::Gauge,
    "{request}",
    "3.1",
    "Requests in the waiting queue at the end of the latest engine step.",
);
pub(super) const NUM_USED_TOKENS: Row = row(
    "sglang.num_used_tokens",
    "sglang:num_used_tokens",
    Kind::Gauge,
    "{token}",
    "3.1",
    "Tokens of KV cache in blocks that live requests hold.",
);
pub(super) const TOKEN_USAGE: Row = row(
    "sglang.token_usage",
    "sglang:token_usage",
    Kind::Gauge,
    "1",
    "3.1",
    "Share of the KV cache that live requests hold, 0 to 1.",
);
pub(super) const FULL_TOKEN_USAGE: Row = row(
    "sglang.full_token_usage",
    "sglang:full_token_usage",
    Kind::Gauge,
    "1",
    "3.1",
    "Share of the KV cache that live requests hold for layers without a sliding window, 0 to 1.",
);
pub(super) const SWA_TOKEN_USAGE: Row = row(
    "sglang.swa_token_usage",
    "sglang:swa_token_usage",
    Kind::Gauge,
    "1",
    "3.1",
    "Share of the KV cache that live requests hold for layers with a sliding window, 0 to 1.",
);
pub(super) const GEN_THROUGHPUT: Row = row(
    "sglang.gen_throughput",
    "sglang:gen_throughput",
    Kind::Gauge,
    "{token}/s",
    "3.1",
    "Tokens generated a second over the latest 40 steps that generated any; 0 while idle.",
);
pub(super) const CACHE_HIT_RATE: Row = row(
    "sglang.cache_hit_rate",
    "sglang:cache_hit_rate",
    Kind::Gauge,
    "1",
    "3.1",
    "Share of the prompt tokens found cached, of the requests admitted last.",
);
pub(super) const UTILIZATION: Row = row(
    "sglang.utilization",
    "sglang:utilization",
    Kind::Gauge,
    "1",
    "3.1",
    "The larger of running requests over the SLO limit, if there is one, and KV usage over 0.9.",
);
pub(super) const NUM_RETRACTED_REQS: Row = row(
    "sglang.num_retracted_reqs",
    "sglang:num_retracted_reqs",
    Kind::Gauge,
    "{request}",
    "3.1",
    "Requests preempted in the latest engine step.",
);
pub(super) const NUM_RETRACTED_REQUESTS: Row = row(
    "sglang.num_retracted_requests",
    "sglang:num_retracted_requests_total",
    Kind::Counter,
    "{request}",
    "3.1",
    "Preemptions.",
);
pub(super) const NUM_RETRACTED_INPUT_TOKENS: Row = row(
    "sglang.num_retracted_input_tokens",
    "sglang:num_retracted_input_tokens_total",
    Kind::Counter,
    "{token}",
    "3.1",
    "Prompt tokens of preempted requests.",
);
pub(super) const NUM_RETRACTED_OUTPUT_TOKENS: Row = row(
    "sglang.num_retracted_output_tokens",
    "sglang:num_retracted_output_tokens_total",
    Kind::Counter,
    "{token}",
    "3.1",
    "Tokens that preempted requests had generated.",
);
pub(super) const KV_AVAILABLE_TOKENS: Row = row(
    "sglang.kv_available_tokens",
    "sglang:kv_available_tokens",
    Kind::Gauge,
    "{token}",
    "3.1",
    "Tokens of KV cache in blocks that are free and hold nothing.",
);
pub(super) const KV_EVICTABLE_TOKENS: Row = row(
    "sglang.kv_evictable_tokens",
    "sglang:kv_evictable_tokens",
    Kind::Gauge,
    "{token}",
    "3.1",
    "Tokens of KV cache in blocks that are free and hold a known prefix.",
);
pub(super) const KV_USED_TOKENS: Row = row(
    "sglang.kv_used_tokens",
    "sglang:kv_used_tokens",
    Kind::Gauge,
    "{token}",
    "3.1",
    "Tokens of KV cache in blocks that live requests hold, also as num_used_tokens.",
);
pub(super) const DECODE_SUM_SEQ_LENS: Row = row(
    "sglang.decode_sum_seq_lens",
    "sglang:decode_sum_seq_lens",
    Kind::Gauge,
    "{token}",
    "3.1",
    "Sum of the sequence lengths of the latest batch without prompt tokens.",
);
pub(super) const FWD_OCCUPANCY: Row = row(
    "sglang.fwd_occupancy",
    "sglang:fwd_occupancy",
    Kind::Gauge,
    "%",
    "3.1",
    "Share of time in the forward pass over the latest 40 steps, 0 to 100; 0 if not measured.",
);
pub(super) const MAX_TOTAL_NUM_TOKENS: Row = row(
    "sglang.max_total_num_tokens",
    "sglang:max_total_num_tokens",
    Kind::Gauge,
    "{token}",
    "3.1",
    "Tokens that the KV cache can hold.",
);
pub(super) const WEIGHT_MEMORY_USAGE_GB: Row = row(
    "sglang.weight_memory_usage_gb",
    "sglang:weight_memory_usage_gb",
    Kind::Gauge,
    "GiBy",
    "3.1",
    "Memory of the weights on the device, in GiB.",
);
pub(super) const KV_CACHE_MEMORY_USAGE_GB: Row = row(
    "sglang.kv_cache_memory_usage_gb",
    "sglang:kv_cache_memory_usage_gb",
    Kind::Gauge,
    "GiBy",
    "3.1",
    "Memory of the KV cache, in GiB.",
);
pub(super) const PAGE_SIZE: Row =
    row("sglang.page_size", "sglang:page_size", Kind::Gauge, "{token}", "3.1", "Tokens per KV block.");
pub(super) const NUM_PAGES: Row = row(
    "sglang.num_pages",
    "sglang:num_pages",
    Kind::Gauge,
    "{block}",
    "3.1",
    "KV blocks that requests can have.",
);
pub(super) const CONTEXT_LEN: Row =
    row("sglang.context_len", "sglang:context_len", Kind::Gauge, "{token}", "3.1", "Longest sequence.");
pub(super) const QUEUE_TIME: Row = row(
    "sglang.queue_time_seconds",
    "sglang:queue_time_seconds",
    Kind::Histogram(buckets::SGLANG_QUEUE),
    "s",
    "3.2",
    "From queued to first scheduled.",
);
pub(super) const MAX_RUNNING_REQUESTS_UNDER_SLO: Row = Row {
    status: Status::Revived,
    condition: Condition::Slo,
    ..row(
        "sglang.max_running_requests_under_SLO",
        "sglang:max_running_requests_under_SLO",
        Kind::Gauge,
        "{request}",
        "3.1",
        "Largest running batch whose time between tokens keeps the SLO, as measured so far.",
    )
};
pub(crate) const ROWS: &[Row] = &[
    NUM_RUNNING_REQS,
    NUM_QUEUE_REQS,
    NUM_USED_TOKENS,
    TOKEN_USAGE,
    FULL_TOKEN_USAGE,
    SWA_TOKEN_USAGE,
    GEN_THROUGHPUT,
    CACHE_HIT_RATE,
    UTILIZATION,
    NUM_RETRACTED_REQS,
    NUM_RETRACTED_REQUESTS,
    NUM_RETRACTED_INPUT_TOKENS,
    NUM_RETRACTED_OUTPUT_TOKENS,
    KV_AVAILABLE_TOKENS,
    KV_EVICTABLE_TOKENS,
    KV_USED_TOKENS,
    DECODE_SUM_SEQ_LENS,
    FWD_OCCUPANCY,
    MAX_TOTAL_NUM_TOKENS,
    WEIGHT_MEMORY_USAGE_GB,
    KV_CACHE_MEMORY_USAGE_GB,
    PAGE_SIZE,
    NUM_PAGES,
    CONTEXT_LEN,
    QUEUE_TIME,
    MAX_RUNNING_REQUESTS_UNDER_SLO,
];
