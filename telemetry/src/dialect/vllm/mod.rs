//! vLLM's metrics, under its names, labels and buckets.
//!
//! Moments are those of vLLM V1 (see [`rows`]), with these deliberate differences:
//!
//! - A request that its client gave up is a finished request like any other: `request_success` with reason
//!   `abort`, and every histogram. vLLM forgets it.
//! - An interval that does not exist is not observed. vLLM observes 0, a negative number, or the clock.
//! - `iteration_tokens_total` gets one sample for each step that computed anything, with the tokens of that
//!   step. vLLM adds a prompt that was computed in chunks to its last step, and leaves the other steps out.
//! - `corrupted_requests` is always there, because the sampler always looks; such a request ends with an error.
//! - `lora_requests_info` is there without adapters, as one series that says so.
//! - `num_preemptions` counts a preemption in the step it happens, from the scheduler's own statistics, so
//!   that one of a request which never produces another token is not missed.
//!
//! **The books balance.** With every request ended, for any mix of ends:
//! `Σ request_success` = count of `e2e_request_latency_seconds`, `request_prompt_tokens`,
//! `request_generation_tokens` and the other per-request token histograms;
//! `prompt_tokens_total` = sum of `request_prompt_tokens` = `Σ prompt_tokens_by_source`;
//! `generation_tokens_total` = sum of `request_generation_tokens`.
//! `prompt_tokens_total` takes a prompt in when its first token comes, as in vLLM, so a request that ends
//! before that has processed no prompt: it is observed as 0 in `request_prompt_tokens`. So counts balance as
//! well as sums, and `rate(prompt_tokens_total)` stays an honest prefill throughput.

pub(crate) mod cache_rows;
pub(crate) mod http;
pub(crate) mod process;
pub(crate) mod rows;
pub(crate) mod server_rows;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::{Dialect, attributes};
use crate::catalogue::Row;
use crate::identity::ModelIdentity;
use crate::instruments::{Counter, Gauge, Histogram, Instruments};
use crate::lifecycle::{NewTokens, ParentFinished, RequestFinished};
use crate::observation::{
    AdmissionLimit, BlockResidency, FinishReason, SleepOperation, SleepState, StepFinished,
};

/// Label values of `engine_sleep_state`, with the state that each stands for.
const SLEEP_STATES: [(&str, SleepState); 3] = [
    ("awake", SleepState::Awake),
    ("weights_offloaded", SleepState::WeightsOffloaded),
    ("discard_all", SleepState::DiscardAll),
];

pub(super) struct Vllm {
    num_requests_running: Gauge,
    num_requests_waiting: Gauge,
    waiting_capacity: Gauge,
    waiting_deferred: Gauge,
    kv_cache_usage_perc: Gauge,
    num_preemptions: Counter,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    prompt_tokens_cached_on_device: Counter,
    iteration_tokens: Histogram,
    corrupted_requests: Counter,
    admission_rejections: [Counter; AdmissionLimit::ALL.len()],
    sleep_states: [Gauge; SLEEP_STATES.len()],
    sleep_operations: [Histogram; SleepOperation::ALL.len()],
    sleep_operations_in_flight: [Arc<AtomicU64>; SleepOperation::ALL.len()],
    estimated_flops: Counter,
    estimated_read_bytes: Counter,
    estimated_write_bytes: Counter,
    kv_block_lifetime: Histogram,
    kv_block_idle_before_evict: Histogram,
    kv_block_reuse_gap: Histogram,

    prompt_tokens: Counter,
    prompt_tokens_local_compute: Counter,
    prompt_tokens_local_cache_hit: Counter,
    prompt_tokens_cached: Counter,
    generation_tokens: Counter,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,

    request_success: [Counter; FinishReason::ALL.len()],
    e2e_request_latency: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    time_per_output_token: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_num_generation_tokens: Histogram,
    request_params_max_tokens: Histogram,
    request_params_n: Histogram,
    request_num_preemptions: Histogram,
    request_prefill_kv_computed_tokens: Histogram,
    model_forward_time: Histogram,
    model_execute_time: Histogram,
}

