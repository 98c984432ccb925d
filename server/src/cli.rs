//! The command line. Flags have vLLM's names where vLLM has the thing.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use limpid_engine::config::{EngineConfig, SchedulingPolicy};
use limpid_engine::device::DeviceChoice;
use limpid_engine::model::Quantization;
use limpid_telemetry::{DetailedTraces, MetricsDialect, MetricsSettings, TelemetrySettings};

use crate::frontend::AdmissionLimits;
use crate::local::{model_name, quantization_parser};
use crate::logging::{self, LogFormat};
use crate::serve::{self, ServeOptions};
use crate::{bench, demo, inspect, store};

/// An LLM inference server whose inside can be seen: OpenAI API, wgpu compute, OpenTelemetry
#[derive(Debug, Parser)]
#[command(name = "limpid", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over the OpenAI API
    Serve(Box<ServeArgs>),
    /// Start a server, ask it a few questions and draw each request's trace in the terminal
    Demo(Box<demo::DemoArgs>),
    /// Measure
    Bench(Box<bench::BenchArgs>),
    /// Fetch a model into the local store
    Pull(store::PullArgs),
    /// List the local store
    Models(store::ModelsArgs),
    /// Show what a model is and what serving it takes
    Inspect(inspect::InspectArgs),
}

impl Cli {
    /// Runs the subcommand to its end.
    ///
    /// # Errors
    /// Whatever ended it, for people: setting, value found, what is allowed.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Serve(args) => {
                logging::init(args.log_format, true);
                serve::run(&args)
            }
            Command::Demo(args) => demo::run(*args),
            Command::Bench(args) => bench::run(*args),
            Command::Pull(args) => store::pull(args),
            Command::Models(args) => store::models(args),
            Command::Inspect(args) => inspect::run(&args),
        }
    }
}

