//! `limpid bench`: how fast a model runs here.
//!
//! `prefill` and `decode` measure one request, or a batch of them, straight on a device; `kernels` shows which ops take
//! the time; `serve` puts a load on a server over HTTP; `telemetry` compares a server that tells everything with one
//! that tells nothing, `scrape` one that is scraped with one that is not, `http` a server with an engine alone.
//! Measuring, statistics and presentation are apart; only this file reads arguments and prints.

mod collector;
mod device;
mod http;
mod kernels;
mod paired;
mod report;
mod scrape;
mod serve;
mod server_process;
mod stats;
mod telemetry;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use limpid_engine::cache_layout::CacheLayout;
use limpid_engine::device::{Device, find_adapters};
use limpid_engine::gguf::fixture::{TinyLlama, write_tiny_llama};
use limpid_engine::model::Model;

use crate::client::Client;
use crate::local::{TargetArgs, model_name};
use crate::runtime;
use crate::serve::Server;
use collector::Behaviour;
use device::{Phase, Workload, measure};
use report::{KernelReport, LoadReport, RateReport, Setting};
use scrape::ScrapeReport;
use serve::{Lengths, Load, run_load};
use telemetry::TelemetryReport;

/// Arguments of `limpid bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    rates: RateArgs,
}

/// What to measure; prefill and decode without a subcommand.
#[derive(Clone, Debug, clap::Subcommand)]
enum BenchCommand {
    /// Prompt tokens per second
    Prefill(RateArgs),
    /// Generated tokens per second of one request, or of a batch of them
    Decode(RateArgs),
    /// What each kind of op takes, beside what the device can do at most
    Kernels(RateArgs),
    /// Throughput and latencies of a server under load
    Serve(ServeArgs),
    /// What telemetry costs: tokens per second with everything on and with everything off, in pairs
    Telemetry(TelemetryArgs),
    /// What scrapes take and cost: their times under load, and tokens per second with and without them, in pairs
    Scrape(ScrapeArgs),
    /// What the way over HTTP costs: tokens per second of an engine alone and of a server, in pairs
    Http(HttpArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct RateArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Length of the prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt_tokens: u32,
    /// Tokens to generate
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    output_tokens: u32,
    /// Requests that are decoded together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,
    /// Measured passes
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Passes before the measured ones
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct ServeArgs {
    /// Running server to put the load on; without it, one is started in this process
    #[arg(long, value_name = "http://HOST:PORT", conflicts_with_all = ["model", "quantization", "device"])]
    url: Option<String>,
    /// Key that the running server wants
    #[arg(long, value_name = "KEY", env = "LIMPID_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    /// Clients, each with one request in flight
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    concurrency: u32,
    /// Requests of all clients together
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Prompt lengths in tokens: N or LEAST-MOST
    #[arg(long, value_name = "RANGE", default_value = "64-256")]
    prompt_tokens: Lengths,
    /// Output lengths in tokens: N or LEAST-MOST
    #[arg(long, value_name = "RANGE", default_value = "32-128")]
    output_tokens: Lengths,
    /// Ask for whole answers instead of streams
    #[arg(long)]
    no_stream: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// The model of a comparison in pairs.
#[derive(Clone, Debug, clap::Args)]
struct PairedTargetArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Use a tiny random model, with which the engine and not the device is the bottleneck
    #[arg(long, conflicts_with_all = ["model", "quantization"])]
    tiny: bool,
}

impl PairedTargetArgs {
    /// The model's file; `folder` is for one made here.
    fn model_path(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        if !self.tiny {
            return self.target.model_path();
        }
        let path = folder.join("tiny.gguf");
        write_tiny_llama(&path, &TinyLlama { context_length: 4096, ..TinyLlama::default() })?;
        Ok(path)
    }
}

#[derive(Clone, Debug, clap::Args)]
struct TelemetryArgs {
    #[command(flatten)]
    model: PairedTargetArgs,
    /// What the collector does that telemetry is sent to
    #[arg(long, value_enum, default_value_t = Behaviour::Takes)]
    collector: Behaviour,
    #[command(flatten)]
    paired: PairedArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct ScrapeArgs {
    #[command(flatten)]
    model: PairedTargetArgs,
    /// Scrapes a second during the runs with a scraper
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = rate)]
    scrapes_per_second: f64,
    /// Scrapes after the runs, one after the other, to see whether memory stays flat
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    idle_scrapes: u32,
    #[command(flatten)]
    paired: PairedArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct HttpArgs {
    #[command(flatten)]
    model: PairedTargetArgs,
    #[command(flatten)]
    paired: PairedArgs,
    #[command(flatten)]
    common: CommonArgs,
}

/// The load of a comparison in pairs.
#[derive(Clone, Debug, clap::Args)]
struct PairedArgs {
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Clients, each with one request in flight
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    concurrency: u32,
    /// Requests of all clients together, in each run; many runs of about a second tell more than a few long ones
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Prompt lengths in tokens: N or LEAST-MOST
    #[arg(long, value_name = "RANGE", default_value = "16-64")]
    prompt_tokens: Lengths,
    /// Output lengths in tokens: N or LEAST-MOST
    #[arg(long, value_name = "RANGE", default_value = "32-128")]
    output_tokens: Lengths,
}

#[derive(Clone, Debug, clap::Args)]
struct CommonArgs {
    /// Draws the prompts
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// `limpid bench`.
///
/// # Errors
/// The model or the device cannot be opened or fails, or the server cannot be reached.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    match args.command {
        None => rates(args.rates, &[Phase::Prefill, Phase::Decode]),
        Some(BenchCommand::Prefill(rate_args)) => rates(rate_args, &[Phase::Prefill]),
        Some(BenchCommand::Decode(rate_args)) => rates(rate_args, &[Phase::Decode]),
        Some(BenchCommand::Kernels(rate_args)) => kernels_of(rate_args),
        Some(BenchCommand::Serve(serve_args)) => load(serve_args),
        Some(BenchCommand::Telemetry(telemetry_args)) => telemetry_cost(telemetry_args),
        Some(BenchCommand::Scrape(scrape_args)) => scrape_cost(scrape_args),
        Some(BenchCommand::Http(http_args)) => http_cost(http_args),
    }
}

/// A model on a device with room for a workload.
struct Bench {
    path: PathBuf,
    model: Model,
    device: Box<dyn Device>,
    workload: Workload,
}

impl Bench {
    fn open(args: &RateArgs) -> anyhow::Result<Bench> {
        let path = args.target.model_path()?;
        let mut model = Model::open_quantized(&path, args.target.quantization)?;
        let workload = Workload {
            prompt_tokens: args.prompt_tokens as usize,
            output_tokens: args.output_tokens as usize,
            batch: args.batch as usize,
            warmup: args.warmup as usize,
            repetitions: args.repetitions as usize,
            seed: args.common.seed,
            cache_groups: CacheLayout::of(&model.program).num_groups(),
        };
        let length = workload.prompt_tokens + workload.output_tokens;
        if length > model.context_length {
            bail!(
                "--prompt-tokens and --output-tokens are {length} together; the model allows {}",
                model.context_length
            );
        }
        model.program.fit_context(length);
        let adapters = find_adapters(args.target.device, false, 1, None)?;
        let device = adapters[0].open(&model.program, &model, workload.limits())?;
        Ok(Bench { path, model, device, workload })
    }

