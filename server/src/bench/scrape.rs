//! What scrapes cost and take: the same load with and without a scraper, and the time of each scrape under it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;
use limpid_engine::device::DeviceChoice;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::paired::{self, Cost, process_value};
use super::serve::{Load, run_load};
use super::server_process::ServerProcess;
use super::stats::Summary;
use super::telemetry::RESIDENT_MEMORY;
use crate::client::Client;

/// The comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScrapeReport {
    load: Load,
    scrapes_per_second: f64,
    cost: Cost,
    /// Time of a scrape under the load, in seconds.
    scrape_seconds: Summary,
    /// Size of the last scrape in bytes.
    scrape_bytes: usize,
    /// Scrapes one after the other without a load.
    idle_scrapes: usize,
    /// Resident memory of the server before and after these, in bytes.
    resident_bytes: (f64, f64),
}

impl ScrapeReport {
    /// The table.
    pub(super) fn text(&self) -> String {
        let ScrapeReport { load, scrape_seconds: times, .. } = self;
        format!(
            "{} requests by {} clients, prompts of {} and outputs of {} tokens, a run\n\n{}\nwith: {} scrapes a \
             second, all dialects, {} bytes each: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, max {:.2} ms ({} \
             scrapes)\n{} scrapes without a load: resident memory {:.1} MB before, {:.1} MB after\n",
            load.requests,
            load.concurrency,
            load.prompt_tokens,
            load.output_tokens,
            self.cost.text(),
            self.scrapes_per_second,
            self.scrape_bytes,
            times.p50 * 1e3,
            times.p90 * 1e3,
            times.p99 * 1e3,
            times.max * 1e3,
            times.count,
            self.idle_scrapes,
            self.resident_bytes.0 / 1e6,
            self.resident_bytes.1 / 1e6,
        )
    }
}

/// Measures `pairs` pairs on the model in `path`.
pub(super) async fn compare(
    path: &Path,
    device: DeviceChoice,
    load: Load,
    scrapes_per_second: f64,
    idle_scrapes: usize,
    pairs: usize,
    bar: &ProgressBar,
) -> anyhow::Result<ScrapeReport> {
    let arguments = ["--metrics-dialects", "vllm,genai,sglang", "--enable-mfu-metrics", "--kv-cache-metrics"];
    let server = ServerProcess::start(path, device, &arguments, &[]).await?;
    let client = Client::new(&server.url, None)?;
    run_load(&client, &load, bar).await?;

    let every = Duration::from_secs_f64(1.0 / scrapes_per_second);
    let mut times = Vec::new();
    let cost = paired::compare(pairs, &load, async |scraped, load| {
        // Both runs of a pair go to this one server, whose prefix cache would know the second.
        let load = &Load { seed: load.seed.wrapping_mul(2).wrapping_add(u64::from(scraped)), ..load.clone() };
        if !scraped {
            return paired::run(&client, load, bar).await;
        }
        let (stop, stopped) = oneshot::channel();
        let scraper = tokio::spawn(scrape_until(client.clone(), every, stopped));
        let result = paired::run(&client, load, bar).await;
        // The scraper may have ended with an error, which its result tells.
        let _ = stop.send(());
        times.extend(scraper.await.context("the scraper panicked")??);
        result
    });
    let cost = cost.await?;

    let before = process_value(&client.get_text("/metrics").await?, RESIDENT_MEMORY)?;
    let mut last = String::new();
    for _ in 0..idle_scrapes.max(1) {
        last = client.get_text("/metrics").await?;
    }
    Ok(ScrapeReport {
        load,
        scrapes_per_second,
        cost,
        scrape_seconds: Summary::of(times).context("not one scrape fell into the load: make it longer")?,
        scrape_bytes: last.len(),
        idle_scrapes,
        resident_bytes: (before, process_value(&last, RESIDENT_MEMORY)?),
    })
}

/// Scrapes at each turn of the clock until told to stop; the seconds each took.
async fn scrape_until(
    client: Client,
    every: Duration,
    mut stopped: oneshot::Receiver<()>,
) -> anyhow::Result<Vec<f64>> {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut times = Vec::new();
    loop {
        tokio::select! {
            _ = &mut stopped => return Ok(times),
            _ = ticks.tick() => {}
        }
        let started = Instant::now();
        client.get_text("/metrics").await?;
        times.push(started.elapsed().as_secs_f64());
    }
}