/// Arguments of `limpid serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The model: a GGUF file, a Hugging Face directory, a name in the store, or a source; the default model if
    /// absent
    pub model: Option<String>,

    /// Quantise the matrices of a Hugging Face directory while loading
    #[arg(long, value_name = "FORMAT", value_parser = quantization_parser())]
    pub quantization: Option<Quantization>,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,

    /// Port to listen on; 0 takes any free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,

    /// Key that clients must send as a bearer token; repeat it for several
    #[arg(long, value_name = "KEY", env = "LIMPID_API_KEY", hide_env_values = true, value_parser = not_empty())]
    pub api_key: Vec<String>,

    /// Names of the model in the API; the first one is its name in metrics and traces [default: the file's
    /// name without .gguf, or the directory's]
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = not_empty())]
    pub served_model_name: Vec<String>,

    /// Engines in this process, each with its own scheduler, KV cache and share of the device, or a device of its own
    /// where there are several; the limits below are those of each engine
    #[arg(long, value_name = "COUNT", default_value_t = EngineConfig::default().data_parallel_size)]
    pub data_parallel_size: usize,

    /// Longest sequence in tokens, prompt and answer together [default: the model's context length]
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<usize>,

    /// Most sequences running at once
    #[arg(long, value_name = "COUNT", default_value_t = EngineConfig::default().max_num_seqs)]
    pub max_num_seqs: usize,

    /// Most tokens in one engine step
    #[arg(long, value_name = "TOKENS", default_value_t = EngineConfig::default().max_num_batched_tokens)]
    pub max_num_batched_tokens: usize,

    /// Tokens per KV cache block
    #[arg(long, value_name = "TOKENS", default_value_t = EngineConfig::default().block_size)]
    pub block_size: usize,

    /// Size of the KV cache in blocks, whatever the device's memory
    #[arg(long, value_name = "BLOCKS")]
    pub num_gpu_blocks_override: Option<usize>,

    /// Share of the device's memory to use, more than 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = EngineConfig::default().gpu_memory_utilization)]
    pub gpu_memory_utilization: f64,

    /// Do not reuse the KV cache of equal prompt beginnings
    #[arg(long)]
    pub no_enable_prefix_caching: bool,

    /// Most requests that may be open at once, waiting ones included; more are answered with 503
    #[arg(long, value_name = "COUNT")]
    pub max_num_queued_reqs: Option<usize>,

    /// Prompt tokens waiting for their first answer at which further requests are answered with 503
    #[arg(long, value_name = "TOKENS")]
    pub max_num_queued_tokens: Option<usize>,

    /// Report how long KV cache blocks keep their contents
    #[arg(long)]
    pub kv_cache_metrics: bool,

    /// Share of the blocks that are watched for it, more than 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = EngineConfig::default().kv_cache_metrics_sample)]
    pub kv_cache_metrics_sample: f64,

    /// Order of the waiting queue
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = Policy::Fcfs)]
    pub scheduling_policy: Policy,

    /// Device to compute on
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub device: Device,

    /// Refuse the CPU device and software adapters
    #[arg(long)]
    pub require_gpu: bool,

    /// Where to send traces by OTLP; without it and the OTEL_* variables no traces are sent
    #[arg(long, value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,

    /// Where to push metrics by OTLP; /metrics is there in any case
    #[arg(long, value_name = "URL")]
    pub otlp_metrics_endpoint: Option<String>,

    /// Where to push log records by OTLP; the lines on stderr are there in any case
    #[arg(long, value_name = "URL")]
    pub otlp_logs_endpoint: Option<String>,

    /// Measure the device's part of each request as well: forward pass (model), execution (worker), or all
    #[arg(long, value_name = "WHAT", value_enum, num_args = 1.., value_delimiter = ',')]
    pub collect_detailed_traces: Vec<Detail>,

    /// Share of engine steps that get a trace of their own, op by op, with --collect-detailed-traces all
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub detailed_trace_step_ratio: f64,

    /// Write vLLM's attribute spellings on model spans beside the conventions'
    #[arg(long)]
    pub vllm_compatible_attributes: bool,

    /// Names under which metrics appear
    #[arg(
        long, value_name = "NAMES", value_enum, num_args = 1.., value_delimiter = ',',
        default_values_t = [Dialect::Vllm, Dialect::Genai, Dialect::Limpid]
    )]
    pub metrics_dialects: Vec<Dialect>,

    /// Bounds of vLLM's histograms as JSON, by bucket family: {"request_latency": [0.1, 1, 10]}; families are
    /// request_latency, time_to_first_token, inter_token_latency, iteration_tokens, request_params_n,
    /// request_num_preemptions, request_tokens and kv_cache_residency
    #[arg(long, value_name = "JSON", value_parser = histogram_buckets)]
    pub custom_histogram_buckets: Option<HistogramBuckets>,

    /// Also show the metrics that this version of vLLM still had, under their old names
    #[arg(long, value_name = "VERSION")]
    pub show_hidden_metrics_for_version: Option<String>,

    /// No metrics of the engine and of requests, and no log line about them; traces stay
    #[arg(long)]
    pub disable_log_stats: bool,

    /// Seconds between two log lines about the engine; an idle engine is silent
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub log_stats_interval: u64,

    /// Count the floating-point operations and the bytes that each step states
    #[arg(long)]
    pub enable_mfu_metrics: bool,

    /// Longest time between two tokens that is still good; adds a metric of the batch that keeps it
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub slo_inter_token_ms: Option<u64>,

    /// Seconds without an engine step after which /health answers 503 while requests are open; more than the
    /// longest step takes
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub engine_iteration_timeout: u64,

    /// Form of the log lines on stderr; RUST_LOG chooses which
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Seconds that running requests get to end after SIGTERM or Ctrl-C before they are aborted
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub shutdown_timeout: u64,
}

/// An empty key would look like a guard and be none.
fn not_empty() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// `--scheduling-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// First come, first served
    Fcfs,
    /// By the requests' priority, then first come, first served
    Priority,
}

/// `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// A GPU if there is one, else the CPU
    Auto,
    /// Any wgpu adapter, software ones included
    Wgpu,
    /// The CPU
    Cpu,
}

/// `--metrics-dialects`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// vllm:… as vLLM 0.33 has them
    Vllm,
    /// gen_ai.server.* and http.server.* of the semantic conventions
    Genai,
    /// What neither has: saturation, time preempted, steps, exporters
    Limpid,
    /// sglang:… as SGLang 0.5.23 has them
    Sglang,
}

/// `--custom-histogram-buckets`: family and bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramBuckets(pub Vec<(String, Vec<f64>)>);

/// Reads the JSON; what the families and bounds may be is the telemetry's business.
fn histogram_buckets(text: &str) -> Result<HistogramBuckets, String> {
    let families: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
    let bounds = |(family, value): (String, serde_json::Value)| {
        let numbers = value
            .as_array()
            .and_then(|bounds| bounds.iter().map(serde_json::Value::as_f64).collect::<Option<Vec<f64>>>());
        let numbers = numbers.ok_or_else(|| format!("{family} is {value}; allowed: a list of numbers"))?;
        Ok((family, numbers))
    };
    families.into_iter().map(bounds).collect::<Result<_, String>>().map(HistogramBuckets)
}

