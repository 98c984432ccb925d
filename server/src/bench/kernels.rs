//! Where a forward pass spends its time: each kind of op, over all layers, beside what the device can do at most.
//!
//! The times are the device's own, from steps that are looked into op by op, as `--collect-detailed-traces` does;
//! what an op reads and computes is what it says of itself.

use std::collections::HashMap;

use indicatif::ProgressBar;
use limpid_engine::device::{Device, DeviceError, ExecuteDetail, Peak};
use serde::Serialize;

use super::device::{Runner, Workload};
use super::stats::Summary;

/// A step that was looked into.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StepKernels {
    /// Rows of the step's batch, in words.
    pub(super) step: String,
    /// The whole forward pass, in seconds.
    pub(super) forward: Summary,
    /// The kinds of ops, those that take longest first.
    pub(super) ops: Vec<Kernel>,
}

/// All ops of one kind in a step.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Kernel {
    /// The op's name without its layer.
    pub(super) name: String,
    /// How many there are in a step.
    pub(super) count: usize,
    /// Seconds of all of them, over the steps.
    pub(super) seconds: Summary,
    /// Bytes read and written a second, at the median.
    pub(super) bytes_per_second: f64,
    /// Floating-point operations a second, at the median.
    pub(super) flops_per_second: f64,
}

/// The device's peak, as JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PeakRates {
    pub(super) bytes_per_second: f64,
    pub(super) flops_per_second: f64,
}

impl From<Peak> for PeakRates {
    fn from(peak: Peak) -> PeakRates {
        PeakRates { bytes_per_second: peak.bytes_per_second, flops_per_second: peak.flops_per_second }
    }
}

/// Looks into decode steps of one request, of all requests of the workload, and into a prefill.
///
/// # Errors
/// What the device reports.
pub(super) fn measure(
    device: &mut dyn Device,
    vocabulary: usize,
    workload: &Workload,
    progress: &ProgressBar,
) -> Result<Vec<StepKernels>, DeviceError> {
    let mut runner = Runner::new(device, vocabulary, workload, progress);
    runner.prefill()?;
    let mut steps = vec![runner.look_into(1, workload.repetitions, "decode")?];
    if workload.batch > 1 {
        steps.push(runner.look_into(workload.batch, workload.repetitions, "decode")?);
    }
    steps.push(runner.look_into_prefill(workload.repetitions)?);
    Ok(steps)
}

/// Sums equal steps up.
pub(super) fn sum_up(step: String, details: &[ExecuteDetail]) -> Result<StepKernels, DeviceError> {
    #[derive(Default)]
    struct Sums {
        count: usize,
        seconds: Vec<f64>,
        bytes: u64,
        flops: u64,
    }
    let unseen = || DeviceError::Failed("it has no clock of its own".to_owned());
    let mut kinds: HashMap<String, Sums> = HashMap::new();
    let mut forward = Vec::new();
    for (index, detail) in details.iter().enumerate() {
        let (from, to) = detail.forward.ok_or_else(unseen)?;
        forward.push((to - from).as_secs_f64());
        for op in &detail.ops {
            let sums = kinds.entry(without_layer(&op.name).to_owned()).or_default();
            sums.seconds.resize(index + 1, 0.0);
            sums.seconds[index] += op.duration.as_secs_f64();
            // Equal steps do equal work.
            if index == 0 {
                sums.count += 1;
                sums.bytes += op.bytes_read + op.bytes_written;
                sums.flops += op.flops;
            }
        }
    }
    let mut ops: Vec<Kernel> = kinds
        .into_iter()
        .filter_map(|(name, sums)| {
            let seconds = Summary::of(sums.seconds)?;
            let rate = |amount: u64| amount as f64 / seconds.p50.max(1e-9);
            let (bytes_per_second, flops_per_second) = (rate(sums.bytes), rate(sums.flops));
            Some(Kernel { name, count: sums.count, seconds, bytes_per_second, flops_per_second })
        })
        .collect();
    ops.sort_by(|a, b| b.seconds.p50.total_cmp(&a.seconds.p50));
    Ok(StepKernels { step, forward: Summary::of(forward).ok_or_else(unseen)?, ops })
}

/// `attention` of `layer.3.attention`.
fn without_layer(name: &str) -> &str {
    name.strip_prefix("layer.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use limpid_telemetry::observation::OpDetail;

    use super::*;

    fn detail(now: Instant, times: &[(&str, u64)]) -> ExecuteDetail {
        let op = |(name, milliseconds): &(&str, u64)| OpDetail {
            name: (*name).to_owned(),
            started: now,
            duration: Duration::from_millis(*milliseconds),
            flops: 1000,
            bytes_read: 300,
            bytes_written: 100,
        };
        let whole = times.iter().map(|(_, milliseconds)| milliseconds).sum();
        ExecuteDetail {
            forward: Some((now, now + Duration::from_millis(whole))),
            ops: times.iter().map(op).collect(),
        }
    }

    #[test]
    fn ops_of_all_layers_are_one_row_and_the_slowest_is_first() {
        let now = Instant::now();
        let step = |milliseconds| {
            detail(now, &[("embed", 1), ("layer.0.query+key", milliseconds), ("layer.11.query+key", 4)])
        };
        let summed = sum_up("decode".to_owned(), &[step(2), step(6), step(4)]).unwrap();
        let names: Vec<(&str, usize)> = summed.ops.iter().map(|op| (op.name.as_str(), op.count)).collect();
        assert_eq!(names, [("query+key", 2), ("embed", 1)]);
        assert!((summed.ops[0].seconds.p50 - 0.008).abs() < 1e-9);
        assert!((summed.ops[0].bytes_per_second - 800.0 / 0.008).abs() < 1e-3);
        assert!((summed.ops[0].flops_per_second - 2000.0 / 0.008).abs() < 1e-3);
        assert!((summed.forward.p50 - 0.009).abs() < 1e-9);
    }

    #[test]
    fn a_device_without_a_clock_is_an_error() {
        assert!(sum_up(String::new(), &[ExecuteDetail::default()]).is_err());
    }
}
