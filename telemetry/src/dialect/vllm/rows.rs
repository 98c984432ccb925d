//! vLLM's part of the catalogue: names, labels and buckets of vLLM 0.33, checked against
//! `catalogue/vllm-0.33.json` by a test. Descriptions say the moment and the unit.

use crate::catalogue::{Buckets, Condition, Kind, Label, Row, Status, Values, buckets};

pub(super) const MODEL_NAME: Label = Label { name: "model_name", values: Values::ModelName };
pub(super) const ENGINE: Label = Label { name: "engine", values: Values::Engine };
const BASE: &[Label] = &[MODEL_NAME, ENGINE];

pub(super) const fn closed(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values: Values::Closed(values) }
}

const fn setting(name: &'static str) -> Label {
    Label { name, values: Values::Setting }
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
        dialect: "vllm",
        instrument,
        renamed: Some(renamed),
        kind,
        unit,
        description,
        labels: BASE,
        group,
        status: Status::Current,
        condition: Condition::Always,
    }
}

const TOKENS: Kind = Kind::Histogram(Buckets::OneTwoFive);

pub(super) const NUM_REQUESTS_RUNNING: Row = row(
    "vllm.num_requests_running",
    "vllm:num_requests_running",
    Kind::Gauge,
    "{request}",
    "2.1",
    "Requests in the running list at the end of the latest engine step.",
);
pub(super) const NUM_REQUESTS_WAITING: Row = row(
    "vllm.num_requests_waiting",
    "vllm:num_requests_waiting",
    Kind::Gauge,
    "{request}",
    "2.1",
    "Requests in the waiting queue at the end of the latest engine step.",
);
pub(super) const NUM_REQUESTS_WAITING_BY_REASON: Row = Row {
    labels: &[MODEL_NAME, ENGINE, closed("reason", &["capacity", "deferred"])],
    ..row(
        "vllm.num_requests_waiting_by_reason",
        "vllm:num_requests_waiting_by_reason",
        Kind::Gauge,
        "{request}",
        "2.1",
        "Waiting requests: capacity waits for budget, slots or blocks, deferred for something else.",
    )
};
pub(super) const KV_CACHE_USAGE_PERC: Row = row(
    "vllm.kv_cache_usage_perc",
    "vllm:kv_cache_usage_perc",
    Kind::Gauge,
    "1",
    "2.1",
    "Share of KV-cache blocks held by live requests, 0 to 1; cached blocks nobody holds count as free.",
);
pub(super) const NUM_PREEMPTIONS: Row = row(
    "vllm.num_preemptions",
    "vllm:num_preemptions_total",
    Kind::Counter,
    "{preemption}",
    "2.1",
    "Times a running request lost its blocks and went back to the waiting queue.",
);
pub(super) const REQUEST_SUCCESS: Row = Row {
    labels: &[
        MODEL_NAME,
        ENGINE,
        closed("finished_reason", &["stop", "length", "abort", "error", "repetition"]),
    ],
    ..row(
        "vllm.request_success",
        "vllm:request_success_total",
        Kind::Counter,
        "{request}",
        "2.1",
        "Finished requests by reason, one for each choice; aborted and failed ones included.",
    )
};
pub(super) const CACHE_CONFIG_INFO: Row = Row {
    labels: &[
        setting("block_size"),
        setting("user_specified_block_size"),
        setting("kv_cache_layout"),
        setting("prefix_match_unit"),
        setting("gpu_memory_utilization"),
        setting("cache_dtype"),
        setting("is_attention_free"),
        setting("num_gpu_blocks_override"),
        setting("sliding_window"),
        setting("enable_prefix_caching"),
        setting("prefix_caching_hash_algo"),
        setting("prefix_cache_retention_interval"),
        setting("kv_cache_dtype_skip_layers"),
        setting("mamba_page_size_padded"),
        setting("skip_page_size_padded"),
        setting("mamba_block_size"),
        setting("mamba_cache_dtype"),
        setting("mamba_ssm_cache_dtype"),
        setting("mamba_cache_mode"),
        setting("enable_mamba_shared_prefix_checkpoint"),
        setting("replayssm_buffer_len"),
        setting("use_replayssm"),
        setting("use_kda_recoverssm"),
        setting("num_gpu_blocks"),
        setting("num_cpu_blocks"),
        setting("simple_cpu_offload_num_blocks"),
        setting("effective_attention_block_size"),
        setting("kv_cache_size_tokens"),
        setting("kv_cache_max_concurrency"),
        setting("hash_block_size"),
        setting("cache_hit_alignment_tokens"),
        setting("kv_sharing_fast_prefill"),
        setting("swa_bounded_replay"),
        setting("kv_cache_memory_bytes"),
        setting("kv_offloading_size"),
        setting("kv_offloading_backend"),
        setting("_block_size_resolved"),
        ENGINE,
    ],
    ..row(
        "vllm.cache_config_info",
        "vllm:cache_config_info",
        Kind::Gauge,
        "1",
        "2.1",
        "Settings of the KV cache as labels, from run-time values; always 1.",
    )
};
pub(super) const PROMPT_TOKENS: Row = row(
    "vllm.prompt_tokens",
    "vllm:prompt_tokens_total",
    Kind::Counter,
    "{token}",
    "2.2",
    "Prompt tokens processed, cached ones included; added when a request gets its first token.",
);
pub(super) const PROMPT_TOKENS_BY_SOURCE: Row = Row {
    labels: &[
        MODEL_NAME,
        ENGINE,
        closed("source", &["local_compute", "local_cache_hit", "external_kv_transfer"]),
    ],
    ..row(
        "vllm.prompt_tokens_by_source",
        "vllm:prompt_tokens_by_source_total",
        Kind::Counter,
        "{token}",
        "2.2",
        "Prompt tokens processed, by where their KV came from.",
    )
};
pub(super) const PROMPT_TOKENS_CACHED: Row = row(
    "vllm.prompt_tokens_cached",
    "vllm:prompt_tokens_cached_total",
    Kind::Counter,
    "{token}",
    "2.2",
    "Prompt tokens processed whose KV was cached.",
);
pub(super) const GENERATION_TOKENS: Row = row(
    "vllm.generation_tokens",
    "vllm:generation_tokens_total",
    Kind::Counter,
    "{token}",
    "2.2",
    "Tokens generated.",
);
pub(super) const ITERATION_TOKENS_TOTAL: Row = row(
    "vllm.iteration_tokens_total",
    "vllm:iteration_tokens_total",
    Kind::Histogram(buckets::VLLM_ITERATION_TOKENS),
    "{token}",
    "2.2",
    "Tokens of one engine step: prompt tokens computed plus tokens generated.",
);
pub(super) const REQUEST_PROMPT_TOKENS: Row = row(
    "vllm.request_prompt_tokens",
    "vllm:request_prompt_tokens",
    TOKENS,
    "{token}",
    "2.2",
    "Prompt tokens processed for a finished request; 0 if it ended before its first token.",
);
pub(super) const REQUEST_GENERATION_TOKENS: Row = row(
    "vllm.request_generation_tokens",
    "vllm:request_generation_tokens",
    TOKENS,
    "{token}",
    "2.2",
    "Tokens generated for a finished request.",
);
pub(super) const REQUEST_MAX_NUM_GENERATION_TOKENS: Row = row(
    "vllm.request_max_num_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    TOKENS,
    "{token}",
    "2.2",
    "Tokens generated for the longest choice of a finished request.",
);
pub(super) const REQUEST_PARAMS_N: Row = row(
    "vllm.request_params_n",
    "vllm:request_params_n",
    Kind::Histogram(buckets::VLLM_PARAMS_N),
    "{choice}",
    "2.2",
    "The parameter n of a finished request.",
);
pub(super) const REQUEST_PARAMS_MAX_TOKENS: Row = row(
    "vllm.request_params_max_tokens",
    "vllm:request_params_max_tokens",
    TOKENS,
    "{token}",
    "2.2",
    "The effective max_tokens of a finished request.",
);
pub(super) const REQUEST_PREFILL_KV_COMPUTED_TOKENS: Row = row(
    "vllm.request_prefill_kv_computed_tokens",
    "vllm:request_prefill_kv_computed_tokens",
    TOKENS,
    "{token}",
    "2.2",
    "Prompt tokens of a finished request whose KV was computed rather than cached.",
);
pub(super) const REQUEST_NUM_PREEMPTIONS: Row = row(
    "vllm.request_num_preemptions",
    "vllm:request_num_preemptions",
    Kind::Histogram(buckets::VLLM_PREEMPTIONS),
    "{preemption}",
    "2.2",
    "Preemptions of a finished request.",
);
pub(super) const TIME_TO_FIRST_TOKEN_SECONDS: Row = row(
    "vllm.time_to_first_token_seconds",
    "vllm:time_to_first_token_seconds",
    Kind::Histogram(buckets::VLLM_FIRST_TOKEN),
    "s",
    "2.3",
    "From a request's arrival at the server to its first token.",
);
pub(super) const INTER_TOKEN_LATENCY_SECONDS: Row = row(
    "vllm.inter_token_latency_seconds",
    "vllm:inter_token_latency_seconds",
    Kind::Histogram(buckets::VLLM_INTER_TOKEN),
    "s",
    "2.3",
    "Between one step that brought a request tokens and the next; one sample for each gap.",
);
pub(super) const REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS: Row = row(
    "vllm.request_time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    Kind::Histogram(buckets::VLLM_INTER_TOKEN),
    "s",
    "2.3",
    "Decode time of a finished request over its tokens after the first; requests with two tokens or more.",
);
pub(super) const E2E_REQUEST_LATENCY_SECONDS: Row = row(
    "vllm.e2e_request_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    Kind::Histogram(buckets::VLLM_REQUEST),
    "s",
    "2.3",
    "From a request's arrival at the server to its end.",
);
pub(super) const REQUEST_QUEUE_TIME_SECONDS: Row = row(
    "vllm.request_queue_time_seconds",
    "vllm:request_queue_time_seconds",
    Kind::Histogram(buckets::VLLM_REQUEST),
    "s",
    "2.3",
    "From queued to first scheduled.",
);
pub(super) const REQUEST_INFERENCE_TIME_SECONDS: Row = row(
    "vllm.request_inference_time_seconds",
    "vllm:request_inference_time_seconds",
    Kind::Histogram(buckets::VLLM_REQUEST),
    "s",
    "2.3",
    "From first scheduled to last token, preemptions included.",
);
pub(super) const REQUEST_PREFILL_TIME_SECONDS: Row = row(
    "vllm.request_prefill_time_seconds",
    "vllm:request_prefill_time_seconds",
    Kind::Histogram(buckets::VLLM_REQUEST),
    "s",
    "2.3",
    "From first scheduled to first token.",
);
pub(super) const REQUEST_DECODE_TIME_SECONDS: Row = row(
    "vllm.request_decode_time_seconds",
    "vllm:request_decode_time_seconds",
    Kind::Histogram(buckets::VLLM_REQUEST),
    "s",
    "2.3",
    "From first to last token, preemptions included.",
);
pub(super) const PREFIX_CACHE_QUERIES: Row = row(
    "vllm.prefix_cache_queries",
    "vllm:prefix_cache_queries_total",
    Kind::Counter,
    "{token}",
    "2.4",
    "Tokens looked up in the prefix cache, at a request's first admission.",
);
pub(super) const PREFIX_CACHE_HITS: Row = row(
    "vllm.prefix_cache_hits",
    "vllm:prefix_cache_hits_total",
    Kind::Counter,
    "{token}",
    "2.4",
    "Tokens found in the prefix cache; only whole blocks are cached.",
);
pub(super) const MODEL_FORWARD_TIME_MILLISECONDS: Row = Row {
    labels: &[MODEL_NAME],
    status: Status::Revived,
    condition: Condition::DetailedModel,
    ..row(
        "vllm.model_forward_time_milliseconds",
        "vllm:model_forward_time_milliseconds",
        Kind::Histogram(buckets::MODEL_TIME_MILLISECONDS),
        "ms",
        "2.3",
        "Time in the forward pass on the device, summed over the steps that had the finished request.",
    )
};
pub(super) const MODEL_EXECUTE_TIME_MILLISECONDS: Row = Row {
    labels: &[MODEL_NAME],
    status: Status::Revived,
    condition: Condition::DetailedWorker,
    ..row(
        "vllm.model_execute_time_milliseconds",
        "vllm:model_execute_time_milliseconds",
        Kind::Histogram(buckets::MODEL_TIME_MILLISECONDS),
        "ms",
        "2.3",
        "Time from handing the batch to the device until its tokens are back, summed as above.",
    )
};

