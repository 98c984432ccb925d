//! Requests for tests, on a clock that only the test moves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_sdk::trace::{InMemorySpanExporter, SimpleSpanProcessor, SpanData};

use crate::config::{
    ConfigError, DetailedTraces, MetricsDialect, MetricsSettings, TelemetryConfig, TelemetrySettings,
};
use crate::identity::{ModelIdentity, PoolIdentity};
use crate::observation::{
    FinishReason, PrefixCacheStats, RequestEvent, RequestEventKind, SchedulerStats, StepFinished, StepTimes,
    StepWork,
};
use crate::pipeline::{ModelTelemetry, Telemetry};
use crate::request::{
    Operation, RequestGuard, RequestOutcome, RequestParams, RequestProgress, RequestStarted,
};
use crate::trace::{HttpRequestStarted, HttpSpan, RequestLink};

pub(crate) const MODEL: &str = "tiny";

/// Resolves settings against a fixed environment.
pub(crate) fn resolve(
    settings: TelemetrySettings,
    variables: &[(&str, &str)],
) -> Result<TelemetryConfig, ConfigError> {
    TelemetryConfig::resolve(settings, &|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

pub(crate) fn detailed() -> TelemetrySettings {
    TelemetrySettings { collect_detailed_traces: vec![DetailedTraces::All], ..TelemetrySettings::default() }
}

/// Telemetry whose spans are kept in memory.
pub(crate) fn in_memory(
    settings: TelemetrySettings,
    variables: &[(&str, &str)],
) -> (Telemetry, InMemorySpanExporter) {
    let exporter = InMemorySpanExporter::default();
    let processor = SimpleSpanProcessor::new(exporter.clone());
    let config = resolve(settings, variables).expect("settings");
    let telemetry = Telemetry::start(config, vec![Box::new(processor)]).expect("telemetry");
    (telemetry, exporter)
}

/// Telemetry in all dialects, for scrapes only.
pub(crate) fn every_dialect() -> Telemetry {
    let metrics = MetricsSettings {
        dialects: vec![
            MetricsDialect::Vllm,
            MetricsDialect::GenAi,
            MetricsDialect::Limpid,
            MetricsDialect::Sglang,
        ],
        ..MetricsSettings::default()
    };
    let settings = TelemetrySettings { metrics, ..TelemetrySettings::default() };
    Telemetry::start(resolve(settings, &[]).expect("settings"), Vec::new()).expect("telemetry")
}

pub(crate) fn identity() -> ModelIdentity {
    ModelIdentity {
        model_name: MODEL.to_owned(),
        engine: 0,
        max_model_len: 100,
        max_num_seqs: 8,
        cache_config: vec![("block_size", "16".to_owned()), ("num_gpu_blocks", "64".to_owned())],
        pool: PoolIdentity { num_blocks: 63, block_size: 16, num_bytes: 1 << 30 },
        ..ModelIdentity::default()
    }
}

pub(crate) fn http(telemetry: &Telemetry, at: Instant, headers: &http::HeaderMap) -> Arc<HttpSpan> {
    telemetry.http_request(HttpRequestStarted {
        at,
        version: http::Version::HTTP_11,
        method: &http::Method::POST,
        route: Some("/v1/chat/completions"),
        path: "/v1/chat/completions",
        scheme: "http",
        headers,
        peer: Some("127.0.0.1:5".parse().unwrap()),
        server: Some("127.0.0.1:8000".parse().unwrap()),
    })
}

pub(crate) fn started(arrival: Instant) -> RequestStarted {
    RequestStarted {
        arrival,
        operation: Operation::Chat,
        id: "chatcmpl-7".to_owned(),
        num_prompt_tokens: 20,
        max_tokens: 16,
        params: RequestParams {
            temperature: Some(0.0),
            top_p: Some(0.5),
            max_tokens: Some(16),
            stream: true,
            ..RequestParams::default()
        },
    }
}

/// A request whose steps are given in milliseconds after its arrival.
pub(crate) struct Script {
    pub(crate) base: Instant,
    guard: RequestGuard,
    times: StepTimes,
}

impl Script {
    pub(crate) fn new(model: &ModelTelemetry, parent: Option<Arc<HttpSpan>>, base: Instant) -> Script {
        Script { base, guard: model.request(parent, started(base)), times: StepTimes::default() }
    }

    pub(crate) fn link(&self) -> Option<RequestLink> {
        self.guard.link()
    }

    fn at(&self, milliseconds: u64) -> Instant {
        self.base + Duration::from_millis(milliseconds)
    }

    /// One step that ended at `at` with these events and tokens.
    pub(crate) fn step(
        &mut self,
        at: u64,
        events: &[(u64, RequestEventKind)],
        num_new_tokens: u64,
    ) -> &mut Self {
        let events: Vec<RequestEvent> =
            events.iter().map(|&(at, kind)| RequestEvent { at: self.at(at), kind }).collect();
        self.times.add(StepTimes {
            scheduler: Duration::from_micros(100),
            forward: Some(Duration::from_millis(2)),
            execute: Duration::from_millis(3),
        });
        let at = self.at(at);
        self.guard.progress(RequestProgress {
            new_tokens_at: at,
            now: at,
            events: &events,
            num_new_tokens,
            times: self.times,
        });
        self
    }

    pub(crate) fn finish(self, at: u64, reason: FinishReason, error_type: Option<&'static str>) {
        let now = self.at(at);
        self.guard.finish(RequestOutcome { now, reason, error_type });
    }

    /// Queued at 1, scheduled at 10 with 16 cached tokens, first token at 30, two more by 50.
    pub(crate) fn three_tokens(&mut self) -> &mut Self {
        self.step(
            30,
            &[
                (1, RequestEventKind::Queued),
                (10, RequestEventKind::Scheduled { num_cached_tokens: 16 }),
                (30, RequestEventKind::PrefillChunk { num_tokens: 4 }),
            ],
            1,
        )
        .step(40, &[], 1)
        .step(50, &[], 1)
    }
}

pub(crate) fn step(base: Instant) -> StepFinished {
    StepFinished {
        started: base,
        finished: base + Duration::from_millis(5),
        scheduler: SchedulerStats {
            num_running: 3,
            num_waiting_capacity: 2,
            num_waiting_deferred: 1,
            kv_cache_usage: 0.25,
            windowed_kv_cache_usage: 0.0625,
            prefix_cache: PrefixCacheStats { requests: 1, queries: 20, hits: 16 },
            num_preemptions: 1,
            num_evictable_blocks: 8,
            num_evicted_blocks: 2,
            num_corrupted_requests: 0,
        },
        times: StepTimes::default(),
        num_prompt_tokens: 4,
        num_generation_tokens: 3,
        work: StepWork { flops: 100, bytes_read: 10, bytes_written: 1, num_context_tokens: 50 },
        apply: Duration::from_micros(10),
    }
}

pub(crate) fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key.as_str() == key)?;
    Some(attribute.value.as_str().into_owned())
}

/// One sample of a scrape by its name and label text, as `name{labels}`.
pub(crate) fn sample(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(series)?.strip_prefix(' ')?;
        rest.split(' ').next()?.parse().ok()
    })
}
