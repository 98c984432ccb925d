//! What telemetry costs: the same load on two servers, one with everything on and one with everything off.
//!
//! Both are processes of this binary, idle while the other one works, and the loads alternate (off, on, on, off
//! …), so that a machine that grows warm or busy hits both alike. The collector is part of this process: it
//! takes every payload and throws it away.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::body::Bytes;
use indicatif::ProgressBar;
use limpid_engine::device::DeviceChoice;
use limpid_engine::gguf::fixture::{TinyLlama, write_tiny_llama};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::serve::{Load, run_load};
use super::stats::Summary;
use crate::client::Client;

/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// The comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TelemetryReport {
    /// What was asked of each server, each time.
    load: Load,
    /// Generated tokens per second of each pair.
    pairs: Vec<Pair>,
    /// Lost tokens per second, in percent of those without telemetry, over the pairs.
    overhead_percent: Summary,
    /// Requests the collector took, and their bytes.
    exports: u64,
    export_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Pair {
    off: f64,
    on: f64,
}

impl Pair {
    fn overhead_percent(self) -> f64 {
        (1.0 - self.on / self.off) * 100.0
    }
}

impl TelemetryReport {
    /// The table.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} requests by {} clients, prompts of {} and outputs of {} tokens, a run\n\n    off tokens/s    on \
             tokens/s    overhead\n",
            self.load.requests, self.load.concurrency, self.load.prompt_tokens, self.load.output_tokens,
        );
        for pair in &self.pairs {
            text.push_str(&format!(
                "{:>16.1}{:>16.1}{:>10.2} %\n",
                pair.off,
                pair.on,
                pair.overhead_percent()
            ));
        }
        let Summary { p50, min, max, .. } = self.overhead_percent;
        text + &format!(
            "\noverhead {p50:.2} % (median; {min:.2} to {max:.2} %)\non: traces at 100 %, --collect-detailed-traces \
             all, metrics each second, logs; {} exports, {:.1} MB\n",
            self.exports,
            self.export_bytes as f64 / 1e6,
        )
    }
}

/// Measures `pairs` pairs on the model in `path`, or on a tiny one of its own.
pub(super) async fn compare(
    path: Option<PathBuf>,
    device: DeviceChoice,
    load: Load,
    pairs: usize,
    bar: &ProgressBar,
) -> anyhow::Result<TelemetryReport> {
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let path = match path {
        Some(path) => path,
        None => {
            let path = folder.path().join("tiny.gguf");
            write_tiny_llama(&path, &TinyLlama { context_length: 4096, ..TinyLlama::default() })?;
            path
        }
    };
    let collector = Collector::start().await?;
    let off = ServerProcess::start(&path, device, None).await?;
    let on = ServerProcess::start(&path, device, Some(collector.address)).await?;
    let mut measured = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let mut pair_result = Pair { off: 0.0, on: 0.0 };
        let in_turn = [(&off, false), (&on, true)];
        let turns = if pair % 2 == 0 { in_turn } else { [in_turn[1], in_turn[0]] };
        for (server, is_on) in turns {
            let result = run_load(&Client::new(&server.url, None)?, &load, bar).await?;
            if result.failed > 0 {
                bail!("{} requests failed: {}", result.failed, result.first_error.unwrap_or_default());
            }
            let rate = result.output_tokens as f64 / result.seconds.max(1e-9);
            if is_on {
                pair_result.on = rate;
            } else {
                pair_result.off = rate;
            }
        }
        measured.push(pair_result);
    }
    let overhead = Summary::of(measured.iter().map(|pair| pair.overhead_percent()));
    Ok(TelemetryReport {
        load,
        pairs: measured,
        overhead_percent: overhead.context("no pair was measured")?,
        exports: collector.exports.load(Ordering::Relaxed),
        export_bytes: collector.bytes.load(Ordering::Relaxed),
    })
}

/// Takes everything and keeps nothing.
struct Collector {
    address: SocketAddr,
    exports: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl Collector {
    async fn start() -> anyhow::Result<Collector> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for the collector")?;
        let address = listener.local_addr().context("the collector has no address")?;
        let (exports, bytes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counted, sized) = (Arc::clone(&exports), Arc::clone(&bytes));
        let router = Router::new()
            .fallback(move |body: Bytes| {
                counted.fetch_add(1, Ordering::Relaxed);
                sized.fetch_add(body.len() as u64, Ordering::Relaxed);
                std::future::ready([("content-type", "application/x-protobuf")])
            })
            .layer(axum::extract::DefaultBodyLimit::disable());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Collector { address, exports, bytes })
    }
}

/// This binary as a server. Dropping it ends it.
pub(super) struct ServerProcess {
    pub(super) url: String,
    _child: Child,
}

impl ServerProcess {
    /// Starts it; with a collector it tells everything, without one nothing.
    pub(super) async fn start(
        model: &Path,
        device: DeviceChoice,
        collector: Option<SocketAddr>,
    ) -> anyhow::Result<ServerProcess> {
        let device = match device {
            DeviceChoice::Auto => "auto",
            DeviceChoice::Wgpu => "wgpu",
            DeviceChoice::Cpu => "cpu",
        };
        let binary = std::env::current_exe().context("this program cannot be found")?;
        let mut command = Command::new(binary);
        command.arg("serve").arg(model).args(["--port", "0", "--device", device]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OTEL_") {
                command.env_remove(name);
            }
        }
        command.env("RUST_LOG", "limpid=info");
        if let Some(collector) = collector {
            command
                .args(["--collect-detailed-traces", "all"])
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"))
                .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
                .env("OTEL_LOGS_EXPORTER", "otlp")
                .env("OTEL_METRIC_EXPORT_INTERVAL", "1000")
                // Runs are short, and what is exported after one costs it nothing.
                .env("OTEL_BSP_SCHEDULE_DELAY", "1000");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("a server cannot be started")?;
        let mut lines = BufReader::new(child.stderr.take().context("a server without a log")?).lines();
        let url = tokio::time::timeout(START_TIMEOUT, async {
            let mut seen = String::new();
            while let Some(line) = lines.next_line().await? {
                if let Some((_, address)) = line.rsplit_once("listening on ") {
                    return Ok(address.trim().to_owned());
                }
                seen = line;
            }
            bail!("a server ended at its start: {seen}")
        });
        let url = url.await.context("a server does not start")??;
        // A log that nobody reads would stop the server once its pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(ServerProcess { url, _child: child })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_what_is_lost_of_the_rate_without_telemetry() {
        assert!((Pair { off: 200.0, on: 190.0 }.overhead_percent() - 5.0).abs() < 1e-9);
        assert!(Pair { off: 100.0, on: 101.0 }.overhead_percent() < 0.0);
    }

    #[tokio::test]
    async fn the_collector_counts_and_answers_as_otlp_wants() {
        let collector = Collector::start().await.unwrap();
        let url = format!("http://{}", collector.address);
        // The answer is protobuf of no bytes, which is no JSON: the client of the API says so.
        let _ = Client::new(&url, None).unwrap().post("/v1/traces", &serde_json::json!({})).await;
        assert_eq!(collector.exports.load(Ordering::Relaxed), 1);
        assert_eq!(collector.bytes.load(Ordering::Relaxed), 2);
    }
}