/// `--collect-detailed-traces`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Detail {
    /// gen_ai.latency.time_in_model_forward
    Model,
    /// gen_ai.latency.time_in_model_execute
    Worker,
    /// Both, and a trace of its own for a share of the engine's steps
    All,
}

impl ServeArgs {
    /// The arguments as options of a server of the model in `model_path`, which keeps no pipelines.
    pub fn options(&self, model_path: PathBuf) -> ServeOptions {
        let served_model_names = match self.served_model_name.as_slice() {
            [] => vec![model_name(&model_path)],
            names => names.to_vec(),
        };
        ServeOptions {
            model_path,
            quantization: self.quantization,
            host: self.host.clone(),
            port: self.port,
            api_keys: self.api_key.clone(),
            served_model_names,
            engine: self.engine_config(),
            device: match self.device {
                Device::Auto => DeviceChoice::Auto,
                Device::Wgpu => DeviceChoice::Wgpu,
                Device::Cpu => DeviceChoice::Cpu,
            },
            require_gpu: self.require_gpu,
            pipelines: None,
            telemetry: self.telemetry_settings(),
            admission: AdmissionLimits {
                max_num_queued_reqs: self.max_num_queued_reqs,
                max_num_queued_tokens: self.max_num_queued_tokens,
            },
            engine_iteration_timeout: Duration::from_secs(self.engine_iteration_timeout),
            log_stats_interval: Some(Duration::from_secs(self.log_stats_interval)),
            shutdown_timeout: Duration::from_secs(self.shutdown_timeout),
        }
    }

    fn engine_config(&self) -> EngineConfig {
        EngineConfig {
            data_parallel_size: self.data_parallel_size,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            block_size: self.block_size,
            num_gpu_blocks_override: self.num_gpu_blocks_override,
            gpu_memory_utilization: self.gpu_memory_utilization,
            enable_prefix_caching: !self.no_enable_prefix_caching,
            scheduling_policy: match self.scheduling_policy {
                Policy::Fcfs => SchedulingPolicy::Fcfs,
                Policy::Priority => SchedulingPolicy::Priority,
            },
            kv_cache_metrics: self.kv_cache_metrics,
            kv_cache_metrics_sample: self.kv_cache_metrics_sample,
        }
    }

    fn telemetry_settings(&self) -> TelemetrySettings {
        let detail = |detail: &Detail| match detail {
            Detail::Model => DetailedTraces::Model,
            Detail::Worker => DetailedTraces::Worker,
            Detail::All => DetailedTraces::All,
        };
        TelemetrySettings {
            otlp_traces_endpoint: self.otlp_traces_endpoint.clone(),
            otlp_metrics_endpoint: self.otlp_metrics_endpoint.clone(),
            otlp_logs_endpoint: self.otlp_logs_endpoint.clone(),
            collect_detailed_traces: self.collect_detailed_traces.iter().map(detail).collect(),
            metrics: self.metrics_settings(),
            detailed_trace_step_ratio: Some(self.detailed_trace_step_ratio),
            vllm_compatible_attributes: self.vllm_compatible_attributes,
            service_version: env!("CARGO_PKG_VERSION"),
            ..TelemetrySettings::default()
        }
    }

