//! A model and a device for `limpid demo` and `limpid bench`, and a server of them in this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use limpid_engine::config::EngineConfig;
use limpid_engine::device::DeviceChoice;
use limpid_telemetry::{DetailedTraces, TelemetrySettings};

use crate::frontend::AdmissionLimits;
use crate::serve::ServeOptions;
use crate::store;

/// Which model, on which device.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The model: a GGUF file, a name in the store, or a source; the default model if absent
    #[arg(long)]
    pub(crate) model: Option<String>,
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
    /// The model's file, fetched if need be.
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
            served_model_names: vec![file_name(&model_path)],
            model_path,
            host: "127.0.0.1".to_owned(),
            port,
            api_keys: Vec::new(),
            engine: EngineConfig::default(),
            device: self.device,
            require_gpu: false,
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

/// The file's name without `.gguf`.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
