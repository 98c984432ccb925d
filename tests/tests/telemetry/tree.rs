//! One good request: its spans, their attributes, and how the times add up.

use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::MODEL;
use limpid_tests::spans::{Span, SpanKind, StatusCode, Trace, string};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, MARKER, chat, completion, sending_to, trace, with};

/// `gen_ai.latency.*` of every request that made tokens.
const LATENCIES: [&str; 7] = [
    "time_in_queue",
    "time_to_first_token",
    "e2e",
    "time_in_model_prefill",
    "time_in_model_decode",
    "time_in_model_inference",
    "time_in_scheduler",
];

fn latency(span: &Span, name: &str) -> Option<f64> {
    span.double(&format!("gen_ai.latency.{name}"))
}

/// Seconds from one time stamp of the trace to another.
fn seconds(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / 1e9
}

fn check_server_span(gaps: &mut Gaps, server: &Span) {
    gaps.equal("SERVER name", server.name(), &format!("POST {CHAT}"));
    gaps.equal("http.request.method", server.string("http.request.method"), Some("POST"));
    gaps.equal("http.route", server.string("http.route"), Some(CHAT));
    gaps.equal("url.path", server.string("url.path"), Some(CHAT));
    gaps.equal("url.scheme", server.string("url.scheme"), Some("http"));
    gaps.equal("http.response.status_code", server.int("http.response.status_code"), Some(200));
    gaps.equal("SERVER status", server.status(), StatusCode::Unset);
    for (key, wanted) in
        [("service.name", Some("limpid")), ("service.version", Some(env!("CARGO_PKG_VERSION")))]
    {
        gaps.equal(key, string(&server.resource, key), wanted);
    }
    gaps.expect(string(&server.resource, "service.instance.id").is_some(), "service.instance.id: absent");
}

fn check_model_span(gaps: &mut Gaps, model: &Span, max_tokens: i64) {
    gaps.equal("model span's kind", model.inner.kind(), SpanKind::Internal);
    gaps.equal("model span's name", model.name(), &format!("chat {MODEL}"));
    gaps.equal("model span's status", model.status(), StatusCode::Unset);
    for (key, wanted) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "limpid"),
        ("gen_ai.request.model", MODEL),
        ("gen_ai.response.model", MODEL),
    ] {
        gaps.equal(key, model.string(key), Some(wanted));
    }
    for key in ["gen_ai.request.id", "gen_ai.response.id"] {
        let id = model.string(key);
        gaps.expect(id.is_some_and(|id| id.starts_with("chatcmpl-")), format_args!("{key} is {id:?}"));
    }
    gaps.equal(
        "gen_ai.response.finish_reasons",
        model.strings("gen_ai.response.finish_reasons"),
        Some(vec!["length".to_owned()]),
    );
    gaps.equal("gen_ai.usage.output_tokens", model.int("gen_ai.usage.output_tokens"), Some(max_tokens));
    gaps.expect(model.int("gen_ai.usage.input_tokens") > Some(0), "gen_ai.usage.input_tokens: none");
    gaps.equal("gen_ai.request.max_tokens", model.int("gen_ai.request.max_tokens"), Some(max_tokens));
    gaps.equal("temperature 0", model.double("gen_ai.request.temperature"), Some(0.0));
    for attribute in &model.inner.attributes {
        let key = &attribute.key;
        let known = ["input_tokens", "output_tokens", "cache_read.input_tokens"];
        if let Some(usage) = key.strip_prefix("gen_ai.usage.") {
            gaps.expect(known.contains(&usage), format_args!("{key} would be added up by backends"));
        }
        gaps.expect(!key.starts_with("llm."), format_args!("{key} is no convention's"));
        gaps.expect(key != "gen_ai.system", "gen_ai.system was renamed");
    }
}

