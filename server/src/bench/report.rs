//! Results of `limpid bench` as text for people and as JSON for programs. Pure.

use std::fmt::Write;
use std::path::PathBuf;

use limpid_engine::device::DeviceInfo;
use serde::Serialize;

use super::device::{Phase, Rate};
use super::kernels::{PeakRates, StepKernels};
use super::serve::{Load, LoadResult};
use super::stats::Summary;

/// What was measured on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    /// The model's name, else its file's.
    pub(super) model: String,
    /// `general.architecture`.
    pub(super) architecture: String,
    /// Bytes of the weights as stored.
    pub(super) weight_bytes: u64,
    /// `cpu` or `wgpu`.
    pub(super) device: &'static str,
    /// Name as the driver or the operating system gives it.
    pub(super) device_name: String,
    /// `rust`, `vulkan`, `metal`, `dx12`.
    pub(super) backend: String,
}

impl Setting {
    /// Setting with a device's facts filled in.
    pub(super) fn new(
        model: String,
        architecture: String,
        weight_bytes: u64,
        device: &DeviceInfo,
    ) -> Setting {
        Setting {
            model,
            architecture,
            weight_bytes,
            device: device.kind,
            device_name: device.name.clone(),
            backend: device.backend.clone(),
        }
    }

    fn text(&self) -> String {
        format!(
            "model    {} ({}, {:.1} MB of weights)\ndevice   {} ({}, {})\n",
            self.model,
            self.architecture,
            self.weight_bytes as f64 / 1e6,
            self.device,
            self.device_name,
            self.backend,
        )
    }
}

/// Result of `bench`, `bench prefill` and `bench decode`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RateReport {
    /// Where.
    pub(super) setting: Setting,
    /// The model's file; not in the table.
    pub(super) model_file: PathBuf,
    /// Prompt length in tokens; decode starts after it.
    pub(super) prompt_tokens: usize,
    /// Requests that are decoded together.
    pub(super) batch: usize,
    /// Measured passes.
    pub(super) repetitions: usize,
    /// Passes before them.
    pub(super) warmup: usize,
    /// Draws the prompts.
    pub(super) seed: u64,
    /// The prompts, as tokens; not in the table.
    pub(super) prompts: Vec<Vec<u32>>,
    /// One per phase.
    pub(super) results: Vec<Rate>,
}

impl RateReport {
    /// The table.
    pub(super) fn text(&self) -> String {
        let mut text = self.setting.text() + "\n";
        text.push_str("          tokens   tokens/s        min        max   forward\n");
        for rate in &self.results {
            let phase = match rate.phase {
                Phase::Prefill => "prefill",
                Phase::Decode => "decode",
            };
            let forward =
                rate.forward_share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
            let Summary { p50, min, max, .. } = rate.tokens_per_second;
            let line =
                format!("{phase:8} {:>7} {p50:>10.1} {min:>10.1} {max:>10.1} {forward:>9}\n", rate.tokens);
            text.push_str(&line);
        }
        let _ = write!(
            text,
            "\nMedian of {} passes after {} to warm up; batch of {}; decode follows prompts of {} tokens; forward is\n\
             the device's own time for the forward passes, as a share of the whole.\n",
            self.repetitions, self.warmup, self.batch, self.prompt_tokens,
        );
        text
    }
}

/// Result of `bench kernels`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct KernelReport {
    /// Where.
    pub(super) setting: Setting,
    /// Steps of each kind.
    pub(super) repetitions: usize,
    /// Draws the prompts.
    pub(super) seed: u64,
    /// What the device can do at most.
    pub(super) peak: PeakRates,
    /// The steps.
    pub(super) steps: Vec<StepKernels>,
}

impl KernelReport {
    /// The tables.
    pub(super) fn text(&self) -> String {
        let PeakRates { bytes_per_second, flops_per_second } = self.peak;
        let mut text = self.setting.text();
        let _ = writeln!(
            text,
            "peak     {:.1} GB/s read, {:.1} GFLOP/s, measured",
            bytes_per_second / 1e9,
            flops_per_second / 1e9
        );
        for StepKernels { step, forward, ops } in &self.steps {
            let _ = writeln!(text, "\n{step}: {:.3} ms forward", forward.p50 * 1e3);
            text.push_str("op                                count        ms       min       max      GB/s  of peak   GFLOP/s  of peak\n");
            for op in ops {
                let Summary { p50, min, max, .. } = op.seconds;
                let _ = writeln!(
                    text,
                    "{:32} {:>6} {:>9.3} {:>9.3} {:>9.3} {:>9.2} {:>6.1} % {:>9.2} {:>6.1} %",
                    op.name,
                    op.count,
                    p50 * 1e3,
                    min * 1e3,
                    max * 1e3,
                    op.bytes_per_second / 1e9,
                    op.bytes_per_second / bytes_per_second * 100.0,
                    op.flops_per_second / 1e9,
                    op.flops_per_second / flops_per_second * 100.0,
                );
            }
        }
        let _ = write!(
            text,
            "\nMedian of {} steps, each op with all layers together, by the device's own clock; bytes are weights as\n\
             stored, activations and cache once each.\n",
            self.repetitions
        );
        text
    }
}

