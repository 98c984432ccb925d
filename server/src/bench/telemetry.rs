//! What telemetry costs: the same load on two servers, one with everything on and one with everything off.
//!
//! Both are processes of this binary, idle while the other one works. The collector is part of this process.

use std::path::Path;

use indicatif::ProgressBar;
use limpid_engine::device::DeviceChoice;
use serde::Serialize;

use super::collector::{Behaviour, Collector};
use super::paired::{self, Cost, process_value};
use super::serve::{Load, run_load};
use super::server_process::ServerProcess;
use crate::client::Client;

/// Family of the server's resident memory in bytes.
pub(super) const RESIDENT_MEMORY: &str = "process_resident_memory_bytes";

/// The comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TelemetryReport {
    /// What was asked of each server, each time.
    load: Load,
    collector: Behaviour,
    cost: Cost,
    /// Requests that reached the collector, and their bytes.
    exports: u64,
    export_bytes: u64,
    /// What the server says of its exports, as its scrape has it.
    exporter: Vec<String>,
    /// Resident memory of the server with telemetry before and after the runs, in bytes.
    resident_bytes: (f64, f64),
}

impl TelemetryReport {
    /// The table.
    pub(super) fn text(&self) -> String {
        let TelemetryReport { load, exports, .. } = self;
        let mut text = format!(
            "{} requests by {} clients, prompts of {} and outputs of {} tokens, a run\n\n{}\nwith: traces at 100 %, \
             --collect-detailed-traces all, metrics each second, logs; {exports} exports, {:.1} MB; resident memory \
             {:.1} MB before, {:.1} MB after\n",
            load.requests,
            load.concurrency,
            load.prompt_tokens,
            load.output_tokens,
            self.cost.text(),
            self.export_bytes as f64 / 1e6,
            self.resident_bytes.0 / 1e6,
            self.resident_bytes.1 / 1e6,
        );
        for line in &self.exporter {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// Measures `pairs` pairs on the model in `path`.
pub(super) async fn compare(
    path: &Path,
    device: DeviceChoice,
    load: Load,
    behaviour: Behaviour,
    pairs: usize,
    bar: &ProgressBar,
) -> anyhow::Result<TelemetryReport> {
    let collector = Collector::start(behaviour).await?;
    let off = ServerProcess::start(path, device, &[], &[]).await?;
    let endpoint = format!("http://{}", collector.address);
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_LOGS_EXPORTER", "otlp"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        // Runs are short, and what is exported after one costs it nothing.
        ("OTEL_BSP_SCHEDULE_DELAY", "1000"),
    ];
    let on = ServerProcess::start(path, device, &["--collect-detailed-traces", "all"], &environment).await?;
    let (with, without) = (Client::new(&on.url, None)?, Client::new(&off.url, None)?);
    // The first load finds untouched memory in both servers.
    for client in [&without, &with] {
        run_load(client, &load, bar).await?;
    }
    let before = with.get_text("/metrics").await?;
    let cost = paired::compare(pairs, &load, async |is_on, load| {
        paired::run(if is_on { &with } else { &without }, load, bar).await
    });
    let cost = cost.await?;
    let after = with.get_text("/metrics").await?;
    let (exports, export_bytes) = collector.received();
    Ok(TelemetryReport {
        load,
        collector: behaviour,
        cost,
        exports,
        export_bytes,
        exporter: after
            .lines()
            .filter(|line| line.starts_with("limpid_otlp_exporter_"))
            .map(str::to_owned)
            .collect(),
        resident_bytes: (process_value(&before, RESIDENT_MEMORY)?, process_value(&after, RESIDENT_MEMORY)?),
    })
}