fn check_times(gaps: &mut Gaps, tree: &Trace, model: &Span, detailed: bool) {
    for name in LATENCIES {
        let value = latency(model, name);
        gaps.expect(
            value.is_some_and(|value| value >= 0.0),
            format_args!("gen_ai.latency.{name} is {value:?}"),
        );
    }
    let value = |name| latency(model, name).unwrap_or(f64::NAN);
    let (prefill, decode) = (value("time_in_model_prefill"), value("time_in_model_decode"));
    let (queue, inference) = (value("time_in_queue"), value("time_in_model_inference"));
    gaps.expect((prefill + decode - inference).abs() < 1e-6, "prefill + decode is not inference");
    if detailed {
        let (forward, execute) = (value("time_in_model_forward"), value("time_in_model_execute"));
        gaps.expect(forward > 0.0, format_args!("forward is {forward}"));
        gaps.expect(forward <= execute, format_args!("forward {forward} > execute {execute}"));
        gaps.expect(execute <= inference + 1e-6, format_args!("execute {execute} > inference {inference}"));
    } else {
        for name in ["time_in_model_forward", "time_in_model_execute"] {
            gaps.equal(format_args!("{name} unasked"), latency(model, name), None);
        }
    }

    let children = tree.children(model);
    let names: Vec<&str> = children.iter().map(|child| child.name()).collect();
    gaps.equal("children of the model span", &names[..], &["queue", "prefill", "decode"][..]);
    let [queued, prefilled, decoded] = children[..] else { return };
    for (child, interval) in [(queued, queue), (prefilled, prefill), (decoded, decode)] {
        gaps.expect(model.encloses(child), format_args!("{} lies outside its parent", child.name()));
        let drawn = child.duration().as_secs_f64();
        gaps.expect(
            (drawn - interval).abs() < 5e-3,
            format_args!("{}: {drawn} s, {interval} s", child.name()),
        );
    }
    gaps.expect(
        queued.inner.end_time_unix_nano <= prefilled.inner.start_time_unix_nano
            && prefilled.inner.end_time_unix_nano <= decoded.inner.start_time_unix_nano,
        "queue, prefill and decode overlap",
    );

    // What is left of end to end is the frontend's: before QUEUED and after the last NEW_TOKENS.
    let before = seconds(model.inner.start_time_unix_nano, queued.inner.start_time_unix_nano);
    let after = seconds(decoded.inner.end_time_unix_nano, model.inner.end_time_unix_nano);
    let engine = value("e2e") - before - after;
    let difference = engine - (queue + prefill + decode);
    gaps.expect(
        difference.abs() < 1e-3,
        format_args!("queue + prefill + decode is {difference} s off e2e minus frontend"),
    );
    gaps.expect(value("time_to_first_token") <= value("e2e"), "time to first token is above e2e");
}

async fn one_streaming_chat(transport: Transport) {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, transport)
        .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(transport))
        .arg("--collect-detailed-traces", "all")
        .start()
        .await;
    // Only q and z can be sampled, so that the answer is text that is nowhere else.
    let letters = json!({"model": MODEL, "prompt": "qz", "add_special_tokens": false});
    let letters = server.client().post("/tokenize", &letters).await.json()["tokens"].clone();
    let letters = letters.as_array().expect("ids").iter().map(|id| (id.to_string(), json!(100)));
    let bias: serde_json::Map<String, serde_json::Value> = letters.collect();
    let streaming = json!({"stream": true, "stream_options": {"include_usage": true}, "logit_bias": bias});
    let request = with(chat(24), streaming);
    let chunks = server.client().stream(CHAT, &[], &request).await.chunks().await;
    let usage = chunks.usage().expect("usage was asked for").clone();
    let tree = trace(&receiver, "the request's trace", |trace| trace.spans.len() >= 5).await;

    let mut gaps = Gaps::default();
    let server_span = tree.server();
    gaps.equal("spans in the trace", tree.spans.len(), 5);
    gaps.expect(server_span.inner.parent_span_id.is_empty(), "the SERVER span is no root");
    check_server_span(&mut gaps, server_span);
    let children = tree.children(server_span);
    gaps.equal("children of the SERVER span", children.len(), 1);
    if let Some(model) = gaps.some("the model span", tree.model()) {
        gaps.expect(
            children.iter().any(|child| child.inner.span_id == model.inner.span_id),
            "model span's parent",
        );
        gaps.expect(server_span.encloses(model), "the model span lies outside the SERVER span");
        check_model_span(&mut gaps, model, 24);
        gaps.equal(
            "input tokens as billed",
            model.int("gen_ai.usage.input_tokens"),
            usage["prompt_tokens"].as_i64(),
        );
        check_times(&mut gaps, &tree, model, true);
    }

    // Metrics too are sent by now or soon; then no payload may hold a word of the conversation.
    receiver.wait_for("metrics", crate::SOON, |received| received.metrics.len().checked_sub(2)).await;
    let received = receiver.received();
    gaps.expect(!received.contains(MARKER), "a word of the prompt is in a payload");
    let answer = chunks.text();
    gaps.expect(
        answer.len() == 24 && !received.contains(&answer[..8]),
        format_args!("{answer:?} is in a payload"),
    );
    gaps.expect(!server.log().contains(MARKER), "a word of the prompt is in the log");
    let transports: Vec<Transport> = received.traces.iter().map(|export| export.transport).collect();
    gaps.expect(
        transports.iter().all(|used| *used == transport),
        format_args!("traces came by {transports:?}"),
    );
    gaps.assert_none(tree.text());
}

