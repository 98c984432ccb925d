//! Traces at their far end, and the ways that lead to them.

use limpid_tests::gaps::Gaps;
use limpid_tests::programs::jaeger::{Jaeger, parent, tag};
use limpid_tests::programs::poll;
use serde_json::Value;

use crate::{CHAT, DIRECT, Pipeline, SOON, ask, chat, load};

/// The spans of a trace once all of them are there: a request's root comes last, as it ends last.
async fn spans(jaeger: &Jaeger, id: &str) -> Vec<Value> {
    poll("the trace", SOON, async || {
        let trace = jaeger.trace(id).await?;
        let spans = trace["spans"].as_array()?.clone();
        let whole = spans.iter().any(|span| tag(span, "span.kind").is_some_and(|kind| kind == "server"));
        whole.then_some(spans)
    })
    .await
}

fn named<'a>(spans: &'a [Value], name: &str) -> Option<&'a Value> {
    spans.iter().find(|span| span["operationName"] == name)
}

#[tokio::test]
async fn jaeger_has_the_tree_and_the_attributes() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    let id = ask(pipeline.server.client(), CHAT, &chat(12)).await;
    let spans = spans(&pipeline.jaeger, &id).await;
    let mut gaps = Gaps::default();
    let root = gaps.some("POST /v1/chat/completions", named(&spans, "POST /v1/chat/completions"));
    let model = gaps.some("chat tested", named(&spans, "chat tested"));
    if let (Some(root), Some(model)) = (root, model) {
        gaps.equal("parent of the root", parent(root), Some("00000000000000aa"));
        gaps.equal("parent of the model's span", parent(model), root["spanID"].as_str());
        gaps.equal("status", tag(root, "http.response.status_code"), Some(&200.into()));
        for phase in ["queue", "prefill", "decode"] {
            if let Some(span) = gaps.some(phase, named(&spans, phase)) {
                gaps.equal(format_args!("parent of {phase}"), parent(span), model["spanID"].as_str());
            }
        }
        gaps.equal("operation", tag(model, "gen_ai.operation.name"), Some(&"chat".into()));
        gaps.equal("output tokens", tag(model, "gen_ai.usage.output_tokens"), Some(&12.into()));
        for latency in [
            "time_in_queue",
            "time_to_first_token",
            "e2e",
            "time_in_scheduler",
            "time_in_model_prefill",
            "time_in_model_decode",
            "time_in_model_inference",
            "time_in_model_forward",
            "time_in_model_execute",
        ] {
            let value = tag(model, &format!("gen_ai.latency.{latency}")).and_then(Value::as_f64);
            gaps.expect(value.is_some_and(|value| value >= 0.0), format_args!("{latency} is {value:?}"));
        }
    }
    let trace = pipeline.jaeger.trace(&id).await.expect("it was there");
    let process = &trace["processes"][spans[0]["processID"].as_str().unwrap()];
    gaps.equal("service", process["serviceName"].as_str(), Some("limpid"));
    gaps.expect(tag(process, "service.instance.id").is_some(), "the process has no instance id");
    gaps.assert_none(serde_json::to_string_pretty(&spans).unwrap());
}

#[tokio::test]
async fn an_exemplar_of_a_bucket_leads_to_its_trace_by_scrape_and_by_push() {
    let Some(pipeline) = Pipeline::start("config.yaml", true).await else { return };
    load(pipeline.server.client()).await;
    for job in ["limpid", DIRECT] {
        let expression = format!("vllm:time_to_first_token_seconds_bucket{{job=\"{job}\"}}");
        let (series, exemplar, value) =
            poll("an exemplar", SOON, async || pipeline.prometheus.exemplars(&expression).await.pop()).await;
        let id = exemplar.get("trace_id").expect("the label that Grafana's data source names");
        let spans = spans(&pipeline.jaeger, id).await;
        let span = spans.iter().find(|span| span["spanID"] == exemplar["span_id"].as_str());
        let span = span.unwrap_or_else(|| panic!("{job}: no span {exemplar:?} in {spans:?}"));
        let latency = tag(span, "gen_ai.latency.time_to_first_token").and_then(Value::as_f64);
        let latency = latency.expect("the exemplar's span is the one with the latency");
        assert!((latency - value).abs() < 1e-9, "{job}: {value} in the exemplar, {latency} in the trace");
        let bound: f64 = series["le"].parse().expect("a bucket's bound");
        assert!(value <= bound, "{job}: {value} in the bucket up to {bound}");
    }
}

#[tokio::test]
async fn span_metrics_count_every_request_and_lead_to_traces() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    let client = pipeline.server.client();
    for _ in 0..5 {
        ask(client, CHAT, &chat(3)).await;
    }
    ask(client, CHAT, &serde_json::json!({"model": "unknown", "messages": []})).await;
    let counted = |status: u16| {
        format!(
            "traces_span_metrics_calls_total{{span_name=\"POST {CHAT}\", span_kind=\"SPAN_KIND_SERVER\", \
             http_response_status_code=\"{status}\"}}"
        )
    };
    for (status, wanted) in [(200, 5.0), (404, 1.0)] {
        poll("the calls", SOON, async || {
            let found = pipeline.prometheus.query(&counted(status)).await;
            found.first().filter(|(_, value)| *value == wanted).map(|_| ())
        })
        .await;
    }
    let expression = format!("traces_span_metrics_duration_seconds_bucket{{span_name=\"POST {CHAT}\"}}");
    let (_, exemplar, _) =
        poll("an exemplar", SOON, async || pipeline.prometheus.exemplars(&expression).await.pop()).await;
    assert!(!spans(&pipeline.jaeger, &exemplar["trace_id"]).await.is_empty());
}
