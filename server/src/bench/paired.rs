//! The same load served in two ways, one of which has something more to do.
//!
//! Runs alternate (without, with, with, without …), so that a machine that grows warm or busy hits both alike,
//! and each pair is compared by itself: many short runs tell more than a few long ones. Wall-clock rates of a
//! shared machine scatter by more than telemetry costs; the processor time of the server per token scatters less,
//! and shows work that idle cores would hide. What the two ways are is the caller's.

use std::ops::Range;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use super::serve::{Load, LoadResult, run_load};
use super::stats::Summary;
use crate::client::Client;

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Side {
    /// Generated tokens per second.
    tokens_per_second: f64,
    /// Median time to the first token, in seconds.
    time_to_first_token: f64,
    /// Processor time of the server for each generated token, in seconds, where there is a server.
    cpu_per_token: Option<f64>,
}

impl Side {
    fn of(run: Run) -> anyhow::Result<Side> {
        let Run { result, cpu_seconds } = run;
        if result.failed > 0 {
            bail!("{} requests failed: {}", result.failed, result.first_error.unwrap_or_default());
        }
        Ok(Side {
            tokens_per_second: result.output_tokens as f64 / result.seconds.max(1e-9),
            time_to_first_token: result.time_to_first_token.context("no answer was streamed")?.p50,
            cpu_per_token: cpu_seconds.map(|seconds| seconds / result.output_tokens.max(1) as f64),
        })
    }
}

/// A run of the load.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) result: LoadResult,
    /// Processor time that the server spent meanwhile.
    pub(super) cpu_seconds: Option<f64>,
}

/// Runs the load on the server behind `client` and takes the server's processor time from two scrapes.
pub(super) async fn run(client: &Client, load: &Load, bar: &ProgressBar) -> anyhow::Result<Run> {
    let before = process_value(&client.get_text("/metrics").await?, "process_cpu_seconds_total")?;
    let result = run_load(client, load, bar).await?;
    let after = process_value(&client.get_text("/metrics").await?, "process_cpu_seconds_total")?;
    Ok(Run { result, cpu_seconds: Some(after - before) })
}

/// The value of a family without labels, as a scrape has it.
pub(super) fn process_value(scrape: &str, family: &str) -> anyhow::Result<f64> {
    scrape
        .lines()
        .find_map(|line| line.strip_prefix(family)?.strip_prefix(' ')?.trim().parse().ok())
        .with_context(|| format!("the scrape has no {family}"))
}

/// Two runs of the same load, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    without: Side,
    with: Side,
}

impl Pair {
    fn lost_percent(self) -> f64 {
        (1.0 - self.with.tokens_per_second / self.without.tokens_per_second) * 100.0
    }

    fn later_percent(self) -> f64 {
        (self.with.time_to_first_token / self.without.time_to_first_token - 1.0) * 100.0
    }

    fn more_cpu_percent(self) -> Option<f64> {
        Some((self.with.cpu_per_token? / self.without.cpu_per_token? - 1.0) * 100.0)
    }
}

/// What the additional work costs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    pairs: Vec<Pair>,
    /// Lost tokens per second, in percent of those without, over the pairs.
    lost_percent: Summary,
    /// Rise of the median time to the first token, in percent of the one without, over the pairs.
    later_percent: Summary,
    /// Rise of the processor time per token, in percent of the one without, over the pairs.
    more_cpu_percent: Option<Summary>,
}

impl Cost {
    /// What these pairs show.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn of(pairs: Vec<Pair>) -> anyhow::Result<Cost> {
        let summary = |percent: fn(Pair) -> f64| {
            Summary::of(pairs.iter().map(|pair| percent(*pair))).context("no pair was measured")
        };
        Ok(Cost {
            lost_percent: summary(Pair::lost_percent)?,
            later_percent: summary(Pair::later_percent)?,
            more_cpu_percent: Summary::of(pairs.iter().filter_map(|pair| pair.more_cpu_percent())),
            pairs,
        })
    }

    /// The table: a line a pair, then the medians.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{:>10}{:>10}{:>10}{:>14}{:>9}{:>10}{:>15}{:>9}{:>10}\n",
            "tokens/s", "with", "lost", "TTFT p50 ms", "with", "later", "CPU µs/token", "with", "more"
        );
        for pair in &self.pairs {
            let Pair { without, with } = pair;
            text.push_str(&format!(
                "{:>10.1}{:>10.1}{:>8.2} %{:>14.2}{:>9.2}{:>8.2} %{:>15}{:>9}{:>8} %\n",
                without.tokens_per_second,
                with.tokens_per_second,
                pair.lost_percent(),
                without.time_to_first_token * 1e3,
                with.time_to_first_token * 1e3,
                pair.later_percent(),
                known(without.cpu_per_token.map(|seconds| seconds * 1e6), 1),
                known(with.cpu_per_token.map(|seconds| seconds * 1e6), 1),
                known(pair.more_cpu_percent(), 2),
            ));
        }
        for (name, summary) in [
            ("tokens/s lost", Some(self.lost_percent)),
            ("TTFT later", Some(self.later_percent)),
            ("CPU more", self.more_cpu_percent),
        ] {
            let Some(Summary { count, mean, p50, deviation, .. }) = summary else { continue };
            let error = deviation / (count as f64).sqrt();
            text.push_str(&format!("{name}: median {p50:.2} %, mean {mean:.2} ± {error:.2} %\n"));
        }
        text
    }
}