    fn setting(&self) -> Setting {
        let name = self.model.name.clone().unwrap_or_else(|| model_name(&self.path));
        let bytes = self.model.program.weight_bytes();
        Setting::new(name, self.model.architecture.clone(), bytes, self.device.info())
    }
}

fn rates(args: RateArgs, phases: &[Phase]) -> anyhow::Result<()> {
    let mut bench = Bench::open(&args)?;
    let workload = bench.workload;
    let vocabulary = bench.model.program.vocabulary();
    let bar = progress_bar(phases.iter().map(|phase| workload.progress_steps(*phase)).sum());
    let mut results = Vec::new();
    for phase in phases {
        bar.set_message(if *phase == Phase::Prefill { "prefill" } else { "decode" });
        results.push(measure(bench.device.as_mut(), vocabulary, &workload, *phase, &bar)?);
    }
    bar.finish_and_clear();

    let report = RateReport {
        setting: bench.setting(),
        model_file: bench.path,
        prompt_tokens: workload.prompt_tokens,
        batch: workload.batch,
        repetitions: workload.repetitions,
        warmup: workload.warmup,
        seed: workload.seed,
        prompts: workload.prompts(vocabulary),
        results,
    };
    print(args.common.json, &report, RateReport::text)
}

fn kernels_of(args: RateArgs) -> anyhow::Result<()> {
    let mut bench = Bench::open(&args)?;
    let workload = bench.workload;
    let bar = progress_bar(workload.progress_steps(Phase::Prefill) + 3 * workload.repetitions as u64);
    bar.set_message("kernels");
    let peak = bench.device.peak()?.into();
    let vocabulary = bench.model.program.vocabulary();
    let steps = kernels::measure(bench.device.as_mut(), vocabulary, &workload, &bar)?;
    bar.finish_and_clear();
    let (setting, repetitions, seed) = (bench.setting(), workload.repetitions, workload.seed);
    print(args.common.json, &KernelReport { setting, repetitions, seed, peak, steps }, KernelReport::text)
}

fn load(args: ServeArgs) -> anyhow::Result<()> {
    let load = Load {
        concurrency: args.concurrency as usize,
        requests: args.requests as usize,
        prompt_tokens: args.prompt_tokens,
        output_tokens: args.output_tokens,
        seed: args.common.seed,
        stream: !args.no_stream,
    };
    let bar = progress_bar(load.requests as u64);
    bar.set_message("requests");
    let report = runtime::run(async {
        let Some(url) = args.url else { return load_own_server(&args.target, load, &bar).await };
        let result = run_load(&Client::new(&url, args.api_key)?, &load, &bar).await?;
        Ok(LoadReport { url, load, result })
    });
    bar.finish_and_clear();
    print(args.common.json, &report?, LoadReport::text)
}

async fn load_own_server(target: &TargetArgs, load: Load, bar: &ProgressBar) -> anyhow::Result<LoadReport> {
    // Fetching a model blocks; nothing else runs here yet.
    let options = target.serve_options(target.model_path()?, 0, Vec::new());
    let server = Server::start(options, Vec::new()).await?;
    let url = format!("http://{}", server.addr);
    let result = run_load(&Client::new(&url, None)?, &load, bar).await;
    server.shutdown().await;
    Ok(LoadReport { url, load, result: result? })
}

impl PairedArgs {
    fn load(self, seed: u64) -> Load {
        Load {
            concurrency: self.concurrency as usize,
            requests: self.requests as usize,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            seed,
            stream: true,
        }
    }
}

fn telemetry_cost(args: TelemetryArgs) -> anyhow::Result<()> {
    let report = in_pairs(&args.model, args.paired, args.common.seed, async |path, load, pairs, bar| {
        telemetry::compare(path, &args.model.target, load, args.collector, pairs, bar).await
    });
    print(args.common.json, &report?, TelemetryReport::text)
}

fn scrape_cost(args: ScrapeArgs) -> anyhow::Result<()> {
    let (rate, idle_scrapes) = (args.scrapes_per_second, args.idle_scrapes as usize);
    let report = in_pairs(&args.model, args.paired, args.common.seed, async |path, load, pairs, bar| {
        scrape::compare(path, &args.model.target, load, rate, idle_scrapes, pairs, bar).await
    });
    print(args.common.json, &report?, ScrapeReport::text)
}

fn http_cost(args: HttpArgs) -> anyhow::Result<()> {
    let report = in_pairs(&args.model, args.paired, args.common.seed, async |path, load, pairs, bar| {
        http::compare(path, &args.model.target, load, pairs, bar).await
    });
    print(args.common.json, &report?, |cost| {
        format!("without: the engine alone; with: over HTTP\n\n{}", cost.text())
    })
}

/// Runs a comparison with what all of them need.
fn in_pairs<R>(
    model: &PairedTargetArgs,
    paired: PairedArgs,
    seed: u64,
    compare: impl AsyncFnOnce(&Path, Load, usize, &ProgressBar) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let path = model.model_path(folder.path())?;
    let pairs = paired.pairs as usize;
    let load = paired.load(seed);
    // One run of each side warms up.
    let bar = progress_bar((2 * pairs as u64 + 2) * load.requests as u64);
    bar.set_message("requests");
    let report = runtime::run(compare(&path, load, pairs, &bar));
    bar.finish_and_clear();
    report
}

/// A number of times a second.
fn rate(text: &str) -> Result<f64, String> {
    let allowed = 0.01..=10_000.0;
    (text.parse().ok())
        .filter(|rate| allowed.contains(rate))
        .ok_or_else(|| format!("allowed: a number from {} to {}", allowed.start(), allowed.end()))
}

/// A bar on stderr, which indicatif hides where that is no terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:8} {wide_bar} {pos}/{len} {eta}");
    ProgressBar::new(steps).with_style(style.expect("the template above is valid"))
}

