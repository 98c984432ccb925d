//! What recording costs the frontend: a step, a token, a whole request, and a scrape.
//!
//! The budget is 2 µs a step, 1 µs a token and 10 µs a finished request, with every dialect on and both
//! readers (scrape and push) attached.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use limpid_telemetry::observation::{
    FinishReason, RequestEvent, RequestEventKind, SchedulerStats, StepFinished, StepTimes, StepWork,
};
use limpid_telemetry::{
    HttpRequestStarted, HttpSpan, MetricsDialect, MetricsSettings, ModelIdentity, ModelTelemetry, Operation,
    RequestGuard, RequestOutcome, RequestParams, RequestProgress, RequestStarted, Telemetry, TelemetryConfig,
    TelemetrySettings,
};

/// Telemetry that pushes to nobody: a closed port on the loopback address.
fn telemetry(sampler: &'static str) -> (Telemetry, ModelTelemetry) {
    let settings = TelemetrySettings {
        otlp_traces_endpoint: Some("http://127.0.0.1:9".to_owned()),
        otlp_metrics_endpoint: Some("http://127.0.0.1:9".to_owned()),
        metrics: MetricsSettings {
            dialects: vec![
                MetricsDialect::Vllm,
                MetricsDialect::GenAi,
                MetricsDialect::Limpid,
                MetricsDialect::Sglang,
            ],
            ..MetricsSettings::default()
        },
        ..TelemetrySettings::default()
    };
    let environment = move |name: &str| (name == "OTEL_TRACES_SAMPLER").then(|| sampler.to_owned());
    let config = TelemetryConfig::resolve(settings, &environment).expect("settings");
    let telemetry = Telemetry::start(config, Vec::new()).expect("telemetry");
    let model = telemetry.model(ModelIdentity {
        model_name: "model".to_owned(),
        engine: 0,
        max_model_len: 8192,
        max_num_seqs: 128,
        ..ModelIdentity::default()
    });
    (telemetry, model)
}

fn open(telemetry: &Telemetry, model: &ModelTelemetry, at: Instant) -> (Arc<HttpSpan>, RequestGuard) {
    let http = telemetry.http_request(HttpRequestStarted {
        at,
        version: http::Version::HTTP_11,
        method: &http::Method::POST,
        route: Some("/v1/chat/completions"),
        path: "/v1/chat/completions",
        scheme: "http",
        headers: &http::HeaderMap::new(),
        peer: None,
        server: None,
    });
    let started = RequestStarted {
        arrival: at,
        operation: Operation::Chat,
        id: "chatcmpl-0123456789abcdef".to_owned(),
        num_prompt_tokens: 128,
        max_tokens: 128,
        params: RequestParams { temperature: Some(0.7), max_tokens: Some(128), ..RequestParams::default() },
    };
    let guard = model.request(Some(Arc::clone(&http)), started);
    (http, guard)
}

fn token(guard: &mut RequestGuard, at: Instant, events: &[RequestEvent]) {
    guard.progress(RequestProgress {
        new_tokens_at: at,
        now: at,
        events,
        num_new_tokens: 1,
        times: StepTimes::default(),
    });
}

fn recording(criterion: &mut Criterion) {
    let base = Instant::now();
    for (name, sampler) in [("sampled", "always_on"), ("unsampled", "always_off")] {
        let (telemetry, model) = telemetry(sampler);
        let step = StepFinished {
            started: base,
            finished: base,
            scheduler: SchedulerStats { num_running: 8, kv_cache_usage: 0.5, ..SchedulerStats::default() },
            times: StepTimes::default(),
            num_prompt_tokens: 0,
            num_generation_tokens: 8,
            work: StepWork::default(),
            apply: Duration::ZERO,
        };
        criterion.bench_function(&format!("step/{name}"), |bencher| {
            bencher.iter(|| model.step_finished(black_box(&step)));
        });

        let (_http, mut guard) = open(&telemetry, &model, base);
        let mut at = base;
        criterion.bench_function(&format!("token/{name}"), |bencher| {
            bencher.iter(|| {
                at += Duration::from_micros(50);
                token(&mut guard, black_box(at), &[]);
            });
        });

        let events = [
            RequestEvent { at: base + Duration::from_millis(1), kind: RequestEventKind::Queued },
            RequestEvent {
                at: base + Duration::from_millis(2),
                kind: RequestEventKind::Scheduled { num_cached_tokens: 64 },
            },
            RequestEvent {
                at: base + Duration::from_millis(9),
                kind: RequestEventKind::PrefillChunk { num_tokens: 64 },
            },
        ];
        criterion.bench_function(&format!("request/{name}"), |bencher| {
            bencher.iter(|| {
                let (http, mut guard) = open(&telemetry, &model, base);
                token(&mut guard, base + Duration::from_millis(9), &events);
                let now = base + Duration::from_millis(20);
                guard.finish(RequestOutcome { now, reason: FinishReason::Stop, error_type: None });
                http.responded(200, None);
            });
        });

        let prepare = || {
            let (http, mut guard) = open(&telemetry, &model, base);
            token(&mut guard, base + Duration::from_millis(9), &events);
            (http, guard)
        };
        criterion.bench_function(&format!("finish/{name}"), |bencher| {
            bencher.iter_batched(
                prepare,
                |(http, guard)| {
                    let now = base + Duration::from_millis(20);
                    guard.finish(RequestOutcome { now, reason: FinishReason::Stop, error_type: None });
                    http
                },
                criterion::BatchSize::SmallInput,
            );
        });

        for accept in [None, Some("application/openmetrics-text; version=1.0.0")] {
            let format = if accept.is_some() { "openmetrics" } else { "text" };
            criterion.bench_function(&format!("scrape-{format}/{name}"), |bencher| {
                bencher.iter(|| telemetry.render_metrics(black_box(accept)));
            });
        }
    }
}

criterion_group!(benches, recording);
criterion_main!(benches);