    fn metrics_settings(&self) -> MetricsSettings {
        let dialect = |dialect: &Dialect| match dialect {
            Dialect::Vllm => MetricsDialect::Vllm,
            Dialect::Genai => MetricsDialect::GenAi,
            Dialect::Limpid => MetricsDialect::Limpid,
            Dialect::Sglang => MetricsDialect::Sglang,
        };
        MetricsSettings {
            dialects: self.metrics_dialects.iter().map(dialect).collect(),
            custom_histogram_buckets: self
                .custom_histogram_buckets
                .clone()
                .map(|HistogramBuckets(families)| families)
                .unwrap_or_default(),
            show_hidden_metrics_for_version: self.show_hidden_metrics_for_version.clone(),
            disable_log_stats: self.disable_log_stats,
            kv_cache_metrics: self.kv_cache_metrics,
            enable_mfu_metrics: self.enable_mfu_metrics,
            slo_inter_token: self.slo_inter_token_ms.map(Duration::from_millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn serve(arguments: &str) -> Result<ServeArgs, clap::Error> {
        let arguments = ["limpid", "serve"].into_iter().chain(arguments.split_whitespace());
        match Cli::try_parse_from(arguments)?.command {
            Command::Serve(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_subcommand_there_is_help() {
        let error = Cli::try_parse_from(["limpid"]).expect_err("nothing to do");
        assert_eq!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    }

    #[test]
    fn the_defaults_are_local_and_the_engines_own() {
        let options = serve("").expect("no argument is required").options("dir/Model.Q4_1.gguf".into());
        assert_eq!((options.host.as_str(), options.port), ("127.0.0.1", 8000));
        assert_eq!(options.engine, EngineConfig::default());
        assert_eq!(options.served_model_names, ["Model.Q4_1"]);
    }

    #[test]
    fn detailed_traces_come_one_by_one_or_together() {
        for arguments in [
            "--collect-detailed-traces model worker --port 1",
            "--collect-detailed-traces model,worker",
            "--collect-detailed-traces model --collect-detailed-traces worker",
        ] {
            let args = serve(arguments).expect(arguments);
            assert_eq!(args.collect_detailed_traces, [Detail::Model, Detail::Worker], "{arguments}");
        }
        assert!(serve("--collect-detailed-traces everything").is_err());
    }

    #[test]
    fn an_empty_key_is_refused() {
        let arguments = ["limpid", "serve", "--api-key", ""];
        assert_eq!(Cli::try_parse_from(arguments).expect_err("no guard").kind(), ErrorKind::InvalidValue);
    }

    #[test]
    fn every_flag_of_the_engine_reaches_it() {
        let args = serve(
            "m.gguf --data-parallel-size 8 --max-model-len 100 --max-num-seqs 2 --max-num-batched-tokens 3 --block-size 4 \
             --num-gpu-blocks-override 5 --gpu-memory-utilization 0.5 --no-enable-prefix-caching \
             --scheduling-policy priority --kv-cache-metrics --kv-cache-metrics-sample 0.25 \
             --max-num-queued-reqs 6 --max-num-queued-tokens 7 --served-model-name a b --api-key k --api-key l",
        )
        .expect("all of them exist");
        assert_eq!((args.api_key.len(), args.model.as_deref()), (2, Some("m.gguf")));
        let options = args.options("m.gguf".into());
        let expected = EngineConfig {
            data_parallel_size: 8,
            max_model_len: Some(100),
            max_num_seqs: 2,
            max_num_batched_tokens: 3,
            block_size: 4,
            num_gpu_blocks_override: Some(5),
            gpu_memory_utilization: 0.5,
            enable_prefix_caching: false,
            scheduling_policy: SchedulingPolicy::Priority,
            kv_cache_metrics: true,
            kv_cache_metrics_sample: 0.25,
        };
        assert_eq!(options.engine, expected);
        let limits = AdmissionLimits { max_num_queued_reqs: Some(6), max_num_queued_tokens: Some(7) };
        assert_eq!(options.admission, limits);
        assert_eq!(options.served_model_names, ["a", "b"]);
    }

    #[test]
    fn metrics_flags_reach_the_telemetry() {
        let options = serve(
            "--metrics-dialects vllm,sglang --show-hidden-metrics-for-version 0.11 --disable-log-stats \
             --enable-mfu-metrics --slo-inter-token-ms 50 --log-stats-interval 7 \
             --custom-histogram-buckets {\"request_latency\":[0.1,1,10]}",
        )
        .expect("all of them exist")
        .options("m.gguf".into());
        let expected = MetricsSettings {
            dialects: vec![MetricsDialect::Vllm, MetricsDialect::Sglang],
            custom_histogram_buckets: vec![("request_latency".to_owned(), vec![0.1, 1.0, 10.0])],
            show_hidden_metrics_for_version: Some("0.11".to_owned()),
            disable_log_stats: true,
            enable_mfu_metrics: true,
            slo_inter_token: Some(Duration::from_millis(50)),
            ..MetricsSettings::default()
        };
        assert_eq!(options.telemetry.metrics, expected);
        assert_eq!(options.log_stats_interval, Some(Duration::from_secs(7)));
        let defaults = serve("").expect("no argument is required").options("m.gguf".into());
        assert_eq!(defaults.telemetry.metrics, MetricsSettings::default());
    }

    #[test]
    fn buckets_that_are_no_lists_of_numbers_are_refused_with_their_family() {
        for wrong in ["[1]", "{\"request_latency\":[true]}", "{\"request_latency\":1}", "{"] {
            let arguments = ["limpid", "serve", "--custom-histogram-buckets", wrong];
            let message = Cli::try_parse_from(arguments).expect_err(wrong).to_string();
            let named = message.contains("request_latency is") || message.contains("JSON object");
            assert!(named, "{message}");
        }
    }
}
