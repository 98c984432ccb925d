//! SIGTERM: what runs is finished, what is new is refused, what was measured is delivered.

use std::time::Duration;

use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{Options, slow_model, tiny_model};
use limpid_tests::spans;
use serde_json::json;
use tokio::net::TcpStream;

use crate::{COMPLETIONS, completion, serve_tiny, with};

#[tokio::test]
async fn sigterm_ends_an_idle_server_with_success() {
    let ended = serve_tiny().await.stop().await;
    assert!(ended.status.success(), "{}:\n{}", ended.status, ended.log);
    assert!(!ended.log.contains("panicked"), "{}", ended.log);
}

#[tokio::test]
async fn sigterm_lets_a_running_stream_finish() {
    let server = Options::new(&slow_model()).start().await;
    let request = with(completion(64), json!({"stream": true}));
    let alone = server.client().stream(COMPLETIONS, &[], &request).await.chunks().await.text();
    let mut stream = server.client().stream(COMPLETIONS, &[], &request).await;
    let first = stream.next().await.expect("the request runs");
    server.terminate();
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    let rest = stream.chunks().await;
    assert_eq!(rest.finish_reasons(), ["length"]);
    assert_eq!(first["choices"][0]["text"].as_str().unwrap().to_owned() + &rest.text(), alone);
    let ended = server.ended().await;
    assert!(ended.status.success(), "{}:\n{}", ended.status, ended.log);
}

#[tokio::test]
async fn a_draining_server_takes_no_new_connections() {
    let server = Options::new(&slow_model()).start().await;
    let request = with(completion(400), json!({"stream": true}));
    let mut stream = server.client().stream(COMPLETIONS, &[], &request).await;
    stream.next().await.expect("the request runs");
    server.terminate();
    // Each chunk of the running stream is a moment to look; the port closes before the stream ends.
    let mut refused = false;
    while stream.next().await.is_some() {
        refused |= TcpStream::connect(server.address()).await.is_err();
    }
    assert!(refused, "the port stayed open to the end");
    assert!(server.ended().await.status.success());
}

#[tokio::test]
async fn sigterm_flushes_spans_and_metrics() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let protocol = if transport == Transport::Grpc { "grpc" } else { "http/protobuf" };
        let server = Options::new(&tiny_model())
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint(transport))
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            // Nothing is sent on its own within this test.
            .env("OTEL_BSP_SCHEDULE_DELAY", "600000")
            .env("OTEL_METRIC_EXPORT_INTERVAL", "600000")
            .start()
            .await;
        assert_eq!(server.client().post(COMPLETIONS, &completion(3)).await.status, 200);
        let ended = server.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
        let received = receiver.received();
        assert!(spans::all(&received).len() >= 2, "{transport:?}: spans: {:?}", spans::all(&received).len());
        assert!(!received.metrics.is_empty(), "{transport:?}: metrics");
    }
}

#[tokio::test]
async fn sigterm_does_not_wait_for_a_deaf_collector() {
    // Accepts connections by its backlog and never answers.
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Options::new(&tiny_model())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", deaf.local_addr().unwrap()))
        .start()
        .await;
    assert_eq!(server.client().post(COMPLETIONS, &completion(3)).await.status, 200);
    let asked = std::time::Instant::now();
    let ended = server.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
}