fn print<R: serde::Serialize>(json: bool, report: &R, text: impl Fn(&R) -> String) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(report)? + "\n",
        false => text(report),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use limpid_engine::device::DeviceChoice;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        Cli::try_parse_from(std::iter::once(&"bench").chain(words)).map(|cli| cli.bench)
    }

    #[test]
    fn the_arguments_are_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn options_stand_alone_or_after_a_subcommand() {
        let bare = parse(&["--device", "cpu", "--prompt-tokens", "3"]).unwrap();
        assert!(bare.command.is_none());
        assert_eq!((bare.rates.target.device, bare.rates.prompt_tokens), (DeviceChoice::Cpu, 3));
        let decode = parse(&["decode", "--device", "wgpu", "--seed", "4"]).unwrap();
        let Some(BenchCommand::Decode(rates)) = decode.command else { panic!("{decode:?}") };
        assert_eq!((rates.target.device, rates.common.seed), (DeviceChoice::Wgpu, 4));
        assert!(parse(&["--device", "cpu", "decode"]).is_err());
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        for words in [
            ["decode", "--repetitions", "0"],
            ["decode", "--output-tokens", "0"],
            ["prefill", "--prompt-tokens", "99999999"],
            ["serve", "--concurrency", "0"],
            ["serve", "--prompt-tokens", "9-3"],
            ["serve", "--url=http://127.0.0.1:1", "--device=cpu"],
            ["decode", "--device", "tpu"],
        ] {
            assert!(parse(&words).is_err(), "{words:?}");
        }
    }
}
