//! Golden spans: one request for every way to end.

use std::time::{Duration, Instant, SystemTime};

use opentelemetry::Value;
use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};

use crate::config::TelemetrySettings;
use crate::fixtures::{MODEL, Script, attribute, detailed, http, identity, in_memory, started};
use crate::observation::{FinishReason, RequestEventKind as Kind};
use crate::pipeline::Telemetry;
use crate::semconv::SpanSpec;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Runs one request below one HTTP request and gives its spans: HTTP span, model span, children by start.
fn spans_of(
    settings: TelemetrySettings,
    status: u16,
    run: impl FnOnce(Script),
) -> (SpanData, SpanData, Vec<SpanData>) {
    let (telemetry, exporter) = in_memory(settings, &[]);
    let base = Instant::now() - Duration::from_secs(1);
    let span = http(&telemetry, base, &http::HeaderMap::new());
    run(Script::new(&telemetry.model(identity()), Some(span.clone()), base));
    span.responded(status, None);
    drop(span);
    sorted(&telemetry, &exporter)
}

fn sorted(telemetry: &Telemetry, exporter: &InMemorySpanExporter) -> (SpanData, SpanData, Vec<SpanData>) {
    let _ = telemetry;
    let mut spans = exporter.get_finished_spans().unwrap();
    check(&spans);
    let server = spans.iter().position(|span| span.span_kind == SpanKind::Server).unwrap();
    assert_eq!(server, spans.len() - 1, "the HTTP span ends last");
    let server = spans.remove(server);
    let model = spans.iter().position(|span| span.name.contains(' ')).unwrap();
    let model = spans.remove(model);
    spans.sort_by_key(|span| span.start_time);
    (server, model, spans)
}

fn spec(span: &SpanData) -> &'static SpanSpec {
    let kind = format!("{:?}", span.span_kind).to_uppercase();
    let keys: Vec<&str> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    SpanSpec::of(&span.name, &kind, &keys).unwrap_or_else(|| panic!("{} is not declared", span.name))
}

/// Nothing undeclared, children inside parents, one trace, no orphans; all gaps at once.
pub(crate) fn check(spans: &[SpanData]) {
    let mut gaps = Vec::new();
    for span in spans {
        let spec = spec(span);
        let kind = format!("{:?}", span.span_kind).to_uppercase();
        if kind != spec.kind {
            gaps.push(format!("{}: kind {kind}", span.name));
        }
        for attribute in &span.attributes {
            if !spec.attributes.iter().any(|(key, _)| *key == attribute.key.as_str()) {
                gaps.push(format!("{}: undeclared {}", span.name, attribute.key));
            }
            let same = span.attributes.iter().filter(|other| other.key == attribute.key).count();
            if same > 1 {
                gaps.push(format!("{}: {} twice", span.name, attribute.key));
            }
        }
        for event in span.events.iter() {
            if !spec.events.iter().any(|(name, _)| *name == event.name) {
                gaps.push(format!("{}: undeclared event {}", span.name, event.name));
            }
            if event.timestamp < span.start_time || event.timestamp > span.end_time {
                gaps.push(format!("{}: event {} outside", span.name, event.name));
            }
        }
        for (key, when) in spec.attributes {
            if *when == "always" && attribute(span, key).is_none() {
                gaps.push(format!("{}: no {key}", span.name));
            }
        }
        if span.end_time < span.start_time {
            gaps.push(format!("{}: ends before it starts", span.name));
        }
        if span.span_kind != SpanKind::Server && span.parent_span_id != SpanId::INVALID {
            match spans.iter().find(|parent| parent.span_context.span_id() == span.parent_span_id) {
                None => gaps.push(format!("{}: orphan", span.name)),
                Some(parent) => {
                    if parent.start_time > span.start_time || parent.end_time < span.end_time {
                        gaps.push(format!("{} is not inside {}", span.name, parent.name));
                    }
                    if parent.span_context.trace_id() != span.span_context.trace_id() {
                        gaps.push(format!("{}: another trace than {}", span.name, parent.name));
                    }
                }
            }
        }
    }
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}

fn milliseconds(from: SystemTime, to: SystemTime) -> u128 {
    to.duration_since(from).unwrap().as_millis()
}

/// Children as `name from-to`, in milliseconds after the model span's start.
fn outline(model: &SpanData, children: &[SpanData]) -> Vec<String> {
    children
        .iter()
        .map(|child| {
            let from = milliseconds(model.start_time, child.start_time);
            let to = milliseconds(model.start_time, child.end_time);
            format!("{} {from}-{to}", child.name)
        })
        .collect()
}

fn event_names(span: &SpanData) -> Vec<&str> {
    span.events.iter().map(|event| event.name.as_ref()).collect()
}