pub(crate) const ROWS: &[Row] = &[
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    NUM_REQUESTS_WAITING_BY_REASON,
    KV_CACHE_USAGE_PERC,
    NUM_PREEMPTIONS,
    REQUEST_SUCCESS,
    CACHE_CONFIG_INFO,
    PROMPT_TOKENS,
    PROMPT_TOKENS_BY_SOURCE,
    PROMPT_TOKENS_CACHED,
    GENERATION_TOKENS,
    ITERATION_TOKENS_TOTAL,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    REQUEST_MAX_NUM_GENERATION_TOKENS,
    REQUEST_PARAMS_N,
    REQUEST_PARAMS_MAX_TOKENS,
    REQUEST_PREFILL_KV_COMPUTED_TOKENS,
    REQUEST_NUM_PREEMPTIONS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    INTER_TOKEN_LATENCY_SECONDS,
    REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS,
    E2E_REQUEST_LATENCY_SECONDS,
    REQUEST_QUEUE_TIME_SECONDS,
    REQUEST_INFERENCE_TIME_SECONDS,
    REQUEST_PREFILL_TIME_SECONDS,
    REQUEST_DECODE_TIME_SECONDS,
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    MODEL_FORWARD_TIME_MILLISECONDS,
    MODEL_EXECUTE_TIME_MILLISECONDS,
];
