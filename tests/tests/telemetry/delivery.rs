//! Collectors that are absent, late, deaf, slow or wrong hurt nobody, and losses are counted.

use std::time::{Duration, Instant};

use limpid_tests::client::Client;
use limpid_tests::otlp_receiver::{Behaviour, OtlpReceiver, Transport};
use limpid_tests::server::{Options, slow_model, tiny_model};
use limpid_tests::spans;
use tokio::net::TcpListener;

use crate::{COMPLETIONS, SOON, completion, protocol, quick, scrape, scrape_until, sending_to};

/// Spans of one request: SERVER, model, queue, prefill, decode.
const SPANS_PER_REQUEST: f64 = 5.0;
/// Spans of a start on the CPU: the root, three of the model, two of the device.
const SPANS_OF_THE_START: f64 = 6.0;

/// How long a request takes.
async fn latency(client: Client) -> f64 {
    let asked = Instant::now();
    assert_eq!(client.post(COMPLETIONS, &completion(24)).await.status, 200);
    asked.elapsed().as_secs_f64()
}

/// How long a start takes.
async fn start_time(options: &Options) -> f64 {
    let asked = Instant::now();
    drop(options.start().await);
    asked.elapsed().as_secs_f64()
}

/// How much slower the fastest of the second is than the fastest of the first. What else the machine does comes and
/// goes, and only adds; who waits for a collector, or works for it, does so every time.
fn ratio_of_fastest(pairs: &[(f64, f64)]) -> f64 {
    let (plain, with) = pairs
        .iter()
        .fold((f64::MAX, f64::MAX), |fastest, pair| (fastest.0.min(pair.0), fastest.1.min(pair.1)));
    with / plain
}

/// Runs `measure` until it finds no more than 5 %. Each round measures anew: a machine that is busy by chance
/// passes sooner or later, one whose telemetry costs more than that does not. Medians under load, which other tests
/// beside this one would spoil, are for `limpid bench` to compare.
async fn assert_unhurt(what: &str, mut measure: impl AsyncFnMut() -> f64) {
    let mut ratios = Vec::new();
    while ratios.len() < 8 {
        ratios.push(measure().await);
        if ratios.last().is_some_and(|ratio| *ratio <= 1.05) {
            return;
        }
    }
    panic!("{what}: {ratios:?} times what it takes with a collector that answers, or without telemetry");
}

/// Request times are compared on the slow model, whose requests take long enough for 5 % to be more than noise.
#[tokio::test(flavor = "multi_thread")]
async fn closed_deaf_and_slow_collectors_slow_neither_start_nor_requests_by_5_percent() {
    let options = Options::new(&slow_model());
    let plain = options.start().await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    // Connections wait in its backlog for ever.
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let receiver = OtlpReceiver::start().await;
    receiver.behave(Behaviour::Hang);
    let healthy = OtlpReceiver::start().await;
    for transport in [Transport::Grpc, Transport::Http] {
        // An exporter takes a moment to be made, whatever its collector does.
        let well = quick(options.clone())
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &healthy.endpoint(transport))
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport));
        for (what, endpoint) in [
            ("closed", format!("http://{closed}")),
            ("deaf", format!("http://{}", deaf.local_addr().unwrap())),
            ("never answering", receiver.endpoint(transport)),
        ] {
            let with = quick(options.clone())
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
                .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport));
            assert_unhurt(&format!("start, {what}, {transport:?}"), async || {
                let mut pairs = Vec::new();
                for _ in 0..5 {
                    pairs.push((start_time(&well).await, start_time(&with).await));
                }
                ratio_of_fastest(&pairs)
            })
            .await;
            let with = with.start().await;
            assert_unhurt(&format!("requests, {what}, {transport:?}"), async || {
                let mut pairs = Vec::new();
                for _ in 0..25 {
                    pairs.push((latency(plain.client()).await, latency(with.client()).await));
                }
                ratio_of_fastest(&pairs)
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_collector_that_answers_404_is_reported_once_and_the_loss_is_counted() {
    let receiver = OtlpReceiver::start().await;
    receiver.behave(Behaviour::NotFound);
    let server = sending_to(&receiver, Transport::Http).start().await;
    for _ in 0..3 {
        server.client().post(COMPLETIONS, &completion(2)).await;
    }
    scrape_until(server.client(), "three requests' spans failed", |scrape| {
        scrape.value("limpid_otlp_exporter_spans_total", &[("result", "failed")])
            == 3.0 * SPANS_PER_REQUEST + SPANS_OF_THE_START
    })
    .await;
    let log = server.log();
    let reports = log.lines().filter(|line| line.contains("WARN") && line.contains("traces")).count();
    assert!((1..=2).contains(&reports), "{reports} reports in:\n{log}");
    receiver.behave(Behaviour::Answer);
    server.client().post(COMPLETIONS, &completion(2)).await;
    receiver
        .wait_for("spans after the collector came to its senses", SOON, |received| {
            (!spans::all(received).is_empty()).then_some(())
        })
        .await;
}

#[tokio::test]
async fn a_collector_that_comes_late_gets_the_first_requests() {
    for transport in [Transport::Grpc, Transport::Http] {
        // Two ports that nobody listens on yet.
        let (grpc, http) = {
            let listeners = (
                TcpListener::bind("127.0.0.1:0").await.unwrap(),
                TcpListener::bind("127.0.0.1:0").await.unwrap(),
            );
            (listeners.0.local_addr().unwrap(), listeners.1.local_addr().unwrap())
        };
        let address = if transport == Transport::Grpc { grpc } else { http };
        let server = quick(Options::new(&tiny_model()))
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"))
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport))
            .start()
            .await;
        for _ in 0..5 {
            server.client().post(COMPLETIONS, &completion(2)).await;
        }
        // A failed attempt shows that the exporter has tried.
        scrape_until(server.client(), "a failed attempt", |scrape| {
            scrape.value("limpid_otlp_exporter_requests_total", &[("signal", "traces"), ("result", "failed")])
                > 0.0
        })
        .await;
        let receiver = OtlpReceiver::start_on(grpc, http).await;
        receiver
            .wait_for("all five traces", Duration::from_secs(40), |received| {
                (spans::request_traces(&spans::all(received)).len() == 5).then_some(())
            })
            .await;
    }
}

