//! SGLang's metrics, under its names, labels and buckets.
//!
//! Where SGLang refreshes gauges every so many batches, they are refreshed every step here. What SGLang declares
//! and never moves (`utilization`, `max_running_requests_under_SLO`) moves. Gauges carry no `pid`.

pub(crate) mod request_rows;
pub(crate) mod rows;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Dialect, attributes};
use crate::catalogue::Row;
use crate::identity::{ModelIdentity, PoolIdentity};
use crate::instruments::{Counter, Gauge, Histogram, Instruments};
use crate::lifecycle::{NewTokens, Preempted, RequestFinished};
use crate::load::EngineLoad;
use crate::observation::{FinishReason, StepFinished};

/// Steps, and requests, over which SGLang takes its momentary values.
const WINDOW: usize = 40;

/// A rate of the latest steps says nothing about an engine that has done nothing for this long.
const STALE: Duration = Duration::from_secs(1);

/// KV usage at which SGLang calls a pool full.
const FULL_USAGE: f64 = 0.9;

pub(super) struct Sglang {
    load: Arc<EngineLoad>,
    pool: PoolIdentity,
    num_running_reqs: Gauge,
    num_queue_reqs: Gauge,
    num_used_tokens: Gauge,
    token_usage: Gauge,
    full_token_usage: Gauge,
    swa_token_usage: Gauge,
    cache_hit_rate: Gauge,
    utilization: Gauge,
    num_retracted_reqs: Gauge,
    num_retracted_requests: Counter,
    num_retracted_input_tokens: Counter,
    num_retracted_output_tokens: Counter,
    kv_available_tokens: Gauge,
    kv_evictable_tokens: Gauge,
    kv_used_tokens: Gauge,
    decode_sum_seq_lens: Gauge,
    evicted_tokens: Counter,
    total_retracted_reqs: Gauge,
    avg_request_queue_latency: Gauge,
    window: Arc<Mutex<Window>>,

    realtime_compute: Counter,
    realtime_cache: Counter,
    realtime_decode: Counter,
    effective_input: Counter,
    effective_device_hit: Counter,

    /// By whether the client asked for a stream: yes, no.
    prompt_tokens: [Counter; 2],
    generation_tokens: [Counter; 2],
    num_requests: [Counter; 2],
    time_to_first_token: [Histogram; 2],
    time_per_output_token: [Histogram; 2],
    e2e_request_latency: [Histogram; 2],
    cached_tokens: Counter,
    num_aborted_requests: Counter,
    prompt_tokens_histogram: Histogram,
    uncached_prompt_tokens_histogram: Histogram,
    generation_tokens_histogram: Histogram,
    inter_token_latency: Histogram,
    queue_time: Histogram,
    queue_time_s: Histogram,
    stage_request_process: Histogram,
    stage_prefill_forward: Histogram,
}

/// What momentary values are taken from.
#[derive(Default)]
struct Window {
    /// Start, end, forward time and tokens of the latest steps that generated any.
    steps: VecDeque<(Instant, Instant, Duration, u64)>,
    queue_times: VecDeque<Duration>,
    num_preemptions: u64,
}

impl Window {
    /// Sum over the window's steps for each second of it; 0 once the engine is idle.
    fn per_second(&self, now: Instant, value: impl Fn(&(Instant, Instant, Duration, u64)) -> f64) -> f64 {
        let (Some(first), Some(last)) = (self.steps.front(), self.steps.back()) else { return 0.0 };
        let span = last.1.saturating_duration_since(first.0).as_secs_f64();
        if span <= 0.0 || now.saturating_duration_since(last.1) > STALE {
            return 0.0;
        }
        self.steps.iter().map(value).sum::<f64>() / span
    }
}