#[tokio::test]
async fn one_streaming_chat_request_has_the_whole_tree_over_grpc() {
    one_streaming_chat(Transport::Grpc).await;
}

#[tokio::test]
async fn one_streaming_chat_request_has_the_whole_tree_over_http() {
    one_streaming_chat(Transport::Http).await;
}

#[tokio::test]
async fn each_kind_of_detail_brings_its_own_time_and_no_other() {
    for (detail, wanted) in [("model", "time_in_model_forward"), ("worker", "time_in_model_execute")] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, Transport::Http)
            .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(Transport::Http))
            .arg("--collect-detailed-traces", detail)
            .start()
            .await;
        server.client().post(CHAT, &chat(4)).await;
        let tree = trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
        let model = tree.model().unwrap();
        for name in ["time_in_model_forward", "time_in_model_execute"] {
            assert_eq!(latency(model, name).is_some(), name == wanted, "{name} with {detail}");
        }
    }
}

#[tokio::test]
async fn without_detailed_traces_the_other_times_are_there() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).start().await;
    server.client().post(CHAT, &chat(6)).await;
    let tree = trace(&receiver, "the trace", |trace| trace.spans.len() >= 5).await;
    let mut gaps = Gaps::default();
    check_times(&mut gaps, &tree, tree.model().unwrap(), false);
    gaps.assert_none(tree.text());
}

#[tokio::test]
async fn every_parameter_that_was_given_is_on_the_span_and_no_other() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).start().await;
    let given = json!({
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 42, "max_tokens": 5,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "stop": ["@@"], "stream": true
    });
    server.client().stream(COMPLETIONS, &[], &with(completion(5), given)).await.chunks().await;
    let tree = trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
    let model = tree.model().unwrap();
    let mut gaps = Gaps::default();
    gaps.equal("name", model.name(), &format!("text_completion {MODEL}"));
    for (key, wanted) in
        [("temperature", 0.7), ("top_p", 0.9), ("presence_penalty", 0.5), ("frequency_penalty", 0.25)]
    {
        gaps.equal(key, model.double(&format!("gen_ai.request.{key}")), Some(wanted));
    }
    for (key, wanted) in [("top_k", 5), ("seed", 42), ("max_tokens", 5)] {
        gaps.equal(key, model.int(&format!("gen_ai.request.{key}")), Some(wanted));
    }
    gaps.equal("stop", model.strings("gen_ai.request.stop_sequences"), Some(vec!["@@".to_owned()]));
    gaps.expect(model.attribute("gen_ai.request.stream").is_some(), "gen_ai.request.stream: absent");
    gaps.expect(model.double("gen_ai.response.time_to_first_chunk").is_some(), "time_to_first_chunk: absent");

    server.client().post(COMPLETIONS, &json!({"model": MODEL, "prompt": "plain"})).await;
    let plain = trace(&receiver, "the second trace", |trace| {
        trace.model().is_some_and(|model| model.attribute("gen_ai.request.seed").is_none())
    })
    .await;
    let model = plain.model().unwrap();
    for key in ["temperature", "top_p", "top_k", "seed", "max_tokens", "stop_sequences", "stream"] {
        let key = format!("gen_ai.request.{key}");
        gaps.expect(model.attribute(&key).is_none(), format_args!("{key} was not given"));
    }
    gaps.assert_none(tree.text());
}

#[tokio::test]
async fn a_repeated_prompt_counts_its_cached_tokens_within_the_input() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).arg("--block-size", "16").start().await;
    // 4 blocks of 16 and 3 more.
    let prompt: Vec<u32> = (0..67).map(|index| 50 + index).collect();
    let request = json!({"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0});
    for _ in 0..2 {
        assert_eq!(server.client().post(COMPLETIONS, &request).await.status, 200);
    }
    let second = trace(&receiver, "a trace with cached tokens", |trace| {
        trace.model().is_some_and(|model| model.int("gen_ai.usage.cache_read.input_tokens") > Some(0))
    })
    .await;
    let model = second.model().unwrap();
    assert_eq!(model.int("gen_ai.usage.input_tokens"), Some(67));
    assert_eq!(model.int("gen_ai.usage.cache_read.input_tokens"), Some(64));
}
