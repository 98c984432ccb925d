//! The third signal, and what log lines say of traces.

use std::collections::BTreeSet;

use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Received, Transport};
use limpid_tests::server::{MODEL, Options, tiny_model};
use limpid_tests::spans::{self, attribute, hex, string};
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, MARKER, SOON, chat, completion, quick, sending_to, trace};

/// Scope names and records of everything that arrived.
fn records(received: &Received) -> Vec<(String, LogRecord)> {
    let resources = received.logs.iter().flat_map(|export| &export.message.resource_logs);
    let scopes = resources.flat_map(|resource| &resource.scope_logs);
    scopes
        .flat_map(|scope| {
            let name = scope.scope.as_ref().map_or_else(String::new, |scope| scope.name.clone());
            scope.log_records.iter().map(move |record| (name.clone(), record.clone()))
        })
        .collect()
}

fn body(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(AnyValue::StringValue(text)) => text,
        _ => "",
    }
}

#[tokio::test]
async fn log_records_arrive_over_both_protocols_with_the_ids_of_their_request() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport)
            .env("OTEL_LOGS_EXPORTER", "otlp")
            .env("OTEL_BLRP_SCHEDULE_DELAY", "100")
            .start()
            .await;
        server.client().post(CHAT, &chat(3)).await;
        let sent = trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
        let record = receiver
            .wait_for("the access line", SOON, |received| {
                let is_access = |(scope, _): &(String, LogRecord)| scope == "limpid::access";
                records(received).into_iter().find(is_access)
            })
            .await
            .1;
        let mut gaps = Gaps::default();
        gaps.equal("trace id", hex(&record.trace_id), sent.id());
        gaps.equal("span id", hex(&record.span_id), hex(&sent.server().inner.span_id));
        gaps.equal("severity", record.severity_text.as_str(), "INFO");
        gaps.equal("body", body(&record), "POST /v1/chat/completions 200");
        gaps.equal("status", attribute(&record.attributes, "status").cloned(), Some(AnyValue::IntValue(200)));
        gaps.expect(string(&record.attributes, "request_id").is_some(), "request_id: absent");
        gaps.equal("disconnected", attribute(&record.attributes, "disconnected"), None);
        let received = receiver.received();
        let early = records(&received).iter().any(|(_, record)| body(record).starts_with("model tested"));
        gaps.expect(early, "what was said before telemetry started is lost");
        let resource = received.logs[0].message.resource_logs[0].resource.as_ref().expect("a resource");
        gaps.equal("service.name", string(&resource.attributes, "service.name"), Some("limpid"));
        gaps.expect(!received.contains(MARKER), "a word of the prompt is in a payload");
        let transports: BTreeSet<bool> =
            received.logs.iter().map(|export| export.transport == transport).collect();
        gaps.equal("transport", transports, BTreeSet::from([true]));
        let ended = server.stop().await;
        let last = records(&receiver.received()).iter().any(|(_, record)| body(record).contains("SIGTERM"));
        gaps.expect(last, "the end flushes what is queued");
        gaps.assert_none(format_args!("{transport:?}\n{}", ended.log));
    }
}

#[tokio::test]
async fn the_generic_endpoint_alone_sends_no_logs_and_the_flag_alone_does() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).start().await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    server.stop().await;
    assert!(records(&receiver.received()).is_empty());
    let server =
        Options::new(&tiny_model()).arg("--otlp-logs-endpoint", &receiver.grpc_endpoint()).start().await;
    server.stop().await;
    assert!(!records(&receiver.received()).is_empty());
}

#[tokio::test]
async fn pushing_logs_makes_no_logs() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport)
            .env("OTEL_LOGS_EXPORTER", "otlp")
            .env("OTEL_BLRP_SCHEDULE_DELAY", "50")
            .env("RUST_LOG", "trace")
            .start()
            .await;
        server.client().post(COMPLETIONS, &completion(2)).await;
        let metrics = |more: usize| {
            let before = receiver.received().metrics.len();
            receiver.wait_for("metric exports", SOON, move |received| {
                (received.metrics.len() >= before + more).then_some(())
            })
        };
        metrics(5).await;
        let before = records(&receiver.received()).len();
        metrics(10).await;
        let after = records(&receiver.received());
        assert_eq!(after.len(), before, "{transport:?}: two seconds of exports and nothing else");
        let banned = ["log", "h2", "hyper", "tonic", "tower", "reqwest"];
        for (scope, _) in after {
            assert!(!banned.iter().any(|name| scope.starts_with(name)), "{scope}");
        }
    }
}

#[tokio::test]
async fn ids_in_the_log_are_ids_in_the_backend() {
    let receiver = OtlpReceiver::start().await;
    let server = quick(Options::new(&tiny_model()))
        .arg("--log-format", "json")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.grpc_endpoint())
        .env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        .env("OTEL_TRACES_SAMPLER_ARG", "0.5")
        .start()
        .await;
    for _ in 0..40 {
        assert_eq!(server.client().post(COMPLETIONS, &completion(1)).await.status, 200);
    }
    let ended = server.stop().await;
    let lines: Vec<Value> = ended
        .log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line["target"] == "limpid::access")
        .collect();
    assert_eq!(lines.len(), 40, "a line for each request:\n{}", ended.log);
    let logged: BTreeSet<String> =
        lines.iter().filter_map(|line| line["trace_id"].as_str().map(str::to_owned)).collect();
    let sent: BTreeSet<String> =
        spans::request_traces(&spans::all(&receiver.received())).iter().map(spans::Trace::id).collect();
    assert_eq!(logged, sent);
    assert!((1..40).contains(&sent.len()), "{} of 40 at a ratio of a half", sent.len());
    assert!(lines.iter().all(|line| line["trace_id"].is_null() == line["span_id"].is_null()));
}

#[tokio::test]
async fn content_is_captured_only_by_the_opt_in_and_in_the_conventions_shape() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http)
        .env("OTEL_LOGS_EXPORTER", "otlp")
        .env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        .start()
        .await;
    let reply = server.client().post(CHAT, &chat(8)).await.json();
    let sent = trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
    let model = sent.model().expect("a model span");
    let json_of = |key: &str| -> Value {
        serde_json::from_str(model.string(key).unwrap_or_else(|| panic!("no {key}"))).expect("JSON")
    };
    let prompt = format!("tell me about {MARKER}");
    let expected = json!([{"role": "user", "parts": [{"type": "text", "content": prompt}]}]);
    assert_eq!(json_of("gen_ai.input.messages"), expected);
    let answer = &reply["choices"][0]["message"]["content"];
    let expected = json!([
        {"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "length"}
    ]);
    assert_eq!(json_of("gen_ai.output.messages"), expected);
    let ended = server.stop().await;
    let mut received = receiver.received();
    received.traces.clear();
    assert!(!received.contains(MARKER), "the opt-in is about spans");
    assert!(!ended.log.contains(MARKER) && ended.log.contains("CAPTURE_MESSAGE_CONTENT"), "{}", ended.log);
}

#[tokio::test]
async fn vllms_spellings_come_by_a_flag() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).plain("--vllm-compatible-attributes").start().await;
    server.client().post(COMPLETIONS, &json!({"model": MODEL, "prompt": "ab", "max_tokens": 3})).await;
    let sent = trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
    let model = sent.model().expect("a model span");
    assert_eq!(model.int("gen_ai.usage.completion_tokens"), Some(3));
    assert_eq!(model.int("gen_ai.usage.prompt_tokens"), model.int("gen_ai.usage.input_tokens"));
    assert_eq!(model.string("gen_ai.system"), Some("limpid"));
}