impl Sglang {
    pub(super) fn new(instruments: &Instruments, identity: &ModelIdentity, load: &Arc<EngineLoad>) -> Sglang {
        let base = |row: &Row| attributes(row, identity, &[]);
        let counter = |row| instruments.counter(row, base(row));
        let gauge = |row| instruments.gauge(row, base(row));
        let histogram = |row| instruments.histogram(row, identity.max_model_len, base(row));
        let chosen =
            |row, label, value| instruments.counter(row, attributes(row, identity, &[(label, value)]));
        let streaming_counter = |row| ["true", "false"].map(|value| chosen(row, "is_streaming", value));
        let chosen_histogram = |row, label, value| {
            let series = attributes(row, identity, &[(label, value)]);
            instruments.histogram(row, identity.max_model_len, series)
        };
        let streaming_histogram =
            |row| ["true", "false"].map(|value| chosen_histogram(row, "is_streaming", value));

        let window: Arc<Mutex<Window>> = Arc::default();
        let momentary = |row, read: fn(&Window, Instant) -> f64| {
            let window = Arc::clone(&window);
            instruments.observe_gauge(row, base(row), move || {
                read(&window.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
            });
        };
        momentary(&rows::GEN_THROUGHPUT, |window, now| window.per_second(now, |step| step.3 as f64));
        momentary(&rows::FWD_OCCUPANCY, |window, now| {
            (100.0 * window.per_second(now, |step| step.2.as_secs_f64())).min(100.0)
        });
        let batch = Arc::clone(load);
        let row = &rows::MAX_RUNNING_REQUESTS_UNDER_SLO;
        instruments.observe_gauge(row, base(row), move || batch.largest_batch_within_slo().unwrap_or(0.0));
        observe_constants(instruments, identity);
        // No tiers beyond the device; their series exist at 0 like every known one.
        for tier in ["host_hit", "storage_hit"] {
            chosen(&request_rows::PREFILL_EFFECTIVE_TOKENS, "mode", tier);
        }
        let realtime = |mode| chosen(&request_rows::REALTIME_TOKENS, "mode", mode);
        let stage = |stage| chosen_histogram(&request_rows::PER_STAGE_REQ_LATENCY, "stage", stage);
        Sglang {
            load: Arc::clone(load),
            pool: identity.pool,
            num_running_reqs: gauge(&rows::NUM_RUNNING_REQS),
            num_queue_reqs: gauge(&rows::NUM_QUEUE_REQS),
            num_used_tokens: gauge(&rows::NUM_USED_TOKENS),
            token_usage: gauge(&rows::TOKEN_USAGE),
            full_token_usage: gauge(&rows::FULL_TOKEN_USAGE),
            swa_token_usage: gauge(&rows::SWA_TOKEN_USAGE),
            cache_hit_rate: gauge(&rows::CACHE_HIT_RATE),
            utilization: gauge(&rows::UTILIZATION),
            num_retracted_reqs: gauge(&rows::NUM_RETRACTED_REQS),
            num_retracted_requests: counter(&rows::NUM_RETRACTED_REQUESTS),
            num_retracted_input_tokens: counter(&rows::NUM_RETRACTED_INPUT_TOKENS),
            num_retracted_output_tokens: counter(&rows::NUM_RETRACTED_OUTPUT_TOKENS),
            kv_available_tokens: {
                let available = gauge(&rows::KV_AVAILABLE_TOKENS);
                available.set((identity.pool.num_blocks * identity.pool.block_size) as f64);
                available
            },
            kv_evictable_tokens: gauge(&rows::KV_EVICTABLE_TOKENS),
            kv_used_tokens: gauge(&rows::KV_USED_TOKENS),
            decode_sum_seq_lens: gauge(&rows::DECODE_SUM_SEQ_LENS),
            evicted_tokens: counter(&request_rows::EVICTED_TOKENS),
            total_retracted_reqs: gauge(&request_rows::TOTAL_RETRACTED_REQS),
            avg_request_queue_latency: gauge(&request_rows::AVG_REQUEST_QUEUE_LATENCY),
            window,
            realtime_compute: realtime("prefill_compute"),
            realtime_cache: realtime("prefill_cache"),
            realtime_decode: realtime("decode"),
            effective_input: chosen(&request_rows::PREFILL_EFFECTIVE_TOKENS, "mode", "input"),
            effective_device_hit: chosen(&request_rows::PREFILL_EFFECTIVE_TOKENS, "mode", "device_hit"),
            prompt_tokens: streaming_counter(&request_rows::PROMPT_TOKENS),
            generation_tokens: streaming_counter(&request_rows::GENERATION_TOKENS),
            num_requests: streaming_counter(&request_rows::NUM_REQUESTS),
            time_to_first_token: streaming_histogram(&request_rows::TIME_TO_FIRST_TOKEN),
            time_per_output_token: streaming_histogram(&request_rows::TIME_PER_OUTPUT_TOKEN),
            e2e_request_latency: streaming_histogram(&request_rows::E2E_REQUEST_LATENCY),
            cached_tokens: chosen(&request_rows::CACHED_TOKENS, "cache_source", "device"),
            num_aborted_requests: counter(&request_rows::NUM_ABORTED_REQUESTS),
            prompt_tokens_histogram: histogram(&request_rows::PROMPT_TOKENS_HISTOGRAM),
            uncached_prompt_tokens_histogram: histogram(&request_rows::UNCACHED_PROMPT_TOKENS_HISTOGRAM),
            generation_tokens_histogram: histogram(&request_rows::GENERATION_TOKENS_HISTOGRAM),
            inter_token_latency: histogram(&request_rows::INTER_TOKEN_LATENCY),
            queue_time: histogram(&rows::QUEUE_TIME),
            queue_time_s: histogram(&request_rows::QUEUE_TIME_S),
            stage_request_process: stage("request_process"),
            stage_prefill_forward: stage("prefill_forward"),
        }
    }

    fn window(&self, update: impl FnOnce(&mut Window)) {
        update(&mut self.window.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What is known once the engine is ready.
fn observe_constants(instruments: &Instruments, identity: &ModelIdentity) {
    let set = |row: &Row, value: f64| instruments.gauge(row, attributes(row, identity, &[])).set(value);
    let gibibytes = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let pool = identity.pool;
    set(&rows::MAX_TOTAL_NUM_TOKENS, (pool.num_blocks * pool.block_size) as f64);
    set(&rows::WEIGHT_MEMORY_USAGE_GB, gibibytes(identity.weight_bytes));
    set(&rows::KV_CACHE_MEMORY_USAGE_GB, gibibytes(pool.num_bytes));
    set(&rows::PAGE_SIZE, pool.block_size as f64);
    set(&rows::NUM_PAGES, pool.num_blocks as f64);
    set(&rows::CONTEXT_LEN, identity.max_model_len as f64);
    let startup = identity.startup;
    for (phase, old, time) in [
        ("load_weight", &request_rows::ENGINE_LOAD_WEIGHTS_TIME, startup.load_weights),
        ("scheduler_e2e", &request_rows::ENGINE_STARTUP_TIME, startup.total),
    ] {
        let Some(time) = time else { continue };
        let row = &request_rows::STARTUP_TIME;
        instruments.gauge(row, attributes(row, identity, &[("phase", phase)])).set(time.as_secs_f64());
        set(old, time.as_secs_f64());
    }
}

impl Dialect for Sglang {
    fn step_finished(&self, step: &StepFinished) {
        let scheduler = &step.scheduler;
        let usage = scheduler.kv_cache_usage;
        let block_size = self.pool.block_size as f64;
        let used = (usage * self.pool.num_blocks as f64).round() * block_size;
        let evictable = scheduler.num_evictable_blocks as f64 * block_size;
        self.num_running_reqs.set(scheduler.num_running as f64);
        self.num_queue_reqs.set((scheduler.num_waiting_capacity + scheduler.num_waiting_deferred) as f64);
        self.num_used_tokens.set(used);
        self.kv_used_tokens.set(used);
        self.kv_evictable_tokens.set(evictable);
        let capacity = self.pool.num_blocks as f64 * block_size;
        self.kv_available_tokens.set((capacity - used - evictable).max(0.0));
        self.token_usage.set((usage * 100.0).round() / 100.0);
        self.full_token_usage.set(usage - scheduler.windowed_kv_cache_usage);
        self.swa_token_usage.set(scheduler.windowed_kv_cache_usage);
        let under_slo = self.load.largest_batch_within_slo();
        let slots = under_slo.map_or(0.0, |largest| scheduler.num_running as f64 / largest.max(1.0));
        self.utilization.set(slots.max(usage / FULL_USAGE));
        let cache = scheduler.prefix_cache;
        if cache.queries > 0 {
            self.cache_hit_rate.set(cache.hits as f64 / cache.queries as f64);
        }
        self.effective_input.add(cache.queries.saturating_sub(cache.hits));
        self.effective_device_hit.add(cache.hits);
        self.realtime_compute.add(step.num_prompt_tokens);
        self.realtime_cache.add(cache.hits);
        self.realtime_decode.add(step.num_generation_tokens);
        self.evicted_tokens.add(scheduler.num_evicted_blocks * self.pool.block_size as u64);
        self.num_retracted_reqs.set(scheduler.num_preemptions as f64);
        self.num_retracted_requests.add(scheduler.num_preemptions);
        if step.num_prompt_tokens == 0 && step.num_generation_tokens > 0 {
            self.decode_sum_seq_lens.set(step.work.num_context_tokens as f64);
        }
        self.window(|window| {
            window.num_preemptions += scheduler.num_preemptions;
            self.total_retracted_reqs.set(window.num_preemptions as f64);
            if step.num_generation_tokens > 0 {
                let forward = step.times.forward.unwrap_or_default();
                window.steps.push_back((step.started, step.finished, forward, step.num_generation_tokens));
                if window.steps.len() > WINDOW {
                    window.steps.pop_front();
                }
            }
        });
    }

    fn new_tokens(&self, tokens: &NewTokens) {
        if let Some(first) = &tokens.first {
            let seconds = first.time_to_first_token.as_secs_f64();
            self.time_to_first_token[usize::from(!tokens.is_streaming)].record(seconds, tokens.link);
        }
        if let Some(gap) = tokens.inter_token {
            let share = gap.as_secs_f64() / tokens.num_new_tokens as f64;
            for _ in 0..tokens.num_new_tokens {
                self.inter_token_latency.record(share, tokens.link);
            }
        }
    }

    fn request_finished(&self, request: &RequestFinished) {
        let streaming = usize::from(!request.is_streaming);
        let link = request.link;
        let cached = request.num_cached_tokens.unwrap_or(0);
        self.prompt_tokens[streaming].add(request.num_prompt_tokens);
        self.generation_tokens[streaming].add(request.num_generation_tokens);
        self.num_requests[streaming].add(1);
        self.cached_tokens.add(cached);
        self.prompt_tokens_histogram.record(request.num_prompt_tokens as f64, None);
        self.uncached_prompt_tokens_histogram.record((request.num_prompt_tokens - cached) as f64, None);
        self.generation_tokens_histogram.record(request.num_generation_tokens as f64, None);
        self.e2e_request_latency[streaming].record(request.e2e.as_secs_f64(), link);
        match request.reason {
            FinishReason::Abort => self.num_aborted_requests.add(1),
            FinishReason::Stop | FinishReason::Length => {
                if let Some(interval) = request.time_per_output_token {
                    self.time_per_output_token[streaming].record(interval.as_secs_f64(), link);
                }
            }
            FinishReason::Error | FinishReason::Repetition => {}
        }
        for (histogram, interval) in [
            (&self.queue_time, request.queue),
            (&self.queue_time_s, request.queue),
            (&self.stage_request_process, request.before_queue),
            (&self.stage_prefill_forward, request.prefill),
        ] {
            if let Some(interval) = interval {
                histogram.record(interval.as_secs_f64(), link);
            }
        }
        if let Some(queue) = request.queue {
            self.window(|window| {
                window.queue_times.push_back(queue);
                if window.queue_times.len() > WINDOW {
                    window.queue_times.pop_front();
                }
                let mean = window.queue_times.iter().sum::<Duration>() / window.queue_times.len() as u32;
                self.avg_request_queue_latency.set(mean.as_secs_f64());
            });
        }
    }

    fn preempted(&self, preempted: &Preempted) {
        self.num_retracted_input_tokens.add(preempted.num_prompt_tokens);
        self.num_retracted_output_tokens.add(preempted.num_generation_tokens);
    }
}
