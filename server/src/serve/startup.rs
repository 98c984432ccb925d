//! Everything between the options and a server that could answer: model, settings, devices, telemetry,
//! engines. All of it may block.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use limpid_engine::config::{ConfigError, ResolvedConfig, SchedulingPolicy};
use limpid_engine::device::{
    Adapter, Device, DeviceError, DeviceInfo, DeviceLimits, DeviceSource, find_adapters,
};
use limpid_engine::engine::EngineHandle;
use limpid_engine::model::Model;
use limpid_telemetry::observation::Phase;
use limpid_telemetry::{
    DeviceIdentity, ModelIdentity, PoolIdentity, StartupTimes, Telemetry, TelemetryConfig, TelemetrySettings,
};
use opentelemetry_sdk::trace::SpanProcessor;

use super::ServeOptions;
use crate::frontend::{self, EngineParts, TextModel};

/// What a server is made of.
pub(super) struct Opened {
    /// At least one, by index.
    pub(super) engines: Vec<EngineParts>,
    pub(super) telemetry: Telemetry,
    pub(super) text: Arc<dyn TextModel>,
    /// Of the first engine.
    pub(super) device: DeviceInfo,
    pub(super) max_model_len: usize,
    pub(super) has_priorities: bool,
    /// Tokens in a block of the prefix caches, if there are any.
    pub(super) prefix_block_size: Option<usize>,
}

/// Opens everything, cheap checks first.
pub(super) fn open(
    options: &ServeOptions,
    span_processors: Vec<Box<dyn SpanProcessor>>,
) -> anyhow::Result<Opened> {
    let started = Instant::now();
    let num_engines = options.engine.num_engines()?;
    let mut model = Model::open_quantized(&options.model_path, options.quantization)?;
    let mut phases = model.opening.to_vec();
    let searched = Instant::now();
    let pipelines = options.pipelines.as_deref();
    let adapters = find_adapters(options.device, options.require_gpu, num_engines, pipelines)
        .context("no device can be used")?;
    phases.push(Phase::since("find_device", searched));
    let device_info = adapters[0].info().clone();
    let settings = telemetry_settings(options, &device_info);
    let telemetry_config = TelemetryConfig::resolve(settings, &|name| std::env::var(name).ok())?;
    // All of them before one takes memory.
    let planned = adapters.into_iter().map(|adapter| {
        let (memory, sharing) = (adapter.memory(), adapter.sharing());
        let config = options.engine.resolve(&model.program, model.context_length, memory, sharing)?;
        Ok((adapter, config))
    });
    let planned: Vec<_> = planned.collect::<Result<_, ConfigError>>()?;
    let first = &planned[0].1;
    let (max_model_len, block_size) = (first.max_model_len, first.block_size);
    model.program.fit_context(max_model_len);
    let model = Arc::new(model);
    log_what_is_served(options, &model, max_model_len);

    let mut ready = Vec::new();
    for (index, (adapter, config)) in planned.into_iter().enumerate() {
        if num_engines > 1 {
            tracing::info!("engine {index} of {num_engines}:");
        }
        log_device(options, &model, adapter.info(), &config);
        let engine = ReadyEngine::open(&model, adapter, config)?;
        phases.extend(engine.device.opening());
        ready.push(engine);
    }
    let telemetry = Telemetry::start(telemetry_config, span_processors)?;
    for line in telemetry.describe() {
        tracing::info!("{line}");
    }
    let engines = ready.into_iter().enumerate().map(|(index, engine)| {
        let identity = identity(options, &model, &engine, index, started)?;
        Ok(engine.start(index, &telemetry, identity))
    });
    let engines = engines.collect::<anyhow::Result<_>>()?;
    telemetry.started_up(&phases, started);
    Ok(Opened {
        engines,
        telemetry,
        text: model,
        device: device_info,
        max_model_len,
        has_priorities: options.engine.scheduling_policy == SchedulingPolicy::Priority,
        prefix_block_size: options.engine.enable_prefix_caching.then_some(block_size),
    })
}

/// An engine's device, open.
struct ReadyEngine {
    config: ResolvedConfig,
    source: ModelOnDevice,
    device: Box<dyn Device>,
    load_weights: Duration,
}

impl ReadyEngine {
    fn open(
        model: &Arc<Model>,
        adapter: Box<dyn Adapter>,
        config: ResolvedConfig,
    ) -> anyhow::Result<ReadyEngine> {
        let limits = config.device_limits();
        let mut source = ModelOnDevice { model: Arc::clone(model), adapter, limits };
        let opening = Instant::now();
        let device = source
            .open()
            .with_context(|| format!("the device {} cannot be opened", source.adapter.info().name))?;
        Ok(ReadyEngine { config, source, device, load_weights: opening.elapsed() })
    }

    fn start(self, index: usize, telemetry: &Telemetry, identity: ModelIdentity) -> EngineParts {
        let model_telemetry = telemetry.model(identity);
        let (steps, events) = frontend::channel();
        let on_step = move |step| steps.step(step);
        let engine = EngineHandle::start(index, self.config, self.device, Box::new(self.source), on_step);
        engine.trace_steps(telemetry.step_trace_ratio());
        EngineParts { engine: Arc::new(engine), events, telemetry: model_telemetry }
    }
}

/// Opens an engine's device for the model, again after a sleep.
struct ModelOnDevice {
    model: Arc<Model>,
    adapter: Box<dyn Adapter>,
    limits: DeviceLimits,
}

impl DeviceSource for ModelOnDevice {
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError> {
        self.adapter.open(&self.model.program, &*self.model, self.limits)
    }

    fn discard(&mut self) {
        self.model.discard_pages();
    }
}

fn log_what_is_served(options: &ServeOptions, model: &Model, max_model_len: usize) {
    tracing::info!(
        "model {} from {}: {}{}, {max_model_len} tokens of context",
        options.served_model_names.join(", "),
        options.model_path.display(),
        model.architecture,
        model.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default(),
    );
}

fn log_device(options: &ServeOptions, model: &Model, device: &DeviceInfo, config: &ResolvedConfig) {
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

fn identity(
    options: &ServeOptions,
    model: &Model,
    engine: &ReadyEngine,
    index: usize,
    started: Instant,
) -> anyhow::Result<ModelIdentity> {
    let (config, device) = (&engine.config, engine.source.adapter.info());
    Ok(ModelIdentity {
        model_name: options.served_model_names.first().context("--served-model-name is empty")?.clone(),
        engine: index as u32,
        data_parallel_size: options.engine.data_parallel_size,
        max_model_len: config.max_model_len,
        max_num_seqs: config.max_num_seqs,
        cache_config: cache_config(options, config),
        pool: pool(config, model),
        weight_bytes: model.program.weight_bytes(),
        startup: StartupTimes { load_weights: Some(engine.load_weights), total: Some(started.elapsed()) },
        device: DeviceIdentity {
            kind: device.kind.to_owned(),
            name: device.name.clone(),
            device_type: device.device_type.clone(),
            backend: device.backend.clone(),
            driver: device.driver.clone(),
        },
    })
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
