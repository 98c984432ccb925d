//! Requests that end otherwise than well, callers with traces of their own, and what makes no span at all.

use limpid_tests::client::Client;
use limpid_tests::compliance::check_request;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{CONTEXT_LENGTH, MODEL, Options, slow_model};
use limpid_tests::spans::{self, StatusCode, hex};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, chat, completion, quick, scrape_until, sending_to, trace, with};

fn slow(receiver: &OtlpReceiver) -> Options {
    quick(Options::new(&slow_model())).env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.grpc_endpoint())
}

async fn start_stream(client: Client) -> limpid_tests::client::EventStream {
    let request = with(completion(4000), json!({"stream": true}));
    let mut stream = client.stream(COMPLETIONS, &[], &request).await;
    stream.next().await.expect("a first chunk");
    stream
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_leaves_a_trace() {
    let receiver = OtlpReceiver::start().await;
    let server = slow(&receiver).start().await;
    drop(start_stream(server.client()).await);
    let tree = trace(&receiver, "the aborted request's trace", |trace| trace.model().is_some()).await;
    let model = tree.model().unwrap();
    let mut gaps = Gaps::default();
    gaps.equal(
        "finish reasons",
        model.strings("gen_ai.response.finish_reasons"),
        Some(vec!["abort".to_owned()]),
    );
    let tokens = model.int("gen_ai.usage.output_tokens");
    gaps.expect(
        tokens.is_some_and(|tokens| (1..4000).contains(&tokens)),
        format_args!("{tokens:?} output tokens"),
    );
    gaps.expect(tree.server().encloses(model), "the model span outlives its parent");
    gaps.expect(model.double("gen_ai.latency.time_in_model_decode").is_some(), "it had decoded");
    for name in ["queue", "prefill", "decode"] {
        gaps.equal(format_args!("{name} spans"), tree.named(name).len(), 1);
    }
    gaps.assert_none(tree.text());
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_a_trace_without_times_that_never_were() {
    let receiver = OtlpReceiver::start().await;
    let server = slow(&receiver).arg("--max-num-seqs", "1").start().await;
    let client = server.client();
    let running = start_stream(client).await;
    let queued = async {
        scrape_until(client, "one waiting", |scrape| scrape.value("vllm:num_requests_waiting", &[]) == 1.0)
            .await;
    };
    client.post_and_leave(CHAT, &chat(10), queued).await;
    let tree = trace(&receiver, "the queued request's trace", |trace| {
        trace.model().is_some_and(|model| model.string("gen_ai.operation.name") == Some("chat"))
    })
    .await;
    drop(running);
    let model = tree.model().unwrap();
    let mut gaps = Gaps::default();
    gaps.equal(
        "finish reasons",
        model.strings("gen_ai.response.finish_reasons"),
        Some(vec!["abort".to_owned()]),
    );
    gaps.equal("output tokens", model.int("gen_ai.usage.output_tokens"), Some(0));
    for name in [
        "time_in_model_prefill",
        "time_in_model_decode",
        "time_in_model_inference",
        "time_to_first_token",
        "time_in_queue",
    ] {
        let value = model.double(&format!("gen_ai.latency.{name}"));
        gaps.expect(value.is_none(), format_args!("{name} is {value:?}, though it never ran"));
    }
    gaps.equal("prefill spans", tree.named("prefill").len(), 0);
    gaps.assert_none(tree.text());
}

#[tokio::test]
async fn a_refused_request_leaves_one_server_span_that_is_no_server_error() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).start().await;
    let client = server.client();
    let too_long: Vec<u32> = vec![100; CONTEXT_LENGTH + 1];
    let mut gaps = Gaps::default();
    for (path, request, status, name) in [
        (COMPLETIONS, json!({"model": MODEL, "prompt": too_long}), 400, format!("POST {COMPLETIONS}")),
        (CHAT, with(chat(4), json!({"model": "unknown"})), 404, format!("POST {CHAT}")),
        ("/v1/nowhere", json!({}), 404, "POST".to_owned()),
    ] {
        let reply = client.post(path, &request).await;
        gaps.equal(format_args!("{path}: answer"), reply.status.as_u16(), status);
        let found = trace(&receiver, path, |trace| {
            let server = trace.server();
            server.string("url.path") == Some(path)
                && server.int("http.response.status_code") == Some(i64::from(status))
        })
        .await;
        gaps.equal(format_args!("{path}: name"), found.server().name(), name.as_str());
        gaps.equal(format_args!("{path}: status"), found.server().status(), StatusCode::Unset);
        gaps.equal(format_args!("{path}: spans"), found.spans.len(), 1);
    }
    let scrape = crate::scrape(client).await;
    gaps.equal("engine requests", scrape.value("vllm:request_success_total", &[]), 0.0);
    gaps.assert_none("refused before the engine");
}

#[tokio::test]
async fn the_callers_trace_goes_on() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).start().await;
    let headers = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
    ];
    let reply = server.client().post_with(CHAT, &headers, &chat(3)).await;
    assert_eq!(reply.status, 200);
    let tree = trace(&receiver, "the trace", |trace| trace.spans.len() >= 5).await;
    assert_eq!(tree.id(), "0af7651916cd43dd8448eb211c80319c");
    let server_span = tree.server();
    assert_eq!(hex(&server_span.inner.parent_span_id), "b7ad6b7169203331");
    assert_eq!(server_span.inner.trace_state, headers[1].1);
    let model = tree.model().unwrap();
    assert_eq!(model.inner.parent_span_id, server_span.inner.span_id);
    let answered = reply.header("traceresponse");
    assert!(
        answered.contains(&tree.id()) && answered.contains(&hex(&server_span.inner.span_id)),
        "{answered:?}"
    );
}