fn number(span: &SpanData, key: &str) -> f64 {
    let attribute = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    match attribute.unwrap_or_else(|| panic!("no {key}")).value {
        Value::F64(value) => value,
        Value::I64(value) => value as f64,
        ref other => panic!("{key} is {other:?}"),
    }
}

#[test]
fn a_finished_request_has_its_tree_and_every_latency() {
    let (server, model, children) = spans_of(detailed(), 200, |mut script| {
        script.three_tokens();
        script.finish(51, FinishReason::Stop, None);
    });
    assert_eq!(server.name, "POST /v1/chat/completions");
    assert_eq!(attribute(&server, "http.response.status_code").unwrap(), "200");
    assert_eq!(attribute(&server, "server.port").unwrap(), "8000");
    assert_eq!(server.status, Status::Unset);
    assert_eq!(model.name, format!("chat {MODEL}"));
    assert_eq!(model.parent_span_id, server.span_context.span_id());
    assert_eq!(model.status, Status::Unset);
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "limpid"),
        ("gen_ai.request.model", MODEL),
        ("gen_ai.response.model", MODEL),
        ("gen_ai.response.id", "chatcmpl-7"),
        ("gen_ai.request.id", "chatcmpl-7"),
        ("gen_ai.request.stream", "true"),
        ("gen_ai.response.finish_reasons", "[\"stop\"]"),
        ("gen_ai.usage.input_tokens", "20"),
        ("gen_ai.usage.output_tokens", "3"),
        ("gen_ai.usage.cache_read.input_tokens", "16"),
        ("gen_ai.request.max_tokens", "16"),
        ("limpid.request.num_preemptions", "0"),
    ] {
        assert_eq!(attribute(&model, key).as_deref(), Some(value), "{key}");
    }
    for (key, seconds) in [
        ("gen_ai.request.temperature", 0.0),
        ("gen_ai.request.top_p", 0.5),
        ("gen_ai.latency.time_in_queue", 0.009),
        ("gen_ai.latency.time_to_first_token", 0.030),
        ("gen_ai.response.time_to_first_chunk", 0.030),
        ("gen_ai.latency.e2e", 0.051),
        ("gen_ai.latency.time_in_model_prefill", 0.020),
        ("gen_ai.latency.time_in_model_decode", 0.020),
        ("gen_ai.latency.time_in_model_inference", 0.040),
        ("gen_ai.latency.time_in_scheduler", 0.0003),
        ("gen_ai.latency.time_in_model_forward", 0.006),
        ("gen_ai.latency.time_in_model_execute", 0.009),
    ] {
        assert!((number(&model, key) - seconds).abs() < 1e-9, "{key} is {}", number(&model, key));
    }
    assert_eq!(outline(&model, &children), ["queue 1-10", "prefill 10-30", "decode 30-50"]);
    assert_eq!(event_names(&children[1]), ["chunk"]);
    assert_eq!(attribute(&children[1], "limpid.prefill.cached_tokens").unwrap(), "16");
    assert!(event_names(&children[2]).is_empty());
}

#[test]
fn detailed_times_are_absent_unless_asked_for() {
    let (_, model, _) = spans_of(TelemetrySettings::default(), 200, |mut script| {
        script.three_tokens();
        script.finish(51, FinishReason::Length, None);
    });
    assert!(attribute(&model, "gen_ai.latency.time_in_scheduler").is_some());
    assert_eq!(attribute(&model, "gen_ai.latency.time_in_model_forward"), None);
    assert_eq!(attribute(&model, "gen_ai.latency.time_in_model_execute"), None);
    assert!(!model.attributes.iter().any(|attribute| attribute.key.as_str().contains("prompt_tokens")));
}

#[test]
fn a_request_aborted_in_its_queue_has_a_queue_span_and_no_interval() {
    let (_, model, children) = spans_of(detailed(), 200, |mut script| {
        script.step(5, &[(1, Kind::Queued)], 0);
        script.finish(8, FinishReason::Abort, None);
    });
    assert_eq!(model.status, Status::Unset, "the client went away, nothing failed");
    assert_eq!(attribute(&model, "gen_ai.response.finish_reasons").unwrap(), "[\"abort\"]");
    assert_eq!(outline(&model, &children), ["queue 1-8"]);
    let latencies: Vec<&str> = model
        .attributes
        .iter()
        .map(|attribute| attribute.key.as_str())
        .filter(|key| key.starts_with("gen_ai.latency."))
        .collect();
    assert_eq!(latencies, ["gen_ai.latency.e2e"]);
}