#[tokio::test]
async fn a_full_queue_drops_spans_counts_them_and_harms_no_request() {
    let receiver = OtlpReceiver::start().await;
    receiver.behave(Behaviour::Hang);
    let server = sending_to(&receiver, Transport::Grpc)
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "1")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        .start()
        .await;
    for _ in 0..50 {
        assert_eq!(server.client().post(COMPLETIONS, &completion(2)).await.status, 200);
    }
    let spans = |result: &'static str| {
        move |scrape: &limpid_tests::exposition::Scrape| {
            scrape.value("limpid_otlp_exporter_spans_total", &[("result", result)])
        }
    };
    // The last SERVER span ends just after its client has read the answer.
    scrape_until(server.client(), "every span to be accounted for", |scrape| {
        let queued = scrape.value("limpid_otlp_exporter_span_queue_length", &[]);
        let sum = spans("exported")(scrape) + spans("failed")(scrape) + spans("dropped")(scrape) + queued;
        spans("dropped")(scrape) > 0.0 && sum == 50.0 * SPANS_PER_REQUEST + SPANS_OF_THE_START
    })
    .await;
}

#[tokio::test]
async fn exporting_does_not_feed_itself() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).env("RUST_LOG", "trace").start().await;
    server.client().post(COMPLETIONS, &completion(2)).await;
    receiver
        .wait_for("the request's spans", SOON, |received| {
            (spans::all(received).len() >= (SPANS_PER_REQUEST + SPANS_OF_THE_START) as usize).then_some(())
        })
        .await;
    let before = receiver.received();
    receiver
        .wait_for("ten more metric exports", SOON, |received| {
            (received.metrics.len() >= before.metrics.len() + 10).then_some(())
        })
        .await;
    let after = receiver.received();
    assert_eq!(spans::all(&after).len(), spans::all(&before).len(), "spans of the export itself");
    assert_eq!(after.logs.len(), before.logs.len(), "logs of the export itself");
    assert!(
        scrape(server.client()).await.value("limpid_otlp_exporter_spans_total", &[("result", "exported")])
            >= 5.0
    );
}

#[tokio::test]
async fn spans_still_arrive_over_http_after_many_flushes() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).start().await;
    for flush in 1..=10 {
        server.client().post(COMPLETIONS, &completion(2)).await;
        receiver
            .wait_for("the flush's trace", SOON, |received| {
                (spans::request_traces(&spans::all(received)).len() == flush).then_some(())
            })
            .await;
    }
    assert!(receiver.received().traces.len() >= 10, "each came by an export of its own");
    let ended = server.stop().await;
    assert!(ended.status.success() && !ended.log.contains("panicked"), "{}", ended.log);
}
