//! What telemetry costs: the same load on two servers, one with everything on and one with everything off.
//!
//! Both are processes of this binary, idle while the other one works. The collector is part of this process.
//!
//! Where a process happens to have its memory can make it faster or slower by more than telemetry costs, for as long as
//! it lives. So every [`PAIRS_PER_START`] pairs have servers of their own, the one or the other started first in turn.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;

use super::collector::{Behaviour, Collector};
use super::paired::{self, Cost, process_value};
use super::serve::{Load, run_load};
use super::server_process::ServerProcess;
use crate::client::Client;
use crate::local::TargetArgs;

/// Pairs that are measured on the same two processes; both orders of a pair's runs come equally often.
const PAIRS_PER_START: usize = 2;

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
    /// What the servers say of their exports, by the series of their scrapes.
    exporter: BTreeMap<String, f64>,
    /// Resident memory of the last server with telemetry before and after its runs, in bytes.
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
        for (series, value) in &self.exporter {
            text.push_str(&format!("{series} {value}\n"));
        }
        text
    }
}

/// Measures `pairs` pairs on the model in `path`.
pub(super) async fn compare(
    path: &Path,
    target: &TargetArgs,
    load: Load,
    behaviour: Behaviour,
    pairs: usize,
    bar: &ProgressBar,
) -> anyhow::Result<TelemetryReport> {
    let collector = Collector::start(behaviour).await?;
    let endpoint = format!("http://{}", collector.address);
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_LOGS_EXPORTER", "otlp"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        // Runs are short, and what is exported after one costs it nothing.
        ("OTEL_BSP_SCHEDULE_DELAY", "1000"),
    ];
    let start = async |is_on: bool| match is_on {
        true => ServerProcess::start(path, target, &["--collect-detailed-traces", "all"], &environment).await,
        false => ServerProcess::start(path, target, &[], &[]).await,
    };
    let (mut measured, mut exporter, mut resident_bytes) = (Vec::new(), BTreeMap::new(), (0.0, 0.0));
    for first in (0..pairs).step_by(PAIRS_PER_START) {
        let on_first = first / PAIRS_PER_START % 2 == 1;
        if first > 0 {
            // They warm up anew.
            bar.inc_length(2 * load.requests as u64);
        }
        let (one, other) = (start(on_first).await?, start(!on_first).await?);
        let (on, off) = if on_first { (&one, &other) } else { (&other, &one) };
        let (with, without) = (Client::new(&on.url, None)?, Client::new(&off.url, None)?);
        // The first load finds untouched memory in both servers.
        for client in [&without, &with] {
            run_load(client, &load, bar).await?;
        }
        let before = with.get_text("/metrics").await?;
        let numbers = first..pairs.min(first + PAIRS_PER_START);
        let run = async |is_on: bool, load: &Load| {
            paired::run(if is_on { &with } else { &without }, load, bar).await
        };
        measured.extend(paired::measure(numbers, &load, run).await?);
        let after = with.get_text("/metrics").await?;
        resident_bytes = (process_value(&before, RESIDENT_MEMORY)?, process_value(&after, RESIDENT_MEMORY)?);
        for line in after.lines().filter(|line| line.starts_with("limpid_otlp_exporter_")) {
            let (series, value) = line.rsplit_once(' ').context("a series without a value")?;
            *exporter.entry(series.to_owned()).or_insert(0.0) += value.parse::<f64>()?;
        }
    }
    let (exports, export_bytes) = collector.received();
    let cost = Cost::of(measured)?;
    Ok(TelemetryReport { load, collector: behaviour, cost, exports, export_bytes, exporter, resident_bytes })
}