/// A figure of the table, or a dash.
fn known(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Measures `pairs` pairs; `run(true, load)` is the run with the additional work. Both runs of a pair send the
/// same requests, and those of another pair are others, so that no prefix cache helps.
///
/// # Errors
/// A run fails, or a request of one.
pub(super) async fn compare(
    pairs: usize,
    load: &Load,
    run: impl AsyncFnMut(bool, &Load) -> anyhow::Result<Run>,
) -> anyhow::Result<Cost> {
    Cost::of(measure(0..pairs, load, run).await?)
}

/// Measures the pairs of these numbers, as [`compare`] does.
///
/// # Errors
/// A run fails, or a request of one.
pub(super) async fn measure(
    pairs: Range<usize>,
    load: &Load,
    mut run: impl AsyncFnMut(bool, &Load) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<Pair>> {
    let mut measured = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let with_first = pair % 2 == 1;
        // The first seed was for warming up.
        let load = Load { seed: load.seed.wrapping_add(1 + pair as u64), ..load.clone() };
        let first = Side::of(run(with_first, &load).await?)?;
        let second = Side::of(run(!with_first, &load).await?)?;
        measured.push(match with_first {
            true => Pair { without: second, with: first },
            false => Pair { without: first, with: second },
        });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tokens_per_second: u64, first_token: f64, cpu_seconds: f64) -> Run {
        let result = LoadResult {
            seconds: 2.0,
            completed: 1,
            failed: 0,
            prompt_tokens: 1,
            output_tokens: 2 * tokens_per_second,
            time_to_first_token: Summary::of([first_token]),
            inter_token_latency: None,
            end_to_end: None,
            first_error: None,
        };
        Run { result, cpu_seconds: Some(cpu_seconds) }
    }

    fn load() -> Load {
        Load {
            concurrency: 1,
            requests: 1,
            prompt_tokens: "1".parse().unwrap(),
            output_tokens: "1".parse().unwrap(),
            seed: 7,
            stream: true,
        }
    }

    #[tokio::test]
    async fn runs_alternate_and_each_pair_is_compared_by_itself() {
        let mut order = Vec::new();
        let note = async |with: bool, load: &Load| {
            order.push((with, load.seed));
            Ok(if with { run(190, 0.011, 0.0418) } else { run(200, 0.010, 0.04) })
        };
        let cost = compare(3, &load(), note).await.unwrap();
        assert_eq!(order, [(false, 8), (true, 8), (true, 9), (false, 9), (false, 10), (true, 10)]);
        assert!((cost.lost_percent.p50 - 5.0).abs() < 1e-9 && (cost.lost_percent.max - 5.0).abs() < 1e-9);
        assert!((cost.later_percent.p50 - 10.0).abs() < 1e-9);
        assert!((cost.more_cpu_percent.unwrap().p50 - 10.0).abs() < 1e-9);
        assert!(cost.text().contains("tokens/s lost: median 5.00 %, mean 5.00 ± 0.00 %"), "{}", cost.text());
    }

    #[tokio::test]
    async fn a_failed_request_ends_the_comparison() {
        let mut failed = run(1, 1.0, 1.0);
        failed.result.failed = 2;
        failed.result.first_error = Some("connection reset".to_owned());
        let error = compare(1, &load(), async |_, _| Ok(failed.clone())).await.unwrap_err();
        assert_eq!(error.to_string(), "2 requests failed: connection reset");
    }

    #[test]
    fn the_processor_time_is_that_of_the_whole_process() {
        let scrape =
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 12.5\nprocess_cpu_x 1\n";
        assert_eq!(process_value(scrape, "process_cpu_seconds_total").unwrap(), 12.5);
        assert!(process_value(scrape, "process_cpu").is_err());
    }
}