#[test]
fn a_request_aborted_in_its_prefill_has_a_prefill_span_up_to_its_end() {
    let (_, model, children) = spans_of(detailed(), 200, |mut script| {
        script.step(
            20,
            &[
                (1, Kind::Queued),
                (10, Kind::Scheduled { num_cached_tokens: 0 }),
                (20, Kind::PrefillChunk { num_tokens: 8 }),
            ],
            0,
        );
        script.finish(25, FinishReason::Abort, None);
    });
    assert_eq!(outline(&model, &children), ["queue 1-10", "prefill 10-25"]);
    assert!(attribute(&model, "gen_ai.latency.time_in_queue").is_some());
    assert_eq!(attribute(&model, "gen_ai.latency.time_in_model_prefill"), None);
    assert_eq!(attribute(&model, "gen_ai.latency.time_to_first_token"), None);
}

#[test]
fn a_guard_dropped_mid_stream_is_an_abort_with_the_tokens_so_far() {
    let (_, model, children) = spans_of(detailed(), 200, |mut script| {
        script.three_tokens();
        drop(script);
    });
    assert_eq!(attribute(&model, "gen_ai.response.finish_reasons").unwrap(), "[\"abort\"]");
    assert_eq!(attribute(&model, "gen_ai.usage.output_tokens").unwrap(), "3");
    assert_eq!(model.status, Status::Unset);
    assert_eq!(children.len(), 3);
}

#[test]
fn an_engine_error_is_an_error_on_both_spans() {
    let (server, model, _) = spans_of(detailed(), 500, |mut script| {
        script.three_tokens();
        script.finish(60, FinishReason::Error, Some("device_lost"));
    });
    assert!(matches!(model.status, Status::Error { .. }));
    assert_eq!(attribute(&model, "error.type").unwrap(), "device_lost");
    assert_eq!(attribute(&model, "gen_ai.response.finish_reasons").unwrap(), "[\"error\"]");
    assert!(matches!(server.status, Status::Error { .. }));
    assert_eq!(attribute(&server, "error.type").unwrap(), "device_lost", "the cause, not its consequence");
}

#[test]
fn a_stream_that_fails_after_its_head_is_an_error_on_the_server_span_too() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let base = Instant::now() - Duration::from_secs(1);
    let span = http(&telemetry, base, &http::HeaderMap::new());
    let mut script = Script::new(&telemetry.model(identity()), Some(span.clone()), base);
    script.three_tokens();
    span.responded(200, None);
    script.finish(60, FinishReason::Error, Some("engine_error"));
    drop(span);
    let (server, _, _) = sorted(&telemetry, &exporter);
    assert_eq!(attribute(&server, "http.response.status_code").unwrap(), "200");
    assert_eq!(attribute(&server, "error.type").unwrap(), "engine_error");
    assert!(matches!(server.status, Status::Error { .. }));
}

#[test]
fn a_preemption_is_a_span_and_two_events() {
    let (_, model, children) = spans_of(detailed(), 200, |mut script| {
        script.three_tokens();
        script.step(
            120,
            &[
                (60, Kind::Preempted),
                (100, Kind::Scheduled { num_cached_tokens: 0 }),
                (120, Kind::PrefillChunk { num_tokens: 22 }),
            ],
            1,
        );
        script.finish(121, FinishReason::Stop, None);
    });
    assert_eq!(
        outline(&model, &children),
        ["queue 1-10", "prefill 10-30", "decode 30-120", "preempted 60-100"]
    );
    assert_eq!(event_names(&children[2]), ["preempted", "resumed", "chunk"]);
    assert_eq!(attribute(&model, "limpid.request.num_preemptions").unwrap(), "1");
    assert_eq!(attribute(&model, "gen_ai.usage.cache_read.input_tokens").unwrap(), "16");
}

#[test]
fn a_request_that_ends_while_preempted_has_its_preempted_span_up_to_the_end() {
    let (_, model, children) = spans_of(detailed(), 200, |mut script| {
        script.three_tokens();
        script.step(70, &[(60, Kind::Preempted)], 0);
        script.finish(80, FinishReason::Abort, None);
    });
    assert_eq!(
        outline(&model, &children),
        ["queue 1-10", "prefill 10-30", "decode 30-60", "preempted 60-80"]
    );
    assert!((number(&model, "gen_ai.latency.time_in_model_decode") - 0.020).abs() < 1e-9);
}

#[test]
fn vllms_spellings_come_with_the_switch_and_equal_the_conventions() {
    let settings = TelemetrySettings { vllm_compatible_attributes: true, ..TelemetrySettings::default() };
    let (_, model, _) = spans_of(settings, 200, |mut script| {
        script.three_tokens();
        script.finish(51, FinishReason::Stop, None);
    });
    for (theirs, ours) in [
        ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"),
        ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"),
        ("gen_ai.system", "gen_ai.provider.name"),
    ] {
        assert!(attribute(&model, theirs).is_some());
        assert_eq!(attribute(&model, theirs), attribute(&model, ours));
    }
}

