//! Everything between the options and a server that could answer: model, settings, device, telemetry,
//! engine. All of it may block.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use limpid_engine::config::{ResolvedConfig, SchedulingPolicy};
use limpid_engine::device::{
    Device, DeviceChoice, DeviceError, DeviceInfo, DeviceLimits, DeviceSource, find_adapter,
};
use limpid_engine::engine::EngineHandle;
use limpid_engine::model::Model;
use limpid_telemetry::observation::Phase;
use limpid_telemetry::{
    DeviceIdentity, ModelIdentity, ModelTelemetry, PoolIdentity, StartupTimes, Telemetry, TelemetryConfig,
    TelemetrySettings,
};
use opentelemetry_sdk::trace::SpanProcessor;

use super::ServeOptions;
use crate::frontend::{self, Engine, Events, TextModel};

/// What a server is made of.
pub(super) struct Opened {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) events: Events,
    pub(super) telemetry: Telemetry,
    pub(super) model_telemetry: ModelTelemetry,
    pub(super) text: Arc<dyn TextModel>,
    pub(super) device: DeviceInfo,
    pub(super) max_model_len: usize,
    pub(super) has_priorities: bool,
}

/// Opens everything, cheap checks first.
pub(super) fn open(
    options: &ServeOptions,
    span_processors: Vec<Box<dyn SpanProcessor>>,
) -> anyhow::Result<Opened> {
    let started = Instant::now();
    let mut model = Model::open(&options.model_path)?;
    let mut phases = model.opening.to_vec();
    let searched = Instant::now();
    let adapter = find_adapter(options.device, options.require_gpu).context("no device can be used")?;
    phases.push(Phase::since("find_device", searched));
    let device_info = adapter.info().clone();
    let settings = telemetry_settings(options, &device_info);
    let telemetry_config = TelemetryConfig::resolve(settings, &|name| std::env::var(name).ok())?;
    let config = options.engine.resolve(&model.program, model.context_length, adapter.memory())?;
    model.program.fit_context(config.max_model_len);
    let model = Arc::new(model);
    log_what_is_served(options, &model, &device_info, &config);

    let opening = Instant::now();
    let device = adapter
        .open(&model.program, &*model, config.device_limits())
        .with_context(|| format!("the device {} cannot be opened", device_info.name))?;
    let load_weights = opening.elapsed();
    phases.extend(device.opening());
    let telemetry = Telemetry::start(telemetry_config, span_processors)?;
    for line in telemetry.describe() {
        tracing::info!("{line}");
    }
    let model_telemetry = telemetry.model(ModelIdentity {
        model_name: options.served_model_names.first().context("--served-model-name is empty")?.clone(),
        engine: 0,
        max_model_len: config.max_model_len,
        max_num_seqs: config.max_num_seqs,
        cache_config: cache_config(options, &config),
        pool: pool(&config, &model),
        weight_bytes: model.program.weight_bytes(),
        startup: StartupTimes { load_weights: Some(load_weights), total: Some(started.elapsed()) },
        device: DeviceIdentity {
            kind: device_info.kind.to_owned(),
            name: device_info.name.clone(),
            device_type: device_info.device_type.clone(),
            backend: device_info.backend.clone(),
            driver: device_info.driver.clone(),
        },
    });

    let max_model_len = config.max_model_len;
    let has_priorities = config.scheduling_policy == SchedulingPolicy::Priority;
    let (steps, events) = frontend::channel();
    let source = ModelOnDevice {
        model: Arc::clone(&model),
        choice: options.device,
        require_gpu: options.require_gpu,
        limits: config.device_limits(),
    };
    let engine = EngineHandle::start(config, device, Box::new(source), move |step| steps.step(step));
    engine.trace_steps(telemetry.step_trace_ratio());
    telemetry.started_up(&phases, started);
    Ok(Opened {
        engine: Arc::new(engine),
        events,
        telemetry,
        model_telemetry,
        text: model,
        device: device_info,
        max_model_len,
        has_priorities,
    })
}

/// Opens the device for the model again after a sleep.
struct ModelOnDevice {
    model: Arc<Model>,
    choice: DeviceChoice,
    require_gpu: bool,
    limits: DeviceLimits,
}

impl DeviceSource for ModelOnDevice {
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError> {
        let adapter = find_adapter(self.choice, self.require_gpu)?;
        adapter.open(&self.model.program, &*self.model, self.limits)
    }

    fn discard(&mut self) {
        self.model.discard_pages();
    }
}

fn log_what_is_served(options: &ServeOptions, model: &Model, device: &DeviceInfo, config: &ResolvedConfig) {
    tracing::info!(
        "model {} from {}: {}{}, {} tokens of context",
        options.served_model_names.join(", "),
        options.model_path.display(),
        model.architecture,
        model.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default(),
        config.max_model_len,
    );
    let driver = if device.driver.is_empty() { String::new() } else { format!(", driver {}", device.driver) };
    tracing::info!(
        "device {}: {} ({}, {}{driver}); asked for: {:?}{}",
        device.kind,
        device.name,
        device.device_type,
        device.backend,
        options.device,
        if options.require_gpu { ", a GPU is required" } else { "" },
    );
    tracing::info!("{}", config.describe_kv_cache(&model.program));
}

/// The device's names become resource attributes.
fn telemetry_settings(options: &ServeOptions, device: &DeviceInfo) -> TelemetrySettings {
    let mut settings = options.telemetry.clone();
    settings.resource.extend([
        ("limpid.device.kind", device.kind.to_owned()),
        ("limpid.device.name", device.name.clone()),
        ("limpid.device.type", device.device_type.clone()),
        ("limpid.device.backend", device.backend.clone()),
    ]);
    settings
}

/// The KV cache without the null block, which no request can have.
fn pool(config: &ResolvedConfig, model: &Model) -> PoolIdentity {
    let num_blocks = config.num_blocks.saturating_sub(1);
    let num_slots = (num_blocks * config.block_size) as u64;
    PoolIdentity {
        num_blocks,
        block_size: config.block_size,
        num_bytes: num_slots * model.program.kv_bytes_per_slot(),
    }
}

/// The window that all layers have, as vLLM tells it: none where only some have one.
fn uniform_window(windows: &[Option<usize>]) -> Option<usize> {
    let first = windows.first().copied().flatten();
    first.filter(|_| windows.iter().all(|window| *window == first))
}

/// Labels of `vllm:cache_config_info` from the values in use, in Python's spelling as vLLM has it.
fn cache_config(options: &ServeOptions, config: &ResolvedConfig) -> Vec<(&'static str, String)> {
    let python_bool = |value: bool| if value { "True" } else { "False" }.to_owned();
    let or_none = |value: Option<usize>| value.map_or_else(|| "None".to_owned(), |value| value.to_string());
    vec![
        ("block_size", config.block_size.to_string()),
        ("cache_dtype", "float32".to_owned()),
        ("enable_prefix_caching", python_bool(config.enable_prefix_caching)),
        ("gpu_memory_utilization", options.engine.gpu_memory_utilization.to_string()),
        ("num_gpu_blocks", config.num_blocks.to_string()),
        ("num_gpu_blocks_override", or_none(options.engine.num_gpu_blocks_override)),
        ("sliding_window", or_none(uniform_window(&config.cache_windows))),
    ]
}