impl Vllm {
    pub(super) fn new(instruments: &Instruments, identity: &ModelIdentity) -> Vllm {
        let base = |row: &Row| attributes(row, identity, &[]);
        let counter = |row| instruments.counter(row, base(row));
        let gauge = |row| instruments.gauge(row, base(row));
        let histogram = |row| instruments.histogram(row, identity.max_model_len, base(row));
        let chosen =
            |row, label, value| instruments.counter(row, attributes(row, identity, &[(label, value)]));
        gauge(&rows::CACHE_CONFIG_INFO).set(1.0);
        // No adapter is served: one series that says so, written when serving began.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        gauge(&cache_rows::LORA_REQUESTS_INFO).set(now.as_secs() as f64);
        let source = |source| chosen(&rows::PROMPT_TOKENS_BY_SOURCE, "source", source);
        let cached = |source| chosen(&cache_rows::PROMPT_TOKENS_CACHED_BY_SOURCE, "source", source);
        let waiting = |reason| {
            let row = &rows::NUM_REQUESTS_WAITING_BY_REASON;
            instruments.gauge(row, attributes(row, identity, &[("reason", reason)]))
        };
        let sleep_states = SLEEP_STATES.map(|(value, _)| {
            let row = &cache_rows::ENGINE_SLEEP_STATE;
            instruments.gauge(row, attributes(row, identity, &[("sleep_state", value)]))
        });
        sleep_states[0].set(1.0);
        let sleep_operation = |operation| {
            let row = &cache_rows::SLEEP_MODE_OPERATION_DURATION;
            let series = attributes(row, identity, &[("operation", operation)]);
            instruments.histogram(row, identity.max_model_len, series)
        };
        let sleep_operation_in_flight = |operation| {
            let row = &cache_rows::SLEEP_MODE_OPERATIONS_IN_FLIGHT;
            let count = Arc::new(AtomicU64::new(0));
            let read = Arc::clone(&count);
            let series = attributes(row, identity, &[("operation", operation)]);
            // The series have no label for the engine, and an operation is for all engines.
            if identity.engine == 0 {
                instruments.observe_gauge(row, series, move || read.load(Ordering::Relaxed) as f64);
            }
            count
        };
        sleep_operation("release_kv_cache_memory");
        sleep_operation_in_flight("release_kv_cache_memory");
        // No connector brings KV from elsewhere and no model takes images; their series exist at 0 like every
        // known one.
        source("external_kv_transfer");
        for tier in ["host", "p2p", "disk", "external_unspecified"] {
            cached(tier);
        }
        for row in [
            &cache_rows::EXTERNAL_PREFIX_CACHE_QUERIES,
            &cache_rows::EXTERNAL_PREFIX_CACHE_HITS,
            &cache_rows::MM_CACHE_QUERIES,
            &cache_rows::MM_CACHE_HITS,
        ] {
            counter(row);
        }
        Vllm {
            num_requests_running: gauge(&rows::NUM_REQUESTS_RUNNING),
            num_requests_waiting: gauge(&rows::NUM_REQUESTS_WAITING),
            waiting_capacity: waiting("capacity"),
            waiting_deferred: waiting("deferred"),
            kv_cache_usage_perc: gauge(&rows::KV_CACHE_USAGE_PERC),
            num_preemptions: counter(&rows::NUM_PREEMPTIONS),
            prefix_cache_queries: counter(&rows::PREFIX_CACHE_QUERIES),
            prefix_cache_hits: counter(&rows::PREFIX_CACHE_HITS),
            prompt_tokens_cached_on_device: cached("device"),
            corrupted_requests: counter(&cache_rows::CORRUPTED_REQUESTS),
            admission_rejections: AdmissionLimit::ALL
                .map(|limit| chosen(&cache_rows::ADMISSION_REJECTIONS, "reason", limit.as_str())),
            sleep_states,
            sleep_operations: SleepOperation::ALL.map(|operation| sleep_operation(operation.as_str())),
            sleep_operations_in_flight: SleepOperation::ALL
                .map(|operation| sleep_operation_in_flight(operation.as_str())),
            estimated_flops: counter(&cache_rows::ESTIMATED_FLOPS),
            estimated_read_bytes: counter(&cache_rows::ESTIMATED_READ_BYTES),
            estimated_write_bytes: counter(&cache_rows::ESTIMATED_WRITE_BYTES),
            kv_block_lifetime: histogram(&cache_rows::KV_BLOCK_LIFETIME),
            kv_block_idle_before_evict: histogram(&cache_rows::KV_BLOCK_IDLE_BEFORE_EVICT),
            kv_block_reuse_gap: histogram(&cache_rows::KV_BLOCK_REUSE_GAP),
            iteration_tokens: histogram(&rows::ITERATION_TOKENS_TOTAL),
            prompt_tokens: counter(&rows::PROMPT_TOKENS),
            prompt_tokens_local_compute: source("local_compute"),
            prompt_tokens_local_cache_hit: source("local_cache_hit"),
            prompt_tokens_cached: counter(&rows::PROMPT_TOKENS_CACHED),
            generation_tokens: counter(&rows::GENERATION_TOKENS),
            time_to_first_token: histogram(&rows::TIME_TO_FIRST_TOKEN_SECONDS),
            inter_token_latency: histogram(&rows::INTER_TOKEN_LATENCY_SECONDS),
            request_success: FinishReason::ALL
                .map(|reason| chosen(&rows::REQUEST_SUCCESS, "finished_reason", reason.as_str())),
            e2e_request_latency: histogram(&rows::E2E_REQUEST_LATENCY_SECONDS),
            queue_time: histogram(&rows::REQUEST_QUEUE_TIME_SECONDS),
            prefill_time: histogram(&rows::REQUEST_PREFILL_TIME_SECONDS),
            decode_time: histogram(&rows::REQUEST_DECODE_TIME_SECONDS),
            inference_time: histogram(&rows::REQUEST_INFERENCE_TIME_SECONDS),
            time_per_output_token: histogram(&rows::REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS),
            request_prompt_tokens: histogram(&rows::REQUEST_PROMPT_TOKENS),
            request_generation_tokens: histogram(&rows::REQUEST_GENERATION_TOKENS),
            request_max_num_generation_tokens: histogram(&rows::REQUEST_MAX_NUM_GENERATION_TOKENS),
            request_params_max_tokens: histogram(&rows::REQUEST_PARAMS_MAX_TOKENS),
            request_params_n: histogram(&rows::REQUEST_PARAMS_N),
            request_num_preemptions: histogram(&rows::REQUEST_NUM_PREEMPTIONS),
            request_prefill_kv_computed_tokens: histogram(&rows::REQUEST_PREFILL_KV_COMPUTED_TOKENS),
            model_forward_time: histogram(&rows::MODEL_FORWARD_TIME_MILLISECONDS),
            model_execute_time: histogram(&rows::MODEL_EXECUTE_TIME_MILLISECONDS),
        }
    }
}