#[test]
fn the_callers_context_is_the_parent_and_its_state_is_kept() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let mut headers = http::HeaderMap::new();
    headers.insert("traceparent", TRACEPARENT.parse().unwrap());
    headers.insert("tracestate", "vendor=1,other=2".parse().unwrap());
    let span = http(&telemetry, Instant::now(), &headers);
    let response = span.traceresponse().unwrap();
    assert!(response.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && response.ends_with("-01"));
    drop(span);
    let spans = exporter.get_finished_spans().unwrap();
    assert_eq!(spans[0].parent_span_id.to_string(), "b7ad6b7169203331");
    assert!(spans[0].parent_span_is_remote);
    assert_eq!(spans[0].span_context.trace_state().header(), "vendor=1,other=2");
}

#[test]
fn an_unsampled_caller_gets_no_spans_but_its_metrics_count() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let mut headers = http::HeaderMap::new();
    headers.insert("traceparent", TRACEPARENT.replace("-01", "-00").parse().unwrap());
    let span = http(&telemetry, Instant::now(), &headers);
    assert_eq!(span.sampled_ids(), None);
    assert!(span.traceresponse().unwrap().ends_with("-00"));
    let mut script = Script::new(&telemetry.model(identity()), Some(span), Instant::now());
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    assert!(exporter.get_finished_spans().unwrap().is_empty());
    let text = telemetry.render_metrics(None).body;
    assert!(text.contains(
        "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"tiny\"} 1.0"
    ));
}

#[test]
fn a_refused_request_has_one_span_and_no_error_status() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let span = http(&telemetry, Instant::now(), &http::HeaderMap::new());
    span.responded(400, Some("invalid_request_error"));
    drop(span);
    let spans = exporter.get_finished_spans().unwrap();
    check(&spans);
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].status, Status::Unset);
    assert_eq!(attribute(&spans[0], "error.type"), None);
}

#[test]
fn client_text_is_bounded_and_unknown_methods_name_no_span() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let path = format!("/{}", "ü".repeat(5_000));
    let method = http::Method::from_bytes(b"BREW").unwrap();
    drop(telemetry.http_request(crate::HttpRequestStarted {
        at: Instant::now(),
        version: http::Version::HTTP_11,
        method: &method,
        route: None,
        path: &path,
        scheme: "http",
        headers: &http::HeaderMap::new(),
        peer: None,
        server: None,
    }));
    let spans = exporter.get_finished_spans().unwrap();
    check(&spans);
    assert_eq!(spans[0].name, "HTTP");
    assert_eq!(attribute(&spans[0], "http.request.method").unwrap(), "_OTHER");
    assert!(attribute(&spans[0], "url.path").unwrap().len() <= 512);
}

#[test]
fn without_an_http_request_the_model_span_is_a_root() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let base = Instant::now();
    drop(telemetry.model(identity()).request(None, started(base)));
    let spans = exporter.get_finished_spans().unwrap();
    check(&spans);
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].parent_span_id, SpanId::INVALID);
}

#[test]
fn every_sampler_decides_as_the_standard_says_and_for_the_whole_request() {
    let parents = [None, Some(TRACEPARENT.to_owned()), Some(TRACEPARENT.replace("-01", "-00"))];
    for (sampler, argument, recorded) in [
        ("always_on", "0", [true, true, true]),
        ("always_off", "1", [false, false, false]),
        ("traceidratio", "0", [false, false, false]),
        ("traceidratio", "1", [true, true, true]),
        ("parentbased_always_on", "0", [true, true, false]),
        ("parentbased_always_off", "1", [false, true, false]),
        ("parentbased_traceidratio", "0", [false, true, false]),
        ("parentbased_traceidratio", "1", [true, true, false]),
    ] {
        let variables = [("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)];
        for (parent, recorded) in parents.iter().zip(recorded) {
            let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &variables);
            let mut headers = http::HeaderMap::new();
            headers.extend(parent.iter().map(|parent| (TRACEPARENT_NAME, parent.parse().unwrap())));
            let base = Instant::now() - Duration::from_secs(1);
            let span = http(&telemetry, base, &headers);
            assert_eq!(span.sampled_ids().is_some(), recorded, "{sampler} {argument}, {parent:?}");
            let mut script = Script::new(&telemetry.model(identity()), Some(span), base);
            script.three_tokens();
            script.finish(51, FinishReason::Stop, None);
            let spans = exporter.get_finished_spans().unwrap();
            check(&spans);
            assert_eq!(spans.len(), if recorded { 5 } else { 0 }, "{sampler} {argument}, {parent:?}");
        }
    }
}

const TRACEPARENT_NAME: http::HeaderName = http::HeaderName::from_static("traceparent");
