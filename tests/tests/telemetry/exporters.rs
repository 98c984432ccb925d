//! The exporters' settings: protocol, endpoint, headers, compression, TLS.

use std::time::Duration;

use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{Options, tiny_model};
use limpid_tests::spans;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::{COMPLETIONS, SOON, completion, protocol, quick, scrape, sending_to};

async fn wait_for_spans(receiver: &OtlpReceiver) {
    receiver.wait_for("a span", SOON, |received| received.traces.first().map(|_| ())).await;
}

async fn wait_for_metrics(receiver: &OtlpReceiver) {
    receiver.wait_for("a metric export", SOON, |received| received.metrics.first().map(|_| ())).await;
}

#[tokio::test]
async fn each_protocol_carries_traces_and_metrics_by_the_generic_variables_alone() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport).start().await;
        server.client().post(COMPLETIONS, &completion(2)).await;
        wait_for_spans(&receiver).await;
        wait_for_metrics(&receiver).await;
        let received = receiver.received();
        assert!(received.traces.iter().all(|export| export.transport == transport), "{transport:?}");
        assert!(received.metrics.iter().all(|export| export.transport == transport), "{transport:?}");
    }
}

#[tokio::test]
async fn without_a_protocol_grpc_is_spoken() {
    let receiver = OtlpReceiver::start().await;
    let server = quick(Options::new(&tiny_model()))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.grpc_endpoint())
        .start()
        .await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    wait_for_spans(&receiver).await;
}

#[tokio::test]
async fn a_signals_own_variable_wins_over_the_generic_one() {
    let (traces, rest) = (OtlpReceiver::start().await, OtlpReceiver::start().await);
    let server = sending_to(&rest, Transport::Grpc)
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &traces.traces_endpoint(Transport::Http))
        .env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        .start()
        .await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    wait_for_spans(&traces).await;
    wait_for_metrics(&rest).await;
    assert!(rest.received().traces.is_empty() && traces.received().metrics.is_empty());
}

#[tokio::test]
async fn a_flag_wins_over_the_variables() {
    let (flagged, generic) = (OtlpReceiver::start().await, OtlpReceiver::start().await);
    let server = sending_to(&generic, Transport::Http)
        .arg("--otlp-traces-endpoint", &flagged.traces_endpoint(Transport::Http))
        .arg("--otlp-metrics-endpoint", &format!("{}/v1/metrics", flagged.http_endpoint()))
        .start()
        .await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    wait_for_spans(&flagged).await;
    wait_for_metrics(&flagged).await;
    let generic = generic.received();
    assert!(generic.traces.is_empty() && generic.metrics.is_empty());
}

#[tokio::test]
async fn headers_and_resource_attributes_of_the_variables_are_sent() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport)
            .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t0ken,x-tenant=a")
            .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
            .env("OTEL_SERVICE_NAME", "renamed")
            .start()
            .await;
        server.client().post(COMPLETIONS, &completion(2)).await;
        wait_for_spans(&receiver).await;
        let received = receiver.received();
        let headers = &received.traces[0].headers;
        let mut gaps = Gaps::default();
        for (name, wanted) in [("authorization", "Bearer t0ken"), ("x-tenant", "a")] {
            gaps.equal(name, headers.get(name).map(|value| value.to_str().unwrap()), Some(wanted));
        }
        let resource = &spans::all(&received)[0].resource;
        gaps.equal("service.name", spans::string(resource, "service.name"), Some("renamed"));
        let environment = spans::string(resource, "deployment.environment.name");
        gaps.equal("deployment.environment.name", environment, Some("test"));
        gaps.expect(!server.log().contains("t0ken"), "a secret header is in the log");
        gaps.assert_none(format_args!("{transport:?}"));
    }
}

#[tokio::test]
async fn gzip_is_really_sent_over_both_protocols() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server =
            sending_to(&receiver, transport).env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip").start().await;
        server.client().post(COMPLETIONS, &completion(2)).await;
        wait_for_spans(&receiver).await;
        wait_for_metrics(&receiver).await;
        let received = receiver.received();
        let name = if transport == Transport::Grpc { "grpc-encoding" } else { "content-encoding" };
        for headers in [&received.traces[0].headers, &received.metrics[0].headers] {
            assert_eq!(headers.get(name).map(|value| value.to_str().unwrap()), Some("gzip"), "{headers:?}");
        }
        assert!(!spans::all(&received).is_empty(), "the payload inflates to valid protobuf");
    }
}

#[tokio::test]
async fn https_begins_with_a_tls_client_hello() {
    for transport in [Transport::Grpc, Transport::Http] {
        let raw = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://{}", raw.local_addr().unwrap());
        let server = quick(Options::new(&tiny_model()))
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport))
            .start()
            .await;
        server.client().post(COMPLETIONS, &completion(2)).await;
        let (mut stream, _) = tokio::time::timeout(SOON, raw.accept()).await.expect("a connection").unwrap();
        let mut first = [0; 2];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(first, [0x16, 0x03], "{transport:?}: a TLS handshake record");
    }
}

#[tokio::test]
async fn grpc_pointed_at_an_http_port_is_logged_with_the_endpoint_and_counted() {
    let receiver = OtlpReceiver::start().await;
    let endpoint = receiver.http_endpoint();
    let server = quick(Options::new(&tiny_model()))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .start()
        .await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    let authority = endpoint.trim_start_matches("http://").to_owned();
    server
        .wait_for_log(Duration::from_secs(15), |line| line.contains("WARN") && line.contains(&authority))
        .await;
    let failed = crate::scrape_until(server.client(), "a failed export", |scrape| {
        let family = scrape.families.get("limpid_otlp_exporter_requests_total");
        family.is_some_and(|_| {
            scrape.value("limpid_otlp_exporter_requests_total", &[("result", "failed"), ("signal", "traces")])
                > 0.0
        })
    })
    .await;
    drop(failed);
    assert_eq!(server.client().post(COMPLETIONS, &completion(2)).await.status, 200);
}

#[tokio::test]
async fn a_disabled_sdk_sends_nothing_and_still_answers_scrapes() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).env("OTEL_SDK_DISABLED", "true").start().await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    assert_eq!(scrape(server.client()).await.value("vllm:generation_tokens_total", &[]), 2.0);
    server.stop().await;
    let received = receiver.received();
    assert!(received.traces.is_empty() && received.metrics.is_empty());
}
