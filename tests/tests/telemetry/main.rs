//! What leaves the process: traces and metrics over both protocols, and the scrape beside them.
//!
//! Everything runs against the real binary and an OTLP receiver inside the test.

#![allow(missing_docs)]

mod books;
mod catalogue;
mod choices;
mod compliance;
mod container;
mod crowd;
mod delivery;
mod example;
mod exporters;
mod hostile;
mod load;
mod logs;
mod metrics;
mod parity;
mod paths;
mod push;
mod steps;
mod tree;

use std::time::Duration;

use limpid_tests::client::Client;
use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{MODEL, Options, tiny_model};
use limpid_tests::spans::{self, Trace};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// How long telemetry may take to arrive when exporters are set to be quick.
const SOON: Duration = Duration::from_secs(20);

/// A word that must not leave the process by any signal.
const MARKER: &str = "xylophone7731";

fn protocol(transport: Transport) -> &'static str {
    match transport {
        Transport::Grpc => "grpc",
        Transport::Http => "http/protobuf",
    }
}

/// A tiny model's server that sends everything to the receiver, quickly.
fn sending_to(receiver: &OtlpReceiver, transport: Transport) -> Options {
    quick(Options::new(&tiny_model()))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint(transport))
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport))
}

fn quick(options: Options) -> Options {
    options.env("OTEL_BSP_SCHEDULE_DELAY", "100").env("OTEL_METRIC_EXPORT_INTERVAL", "200")
}

/// A greedy chat request for this many tokens, with the marker word in its prompt.
fn chat(max_tokens: u64) -> Value {
    json!({
        "model": MODEL, "messages": [{"role": "user", "content": format!("tell me about {MARKER}")}],
        "max_tokens": max_tokens, "temperature": 0
    })
}

/// A greedy completion request for this many tokens.
fn completion(max_tokens: u64) -> Value {
    json!({"model": MODEL, "prompt": "hello world", "max_tokens": max_tokens, "temperature": 0})
}

/// The request with more fields.
fn with(mut request: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// Waits for the trace whose SERVER span has arrived and passes `check`.
async fn trace(receiver: &OtlpReceiver, what: &str, check: impl Fn(&Trace) -> bool) -> Trace {
    receiver
        .wait_for(what, SOON, |received| {
            spans::traces(&spans::all(received))
                .into_iter()
                .find(|trace| trace.of_kind(spans::SpanKind::Server).len() == 1 && check(trace))
        })
        .await
}

async fn scrape(client: Client) -> Scrape {
    let reply = client.get("/metrics").await;
    assert_eq!(reply.status, 200);
    Scrape::parse(reply.text(), Format::Text004).unwrap_or_else(|broken| panic!("{broken}\n{}", reply.text()))
}

async fn scrape_open_metrics(client: Client) -> Scrape {
    let accept = [("accept", "application/openmetrics-text;version=1.0.0")];
    let reply = client.request(http::Method::GET, "/metrics", &accept, bytes::Bytes::new()).await;
    assert!(
        reply.header("content-type").starts_with("application/openmetrics-text"),
        "{}",
        reply.header("content-type")
    );
    Scrape::parse(reply.text(), Format::OpenMetrics)
        .unwrap_or_else(|broken| panic!("{broken}\n{}", reply.text()))
}

/// Scrapes again and again until `check` holds.
async fn scrape_until(client: Client, what: &str, check: impl Fn(&Scrape) -> bool) -> Scrape {
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let scrape = scrape(client).await;
        if check(&scrape) {
            return scrape;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what} did not hold within {SOON:?}");
    }
}
