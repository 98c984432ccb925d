//! The variants: tail sampling keeps what matters, agent and gateway pass everything on.

use limpid_tests::gaps::Gaps;
use limpid_tests::programs::collector::{Collector, Ports};
use limpid_tests::programs::jaeger::{Jaeger, tag};
use limpid_tests::programs::{missing, poll};
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
    let exporter = limpid_tests::client::Client::new(gateway.ports.exporter);
    poll("limpid's metrics at the gateway", SOON, async || {
        let metrics = exporter.try_get("/metrics").await?;
        metrics.text().contains("vllm:num_requests_running{").then_some(())
    })
    .await;
}
