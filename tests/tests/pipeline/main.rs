//! The pipeline with the real programs: limpid → collector → Prometheus and Jaeger.
//!
//! `cargo xtask programs` brings them. Without them the suite says what is missing and skips;
//! `LIMPID_REQUIRE_PROGRAMS=1` makes that a failure. Tests run one after the other, as each starts up to four
//! programs.

#![allow(missing_docs)]

mod configs;
mod dashboards;
mod examples;
mod kubernetes;
mod parity;
mod restart;
mod rules;
mod sampling;
mod traces;
mod vllm_dashboards;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use limpid_tests::client::Client;
use limpid_tests::programs::collector::{Collector, Ports};
use limpid_tests::programs::jaeger::Jaeger;
use limpid_tests::programs::missing;
use limpid_tests::programs::prometheus::Prometheus;
use limpid_tests::server::{MODEL, Options, Server, tiny_model};
use rand::RngExt;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use xtask::programs::Program;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// How long something may take to get from one end of the pipeline to the other.
const SOON: Duration = Duration::from_secs(30);

/// Everything that one test needs, and no other test beside it.
struct Pipeline {
    server: Server,
    collector: Collector,
    jaeger: Jaeger,
    prometheus: Prometheus,
    _alone: MutexGuard<'static, ()>,
}

/// The names of Prometheus' jobs: limpid scraped by itself, limpid by way of the collector, the collector.
const DIRECT: &str = "direct";
const EXPORTER: &str = "collector-exporter";
const OWN: &str = "collector";

/// Waits until no other test runs.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// What adds metrics to limpid. A name that this build does not know is left out, so that the suite follows the
/// catalogue by itself.
const SWITCHES: [&[&str]; 5] = [
    &["--collect-detailed-traces", "all"],
    &["--metrics-dialects", "vllm,genai,limpid,sglang"],
    &["--enable-mfu-metrics"],
    &["--kv-cache-metrics"],
    &["--slo-inter-token-ms", "50"],
];

/// A limpid that has everything switched on that adds a metric, and sends quickly.
async fn limpid(collector: &Collector) -> Options {
    let help = Options::command("serve").plain("--help").run().await.log;
    let known = SWITCHES.iter().filter(|switch| help.contains(switch[0])).copied().flatten();
    known
        .fold(Options::new(&tiny_model()), |options, word| options.plain(word))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint())
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "200")
}

impl Pipeline {
    /// Starts it with a configuration of `otel-collector/`; `None` if a program is missing. `direct` says whether
    /// Prometheus also scrapes limpid itself.
    async fn start(config: &str, direct: bool) -> Option<Pipeline> {
        let needed = [
            (Program::Collector, "collector"),
            (Program::Jaeger, "jaeger"),
            (Program::Prometheus, "prometheus"),
        ];
        if missing(&needed) {
            return None;
        }
        let alone = alone().await;
        let jaeger = Jaeger::start().await;
        let collector = Collector::start(config, Ports::free(), jaeger.otlp).await;
        let server = limpid(&collector).await.start().await;
        let mut targets =
            BTreeMap::from([(EXPORTER, vec![collector.ports.exporter]), (OWN, vec![collector.ports.own])]);
        if direct {
            targets.insert(DIRECT, vec![server.address()]);
        }
        let prometheus = Prometheus::start(&targets, !direct).await;
        Some(Pipeline { server, collector, jaeger, prometheus, _alone: alone })
    }
}

/// The repository's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn chat(max_tokens: u64) -> Value {
    json!({
        "model": MODEL, "messages": [{"role": "user", "content": "tell me about a lighthouse, and about the sea"}],
        "max_tokens": max_tokens, "temperature": 0
    })
}

fn streamed(mut request: Value) -> Value {
    request["stream"] = true.into();
    request
}

/// A new trace id in hex.
fn new_trace_id() -> String {
    format!("{:032x}", rand::rng().random_range(1..u128::MAX))
}

/// Asks for a completion as part of a trace whose id is returned.
async fn ask(client: Client, path: &str, request: &Value) -> String {
    let id = new_trace_id();
    let parent = format!("00-{id}-00000000000000aa-01");
    client.post_with(path, &[("traceparent", &parent)], request).await;
    id
}

/// One of everything: good ends by both routes, streams, several at once with the same prompt, a client that
/// leaves, a moment of sleep, requests that are refused. Every part ends before it returns.
async fn load(client: Client) {
    ask(client, CHAT, &chat(24)).await;
    ask(client, COMPLETIONS, &json!({"model": MODEL, "prompt": "hello world", "max_tokens": 9})).await;
    let streams = (0..6).map(|index| async move {
        let stream = client.stream(CHAT, &[], &streamed(chat(8 + index))).await;
        stream.chunks().await
    });
    futures::future::join_all(streams).await;
    let mut left = client.stream(CHAT, &[], &streamed(chat(3000))).await;
    left.next().await.expect("a first chunk");
    drop(left);
    for order in ["/sleep?level=0&mode=wait", "/wake_up"] {
        assert_eq!(client.request(http::Method::POST, order, &[], Default::default()).await.status, 200);
    }
    ask(client, CHAT, &json!({"model": "unknown", "messages": []})).await;
    ask(client, COMPLETIONS, &json!({"model": MODEL, "prompt": vec![1; 5000]})).await;
    limpid_tests::programs::poll("an idle engine", SOON, async || {
        let metrics = client.get("/metrics").await;
        let running = metrics.text().lines().find(|line| line.starts_with("vllm:num_requests_running{"))?;
        running.ends_with(" 0.0").then_some(()).or_else(|| running.ends_with(" 0").then_some(()))
    })
    .await;
}
