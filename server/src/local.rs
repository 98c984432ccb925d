//! A model and a device for `limpid demo` and `limpid bench`, and a server of them in this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use limpid_engine::config::EngineConfig;
use limpid_engine::device::DeviceChoice;
use limpid_engine::model::Quantization;
use limpid_telemetry::{DetailedTraces, TelemetrySettings};

use crate::frontend::AdmissionLimits;
use crate::serve::ServeOptions;
use crate::store;

/// Which model, on which device.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The model: a GGUF file, a Hugging Face directory, a name in the store, or a source; the default model if
    /// absent
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Quantise the matrices of a Hugging Face directory while loading
    #[arg(long, value_name = "FORMAT", value_parser = quantization_parser())]
    pub(crate) quantization: Option<Quantization>,
    /// Device to compute on: a GPU if there is one, else the CPU (auto); any wgpu adapter; the CPU
    #[arg(long, default_value = "auto", value_parser = device_parser())]
    pub(crate) device: DeviceChoice,
}

fn device_parser() -> impl TypedValueParser<Value = DeviceChoice> {
    PossibleValuesParser::new(["auto", "wgpu", "cpu"]).map(|name| match name.as_str() {
        "wgpu" => DeviceChoice::Wgpu,
        "cpu" => DeviceChoice::Cpu,
        _ => DeviceChoice::Auto,
    })
}

impl TargetArgs {
    /// The model's file or directory, fetched if need be.
    pub(crate) fn model_path(&self) -> anyhow::Result<PathBuf> {
        store::resolve(self.model.as_deref())
    }

    /// Options of a server on 127.0.0.1 that stops soon when asked to; else the defaults of `limpid serve`.
    pub(crate) fn serve_options(
        &self,
        model_path: PathBuf,
        port: u16,
        collect_detailed_traces: Vec<DetailedTraces>,
    ) -> ServeOptions {
        ServeOptions {
            admission: AdmissionLimits::default(),
            // Two processes on one machine, and somebody who watches: health is not asked.
            engine_iteration_timeout: Duration::from_secs(300),
            served_model_names: vec![model_name(&model_path)],
            model_path,
            quantization: self.quantization,
            host: "127.0.0.1".to_owned(),
            port,
            api_keys: Vec::new(),
            engine: EngineConfig::default(),
            device: self.device,
            require_gpu: false,
            pipelines: store::pipelines(),
            telemetry: TelemetrySettings {
                collect_detailed_traces,
                service_version: env!("CARGO_PKG_VERSION"),
                ..TelemetrySettings::default()
            },
            log_stats_interval: None,
            shutdown_timeout: Duration::from_secs(1),
        }
    }
}

/// `--quantization`: how a directory's matrices are quantised.
pub(crate) fn quantization_parser() -> impl TypedValueParser<Value = Quantization> {
    PossibleValuesParser::new(["q8_0", "q4_0"]).map(|name| match name.as_str() {
        "q4_0" => Quantization::Q4_0,
        _ => Quantization::Q8_0,
    })
}

/// What a model is called if nobody says: the file's name without `.gguf`, or the directory's.
pub(crate) fn model_name(path: &Path) -> String {
    let directory = path.is_dir().then(|| path.canonicalize().ok()).flatten();
    let name = match &directory {
        Some(directory) => directory.file_name(),
        None => path.file_stem(),
    };
    name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
