//! The same load served in two ways, one of which has something more to do.
//!
//! Runs alternate (without, with, with, without …), so that a machine that grows warm or busy hits both alike,
//! and each pair is compared by itself. What the two ways are is the caller's.

use anyhow::{Context, bail};
use serde::Serialize;

use super::serve::LoadResult;
use super::stats::Summary;

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Side {
    /// Generated tokens per second.
    tokens_per_second: f64,
    /// Median time to the first token, in seconds.
    time_to_first_token: f64,
}

impl Side {
    fn of(result: LoadResult) -> anyhow::Result<Side> {
        if result.failed > 0 {
            bail!("{} requests failed: {}", result.failed, result.first_error.unwrap_or_default());
        }
        Ok(Side {
            tokens_per_second: result.output_tokens as f64 / result.seconds.max(1e-9),
            time_to_first_token: result.time_to_first_token.context("no answer was streamed")?.p50,
        })
    }
}

/// Two runs of the same load, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Pair {
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
}

/// What the additional work costs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cost {
    pairs: Vec<Pair>,
    /// Lost tokens per second, in percent of those without, over the pairs.
    lost_percent: Summary,
    /// Rise of the median time to the first token, in percent of the one without, over the pairs.
    later_percent: Summary,
}

impl Cost {
    /// The table: a line a pair, then the medians.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{:>10}{:>12}{:>10}{:>16}{:>12}{:>10}\n",
            "tokens/s", "with", "lost", "TTFT p50 ms", "with", "later"
        );
        for pair in &self.pairs {
            let Pair { without, with } = pair;
            text.push_str(&format!(
                "{:>10.1}{:>12.1}{:>8.2} %{:>16.2}{:>12.2}{:>8.2} %\n",
                without.tokens_per_second,
                with.tokens_per_second,
                pair.lost_percent(),
                without.time_to_first_token * 1e3,
                with.time_to_first_token * 1e3,
                pair.later_percent(),
            ));
        }
        for (name, Summary { p50, min, max, .. }) in
            [("tokens/s lost", self.lost_percent), ("TTFT later", self.later_percent)]
        {
            text.push_str(&format!("{name}: {p50:.2} % (median; {min:.2} to {max:.2} %)\n"));
        }
        text
    }
}

/// Measures `pairs` pairs; `run(true)` is the run with the additional work.
///
/// # Errors
/// A run fails, or a request of one.
pub(super) async fn compare(
    pairs: usize,
    mut run: impl AsyncFnMut(bool) -> anyhow::Result<LoadResult>,
) -> anyhow::Result<Cost> {
    let mut measured = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let with_first = pair % 2 == 1;
        let first = Side::of(run(with_first).await?)?;
        let second = Side::of(run(!with_first).await?)?;
        measured.push(match with_first {
            true => Pair { without: second, with: first },
            false => Pair { without: first, with: second },
        });
    }
    let summary = |percent: fn(Pair) -> f64| {
        Summary::of(measured.iter().map(|pair| percent(*pair))).context("no pair was measured")
    };
    let (lost_percent, later_percent) = (summary(Pair::lost_percent)?, summary(Pair::later_percent)?);
    Ok(Cost { pairs: measured, lost_percent, later_percent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(tokens_per_second: u64, first_token: f64) -> LoadResult {
        LoadResult {
            seconds: 2.0,
            completed: 1,
            failed: 0,
            prompt_tokens: 1,
            output_tokens: 2 * tokens_per_second,
            time_to_first_token: Summary::of([first_token]),
            inter_token_latency: None,
            end_to_end: None,
            first_error: None,
        }
    }

    #[tokio::test]
    async fn runs_alternate_and_each_pair_is_compared_by_itself() {
        let mut order = Vec::new();
        let cost = compare(3, async |with| {
            order.push(with);
            Ok(if with { result(190, 0.011) } else { result(200, 0.010) })
        });
        let cost = cost.await.unwrap();
        assert_eq!(order, [false, true, true, false, false, true]);
        assert!((cost.lost_percent.p50 - 5.0).abs() < 1e-9 && (cost.lost_percent.max - 5.0).abs() < 1e-9);
        assert!((cost.later_percent.p50 - 10.0).abs() < 1e-9);
        assert!(cost.text().contains("tokens/s lost: 5.00 %"), "{}", cost.text());
    }

    #[tokio::test]
    async fn a_failed_request_ends_the_comparison() {
        let failed =
            LoadResult { failed: 2, first_error: Some("connection reset".to_owned()), ..result(1, 1.0) };
        let error = compare(1, async |_| Ok(failed.clone())).await.unwrap_err();
        assert_eq!(error.to_string(), "2 requests failed: connection reset");
    }
}
