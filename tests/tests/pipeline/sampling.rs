//! The variants: tail sampling keeps what matters, agent and gateway pass everything on.

use limpid_tests::client::Client;
use limpid_tests::gaps::Gaps;
use limpid_tests::programs::collector::{Collector, Ports};
use limpid_tests::programs::jaeger::{Jaeger, tag};
use limpid_tests::programs::{missing, poll};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;
use rand::RngExt;
use serde_json::json;
use xtask::programs::Program;

use crate::{CHAT, Pipeline, SOON, alone, ask, chat, limpid, new_trace_id, streamed};

#[tokio::test]
async fn tail_sampling_keeps_refused_and_aborted_requests_and_few_others() {
    let Some(pipeline) = Pipeline::start("config-tail-sampling.yaml", false).await else { return };
    let client = pipeline.server.client();
    let mut good = Vec::new();
    for _ in 0..60 {
        good.push(ask(client, CHAT, &chat(2)).await);
    }
    let refused = ask(client, CHAT, &json!({"model": "unknown", "messages": []})).await;
    let aborted = new_trace_id();
    let parent = format!("00-{aborted}-00000000000000aa-01");
    let mut stream = client.stream(CHAT, &[("traceparent", &parent)], &streamed(chat(3500))).await;
    stream.next().await.expect("a first chunk");
    drop(stream);

    for id in [&refused, &aborted] {
        poll("a trace that matters", SOON, async || pipeline.jaeger.trace(id).await).await;
    }
    let mut kept = 0;
    for id in &good {
        kept += usize::from(pipeline.jaeger.trace(id).await.is_some());
    }
    // 5 % of 60 is 3; with 20 or more the share is another one.
    assert!(kept < 20, "{kept} of 60 ordinary traces were kept");
    poll("span metrics of all requests", SOON, async || {
        let calls = pipeline
            .prometheus
            .query("sum(traces_span_metrics_calls_total{span_kind=\"SPAN_KIND_SERVER\"})")
            .await;
        calls.first().filter(|(_, value)| *value == 62.0).map(|_| ())
    })
    .await;
}

#[tokio::test]
async fn an_agent_and_a_gateway_pass_on_metrics_and_refused_traces() {
    if missing(&[(Program::Collector, "collector"), (Program::Jaeger, "jaeger")]) {
        return;
    }
    let _alone = alone().await;
    let jaeger = Jaeger::start().await;
    let gateway = Collector::start("config-gateway.yaml", Ports::free(), jaeger.otlp).await;
    let agent = Collector::start("config-agent.yaml", Ports::free(), gateway.ports.grpc).await;
    let server = limpid(&agent).await.start().await;
    let id = ask(server.client(), CHAT, &json!({"model": "unknown", "messages": []})).await;
    let trace = poll("the refused request's trace", SOON, async || jaeger.trace(&id).await).await;
    let mut gaps = Gaps::default();
    let process = &trace["processes"][trace["spans"][0]["processID"].as_str().unwrap()];
    for key in ["k8s.node.name", "k8s.pod.name", "k8s.namespace.name"] {
        gaps.equal(key, tag(process, key), Some(&"unknown".into()));
    }
    gaps.assert_none(process);
    let exporter = Client::new(gateway.ports.exporter);
    poll("limpid's metrics at the gateway", SOON, async || {
        let metrics = exporter.try_get("/metrics").await?;
        metrics.text().contains("vllm:num_requests_running{").then_some(())
    })
    .await;
}

/// A trace of one span as limpid would send it, with one attribute and perhaps an error.
fn trace(id: u128, key: &str, value: Value, failed: bool) -> ResourceSpans {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let span = Span {
        trace_id: id.to_be_bytes().to_vec(),
        span_id: rand::rng().random_range(1..u64::MAX).to_be_bytes().to_vec(),
        name: "chat tested".to_owned(),
        start_time_unix_nano: now.as_nanos() as u64,
        end_time_unix_nano: now.as_nanos() as u64 + 1000,
        attributes: vec![KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        }],
        status: failed.then(|| Status { code: StatusCode::Error.into(), ..Status::default() }),
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    ResourceSpans { scope_spans, ..ResourceSpans::default() }
}

#[tokio::test]
async fn each_policy_keeps_what_it_is_for_and_only_that_in_every_configuration_that_samples() {
    if missing(&[(Program::Collector, "collector"), (Program::Jaeger, "jaeger")]) {
        return;
    }
    let _alone = alone().await;
    let text = |text: &str| Value::StringValue(text.to_owned());
    let reasons =
        |reason: &str| Value::ArrayValue(ArrayValue { values: vec![AnyValue { value: Some(text(reason)) }] });
    const STATUS: &str = "http.response.status_code";
    const FIRST_TOKEN: &str = "gen_ai.latency.time_to_first_token";
    const REASONS: &str = "gen_ai.response.finish_reasons";
    for config in ["config-tail-sampling.yaml", "config-gateway.yaml"] {
        let jaeger = Jaeger::start().await;
        let collector = Collector::start(config, Ports::free(), jaeger.otlp).await;
        let kept = [
            ("an error", trace(1, "error.type", text("engine_error"), true)),
            ("a refusal", trace(2, STATUS, Value::IntValue(400), false)),
            ("an overload", trace(3, STATUS, Value::IntValue(503), false)),
            ("an abort", trace(4, REASONS, reasons("abort"), false)),
            ("a slow first token", trace(5, FIRST_TOKEN, Value::DoubleValue(1.01), false)),
        ];
        let ordinary: Vec<ResourceSpans> = (0..60)
            .map(|index| match index % 3 {
                0 => trace(100 + index, STATUS, Value::IntValue(200), false),
                1 => trace(100 + index, REASONS, reasons("stop"), false),
                _ => trace(100 + index, FIRST_TOKEN, Value::DoubleValue(0.99), false),
            })
            .collect();
        let resource_spans = kept.iter().map(|(_, trace)| trace.clone()).chain(ordinary).collect();
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let headers = [("content-type", "application/x-protobuf")];
        let http = Client::new(collector.ports.http);
        let reply = http.request(http::Method::POST, "/v1/traces", &headers, body.into()).await;
        assert_eq!(reply.status, 200, "{config}: {}", reply.text());
        for (id, (what, _)) in (1..).zip(&kept) {
            let id = format!("{id:032x}");
            poll(&format!("{config}: {what}"), SOON, async || jaeger.trace(&id).await).await;
        }
        // All were decided at once.
        let mut ordinary = 0;
        for id in 100..160 {
            ordinary += usize::from(jaeger.trace(&format!("{id:032x}")).await.is_some());
        }
        assert!(ordinary < 20, "{config}: {ordinary} of 60 ordinary traces were kept");
    }
}