impl Dialect for Vllm {
    fn step_finished(&self, step: &StepFinished) {
        let scheduler = &step.scheduler;
        self.num_requests_running.set(scheduler.num_running as f64);
        self.num_requests_waiting
            .set((scheduler.num_waiting_capacity + scheduler.num_waiting_deferred) as f64);
        self.waiting_capacity.set(scheduler.num_waiting_capacity as f64);
        self.waiting_deferred.set(scheduler.num_waiting_deferred as f64);
        self.kv_cache_usage_perc.set(scheduler.kv_cache_usage);
        self.num_preemptions.add(scheduler.num_preemptions);
        self.prefix_cache_queries.add(scheduler.prefix_cache.queries);
        self.prefix_cache_hits.add(scheduler.prefix_cache.hits);
        self.prompt_tokens_cached_on_device.add(scheduler.prefix_cache.hits);
        self.corrupted_requests.add(scheduler.num_corrupted_requests);
        self.estimated_flops.add(step.work.flops);
        self.estimated_read_bytes.add(step.work.bytes_read);
        self.estimated_write_bytes.add(step.work.bytes_written);
        let tokens = step.num_prompt_tokens + step.num_generation_tokens;
        if tokens > 0 {
            self.iteration_tokens.record(tokens as f64, None);
        }
    }