#[tokio::test]
async fn a_caller_that_does_not_sample_gets_no_spans_and_a_broken_one_gets_its_own_trace() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).start().await;
    let client = server.client();
    let not_sampled = [("traceparent", "00-11111111111111111111111111111111-2222222222222222-00")];
    assert_eq!(client.post_with(CHAT, &not_sampled, &chat(2)).await.status, 200);
    let broken = [
        "00-00000000000000000000000000000000-2222222222222222-01",
        "00-33333333333333333333333333333333-0000000000000000-01",
        "ff-33333333333333333333333333333333-2222222222222222-01",
        "00-3333-2222-01",
        "00-3333333333333333333333333333333G-2222222222222222-01",
        "nonsense",
    ];
    for value in broken {
        assert_eq!(
            client.post_with(COMPLETIONS, &[("traceparent", value)], &completion(2)).await.status,
            200
        );
    }
    let ended = server.stop().await;
    assert!(ended.status.success());
    let traces = spans::request_traces(&spans::all(&receiver.received()));
    assert_eq!(traces.len(), broken.len(), "one trace for each broken parent, none for the unsampled one");
    for trace in traces {
        assert!(trace.server().inner.parent_span_id.is_empty(), "{}", trace.text());
        assert_ne!(trace.id(), "33333333333333333333333333333333");
    }
}

#[tokio::test]
async fn probes_and_scrapes_make_no_spans() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).start().await;
    for _ in 0..125 {
        for path in ["/health", "/metrics", "/ping", "/version"] {
            assert_eq!(server.client().get(path).await.status, 200);
        }
    }
    server.client().post(COMPLETIONS, &completion(2)).await;
    server.stop().await;
    let traces = spans::request_traces(&spans::all(&receiver.received()));
    assert_eq!(traces.len(), 1, "500 probes and one request");
}

#[tokio::test]
async fn a_request_that_waits_begins_with_its_head_and_shows_the_wait_as_queue() {
    let receiver = OtlpReceiver::start().await;
    let server = slow(&receiver).arg("--max-num-seqs", "1").start().await;
    let client = server.client();
    let running = start_stream(client).await;
    let waiting = tokio::spawn(async move { client.post(CHAT, &chat(3)).await.status });
    scrape_until(client, "one waiting", |scrape| scrape.value("vllm:num_requests_waiting", &[]) == 1.0).await;
    let seen_waiting = std::time::Instant::now();
    for _ in 0..20 {
        crate::scrape(client).await;
    }
    let waited = seen_waiting.elapsed();
    drop(running);
    assert_eq!(waiting.await.unwrap(), 200);
    let is_it = |trace: &spans::Trace| trace.server().string("http.route") == Some(CHAT);
    let tree = trace(&receiver, "the trace", is_it).await;
    let mut gaps = Gaps::default();
    let phases = tree.children(tree.model().expect("a model span"));
    let names: Vec<&str> = phases.iter().map(|phase| phase.name()).collect();
    gaps.equal("phases", &names[..], &["queue", "prefill", "decode"][..]);
    for (one, next) in phases.iter().zip(&phases[1..]) {
        let (end, start) = (one.inner.end_time_unix_nano, next.inner.start_time_unix_nano);
        gaps.expect(end <= start, format_args!("{} and {} overlap", one.name(), next.name()));
    }
    let queue = phases[0];
    let before = queue.inner.start_time_unix_nano - tree.server().inner.start_time_unix_nano;
    gaps.expect(before < 50_000_000, format_args!("{before} ns from the head to the queue"));
    gaps.expect(
        queue.duration() > waited,
        format_args!("{:?} in the queue, not {waited:?}", queue.duration()),
    );
    gaps.assert_none(tree.text());
}

#[tokio::test]
async fn every_preemption_is_on_its_requests_span_and_counted_once() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc)
        .arg("--max-model-len", "128")
        .arg("--num-gpu-blocks-override", "17")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "100000")
        .start()
        .await;
    let client = server.client();
    let requests = (0..16u64).map(|index| async move {
        let prompt: Vec<u64> = (0..30).map(|n| 40 + (7 * index + n * n) % 60).collect();
        client.post(COMPLETIONS, &with(completion(60), json!({"prompt": prompt}))).await;
    });
    futures::future::join_all(requests).await;
    let counted = crate::scrape(client).await.value("vllm:num_preemptions_total", &[]);
    server.stop().await;
    let mut gaps = Gaps::default();
    let mut sum = 0;
    for trace in spans::request_traces(&spans::all(&receiver.received())) {
        check_request(&mut gaps, &trace.id(), &trace, 1);
        let preemptions = trace.model().and_then(|model| model.int("limpid.request.num_preemptions"));
        let drawn = trace.named("preempted").len() as i64;
        gaps.equal(format_args!("{}: preempted spans", trace.id()), preemptions, Some(drawn));
        sum += drawn;
    }
    gaps.expect(counted > 0.0, "the pool was large enough");
    gaps.equal("preemptions on spans and in the counter", sum as f64, counted);
    gaps.assert_none("16 requests, room for some");
}