/// Result of `bench serve`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadReport {
    /// Address of the server.
    pub(super) url: String,
    /// What was asked.
    pub(super) load: Load,
    /// What came back.
    pub(super) result: LoadResult,
}

impl LoadReport {
    /// The table.
    pub(super) fn text(&self) -> String {
        let (load, result) = (&self.load, &self.result);
        let rate = |count: f64| count / result.seconds.max(1e-9);
        let mut text = format!(
            "{} requests by {} clients to {}, prompts of {} and outputs of {} tokens, seed {}\n\n",
            load.requests, load.concurrency, self.url, load.prompt_tokens, load.output_tokens, load.seed,
        );
        let rows = [
            ("completed", format!("{} in {:.2} s", result.completed, result.seconds)),
            ("failed", result.failed.to_string()),
            ("requests/s", format!("{:.2}", rate(result.completed as f64))),
            ("output tokens/s", format!("{:.1}", rate(result.output_tokens as f64))),
            ("all tokens/s", format!("{:.1}", rate((result.prompt_tokens + result.output_tokens) as f64))),
        ];
        for (name, value) in rows {
            let _ = writeln!(text, "{name:<20} {value}");
        }
        let _ =
            writeln!(text, "\n{:<20} {:>9} {:>9} {:>9} {:>9}", "milliseconds", "mean", "p50", "p90", "p99");
        let summaries = [
            ("time to first token", &result.time_to_first_token),
            ("inter-token latency", &result.inter_token_latency),
            ("end to end", &result.end_to_end),
        ];
        for (name, summary) in summaries {
            if let Some(Summary { mean, p50, p90, p99, .. }) = summary {
                let [mean, p50, p90, p99] = [mean, p50, p90, p99].map(|seconds| seconds * 1e3);
                let _ = writeln!(text, "{name:<20} {mean:>9.1} {p50:>9.1} {p90:>9.1} {p99:>9.1}");
            }
        }
        if let Some(error) = &result.first_error {
            let _ = writeln!(text, "\nfirst failure: {error}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(value: f64) -> Summary {
        Summary {
            count: 2,
            mean: value,
            deviation: 0.0,
            min: value,
            p50: value,
            p90: value,
            p99: value,
            max: value,
        }
    }

    fn rates() -> RateReport {
        let rate = |phase, tokens, value, forward_share| Rate {
            phase,
            tokens,
            tokens_per_second: summary(value),
            forward_share,
        };
        RateReport {
            setting: Setting {
                model: "Smol".to_owned(),
                architecture: "llama".to_owned(),
                weight_bytes: 98_400_000,
                device: "cpu",
                device_name: "Some CPU".to_owned(),
                backend: "rust".to_owned(),
            },
            model_file: PathBuf::from("smol.gguf"),
            prompt_tokens: 512,
            batch: 1,
            repetitions: 5,
            warmup: 1,
            seed: 0,
            prompts: vec![vec![1, 2]],
            results: vec![
                rate(Phase::Prefill, 512, 812.34, Some(0.987)),
                rate(Phase::Decode, 128, 48.2, None),
            ],
        }
    }

    #[test]
    fn rates_are_a_table() {
        let expected = "\
model    Smol (llama, 98.4 MB of weights)
device   cpu (Some CPU, rust)

          tokens   tokens/s        min        max   forward
prefill      512      812.3      812.3      812.3    98.7 %
decode       128       48.2       48.2       48.2         -

Median of 5 passes after 1 to warm up; batch of 1; decode follows prompts of 512 tokens; forward is
the device's own time for the forward passes, as a share of the whole.
";
        assert_eq!(rates().text(), expected);
    }

    #[test]
    fn json_names_the_phases_and_what_was_not_measured_is_null() {
        let json = serde_json::to_value(rates()).unwrap();
        assert_eq!(json["results"][0]["phase"], "prefill");
        assert_eq!(json["results"][1]["tokens_per_second"]["p50"], 48.2);
        assert!(json["results"][1]["forward_share"].is_null());
    }

    #[test]
    fn a_load_is_a_table_without_rows_for_what_was_not_seen() {
        let report = LoadReport {
            url: "http://127.0.0.1:8000".to_owned(),
            load: Load {
                concurrency: 4,
                requests: 10,
                prompt_tokens: "64-256".parse().unwrap(),
                output_tokens: "32".parse().unwrap(),
                seed: 3,
                stream: false,
            },
            result: LoadResult {
                seconds: 2.0,
                completed: 9,
                failed: 1,
                prompt_tokens: 1000,
                output_tokens: 288,
                time_to_first_token: None,
                inter_token_latency: None,
                end_to_end: Some(summary(0.5)),
                first_error: Some("full".to_owned()),
            },
        };
        let expected = "\
10 requests by 4 clients to http://127.0.0.1:8000, prompts of 64-256 and outputs of 32 tokens, seed 3

completed            9 in 2.00 s
failed               1
requests/s           4.50
output tokens/s      144.0
all tokens/s         644.0

milliseconds              mean       p50       p90       p99
end to end               500.0     500.0     500.0     500.0

first failure: full
";
        assert_eq!(report.text(), expected);
    }
}