    fn new_tokens(&self, tokens: &NewTokens) {
        self.generation_tokens.add(tokens.num_new_tokens);
        if let Some(first) = &tokens.first {
            self.prompt_tokens.add(first.num_prompt_tokens);
            self.prompt_tokens_local_compute.add(first.num_prompt_tokens - first.num_cached_tokens);
            self.prompt_tokens_local_cache_hit.add(first.num_cached_tokens);
            self.prompt_tokens_cached.add(first.num_cached_tokens);
            self.time_to_first_token.record(first.time_to_first_token.as_secs_f64(), tokens.link);
        }
        if let Some(gap) = tokens.inter_token {
            self.inter_token_latency.record(gap.as_secs_f64(), tokens.link);
        }
    }

    fn request_finished(&self, request: &RequestFinished) {
        let link = request.link;
        self.request_success[request.reason as usize].add(1);
        self.e2e_request_latency.record(request.e2e.as_secs_f64(), link);
        for (histogram, interval) in [
            (&self.queue_time, request.queue),
            (&self.prefill_time, request.prefill),
            (&self.decode_time, request.decode),
            (&self.inference_time, request.inference),
            (&self.time_per_output_token, request.time_per_output_token),
        ] {
            if let Some(interval) = interval {
                histogram.record(interval.as_secs_f64(), link);
            }
        }
        self.request_prompt_tokens.record(request.num_processed_prompt_tokens as f64, None);
        self.request_generation_tokens.record(request.num_generation_tokens as f64, None);
        self.request_params_max_tokens.record(request.max_tokens as f64, None);
        self.request_num_preemptions.record(request.num_preemptions as f64, None);
        self.request_prefill_kv_computed_tokens.record(request.num_prefill_computed_tokens as f64, None);
        if let Some(times) = &request.times {
            if let Some(forward) = times.forward {
                self.model_forward_time.record(forward.as_secs_f64() * 1e3, link);
            }
            self.model_execute_time.record(times.execute.as_secs_f64() * 1e3, link);
        }
    }

    fn blocks_evicted(&self, blocks: &[BlockResidency]) {
        for block in blocks {
            self.kv_block_lifetime.record(block.lifetime.as_secs_f64(), None);
            self.kv_block_idle_before_evict.record(block.idle.as_secs_f64(), None);
            for gap in &block.reuse_gaps {
                self.kv_block_reuse_gap.record(gap.as_secs_f64(), None);
            }
        }
    }

    fn parent_finished(&self, parent: &ParentFinished) {
        self.request_params_n.record(parent.n as f64, None);
        self.request_max_num_generation_tokens.record(parent.max_num_generation_tokens as f64, None);
    }

    fn admission_rejected(&self, limit: AdmissionLimit) {
        self.admission_rejections[limit as usize].add(1);
    }

    fn sleep_state_changed(&self, state: SleepState) {
        for (gauge, (_, meant)) in self.sleep_states.iter().zip(SLEEP_STATES) {
            gauge.set(f64::from(u8::from(meant == state)));
        }
    }

    fn sleep_operation_started(&self, operation: SleepOperation) {
        self.sleep_operations_in_flight[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn sleep_operation_ended(&self, operation: SleepOperation, took: Duration) {
        self.sleep_operations_in_flight[operation as usize].fetch_sub(1, Ordering::Relaxed);
        self.sleep_operations[operation as usize].record(took.as_secs_f64(), None);
    }
}
