//! Settings: as asked for by flags ([`TelemetrySettings`]), and resolved with the `OTEL_*` environment
//! into a value that needs no more checks ([`TelemetryConfig`]).
//!
//! Rules, for traces, metrics and logs alike:
//! - **On or off.** A flag's endpoint wins over `OTEL_EXPORTER_OTLP_<SIGNAL>_ENDPOINT`, that over
//!   `OTEL_EXPORTER_OTLP_ENDPOINT`. With none of them the signal is not pushed, unless
//!   `OTEL_<SIGNAL>_EXPORTER=otlp` asks for the standard's default endpoint. `none` there switches off what
//!   variables switched on, but not a flag. `OTEL_SDK_DISABLED=true` ends spans and push altogether;
//!   `/metrics` stays, because routers and autoscalers live on it. Log records are pushed only if their own
//!   flag or variables ask for it: the generic endpoint alone does not, because the same lines are on stderr,
//!   where most platforms collect them already.
//! - **Specific before generic**: `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` before `OTEL_EXPORTER_OTLP_PROTOCOL`,
//!   and so on. An empty variable counts as unset.
//! - **A wrong value is refused**, with the setting's name, what was found and what is allowed; nothing falls
//!   back silently. Header values are secrets and appear in no message.
//!
//! The SDK's own reading of the process environment is never relied on: everything it would read is set
//! explicitly from here, so that what is logged at start is what happens.

mod endpoint;
mod env;
mod metrics;
mod resource;
mod sampler;
#[cfg(test)]
mod tests;
mod tls;

use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::trace::Sampler;

pub(crate) use endpoint::{Protocol, Push, Signal};
use env::Env;
pub(crate) use metrics::{Measure, MetricsConfig};
pub use metrics::{MetricsDialect, MetricsSettings};
pub(crate) use tls::Tls;

/// What `--collect-detailed-traces` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetailedTraces {
    /// `gen_ai.latency.time_in_model_forward`.
    Model,
    /// `gen_ai.latency.time_in_model_execute`.
    Worker,
    /// Both.
    All,
}

/// Settings as flags give them; flags win over `OTEL_*` variables.
#[derive(Clone, Debug, Default)]
pub struct TelemetrySettings {
    /// `--otlp-traces-endpoint`. gRPC: `http://`, `https://`, vLLM's `grpc://`, or `host:port`, which means
    /// plain text as in vLLM. HTTP: a full URL; `/v1/traces` is appended if it has no path.
    pub otlp_traces_endpoint: Option<String>,
    /// `--otlp-metrics-endpoint`; same forms, `/v1/metrics`.
    pub otlp_metrics_endpoint: Option<String>,
    /// `--otlp-logs-endpoint`; same forms, `/v1/logs`.
    pub otlp_logs_endpoint: Option<String>,
    /// `--collect-detailed-traces`.
    pub collect_detailed_traces: Vec<DetailedTraces>,
    /// `--detailed-trace-step-ratio`: share of engine steps that get a trace of their own when
    /// `collect_detailed_traces` is `all`; 0.01 if `None`.
    pub detailed_trace_step_ratio: Option<f64>,
    /// Also writes vLLM's attribute spellings (`gen_ai.usage.prompt_tokens`, `gen_ai.system`, …) on model spans.
    pub vllm_compatible_attributes: bool,
    /// Which metrics there are.
    pub metrics: MetricsSettings,
    /// More resource attributes (device name, type, backend).
    pub resource: Vec<(&'static str, String)>,
    /// Version of the program that serves, for `service.version`.
    pub service_version: &'static str,
}

/// Settings that were checked.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    pub(crate) disabled: bool,
    pub(crate) traces: Option<Push>,
    pub(crate) metrics: Option<Push>,
    pub(crate) logs: Option<Push>,
    pub(crate) metrics_interval: Duration,
    pub(crate) temporality: Temporality,
    pub(crate) sampler: Sampler,
    pub(crate) queue: QueueLimits,
    pub(crate) log_queue: QueueLimits,
    pub(crate) resource: Resource,
    pub(crate) measure: Measure,
    pub(crate) stats: MetricsConfig,
    pub(crate) detailed_traces_asked: bool,
    pub(crate) step_trace_ratio: f64,
    pub(crate) vllm_compatible_attributes: bool,
    pub(crate) captures_content: bool,
}

/// Bounds of the queue between ended spans (`OTEL_BSP_*`) or log records (`OTEL_BLRP_*`) and the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    pub(crate) max_queue_size: usize,
    pub(crate) max_export_batch_size: usize,
    pub(crate) schedule_delay: Duration,
}

/// A setting that cannot be used. Reads: setting, value found, what is allowed.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{setting} is {found}; allowed: {allowed}")]
pub struct ConfigError {
    /// Flag or variable.
    pub setting: String,
    /// Value found.
    pub found: String,
    /// What is allowed, and what to do.
    pub allowed: String,
}

impl ConfigError {
    pub(crate) fn new(
        setting: impl Into<String>,
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        ConfigError { setting: setting.into(), found: found.into(), allowed: allowed.into() }
    }
}

impl TelemetryConfig {
    /// Checks the settings together with the environment, which comes as a function so that tests leave the
    /// process environment alone.
    ///
    /// `collect_detailed_traces` without a traces endpoint passes here and is refused by
    /// [`Telemetry::start`](crate::Telemetry::start), which knows whether somebody else reads the spans.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn resolve(
        settings: TelemetrySettings,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<TelemetryConfig, ConfigError> {
        let env = Env::new(env);
        let disabled = env.flag("OTEL_SDK_DISABLED")?.unwrap_or(false);
        let traces = Push::resolve(
            &env,
            Signal::Traces,
            "--otlp-traces-endpoint",
            settings.otlp_traces_endpoint.as_deref(),
        )?;
        let metrics = Push::resolve(
            &env,
            Signal::Metrics,
            "--otlp-metrics-endpoint",
            settings.otlp_metrics_endpoint.as_deref(),
        )?;
        let logs = Push::resolve(
            &env,
            Signal::Logs,
            "--otlp-logs-endpoint",
            settings.otlp_logs_endpoint.as_deref(),
        )?;
        let measure = Measure::new(&settings.collect_detailed_traces);
        Ok(TelemetryConfig {
            disabled,
            traces: traces.filter(|_| !disabled),
            metrics: metrics.filter(|_| !disabled),
            logs: logs.filter(|_| !disabled),
            metrics_interval: env.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)?,
            temporality: temporality(&env)?,
            sampler: sampler::resolve(&env)?,
            queue: QueueLimits::resolve(&env, "OTEL_BSP", 5_000)?,
            log_queue: QueueLimits::resolve(&env, "OTEL_BLRP", 1_000)?,
            resource: resource::resolve(&env, &settings)?,
            measure,
            stats: MetricsConfig::resolve(&settings.metrics, measure)?,
            step_trace_ratio: step_trace_ratio(&settings)?,
            detailed_traces_asked: !settings.collect_detailed_traces.is_empty(),
            vllm_compatible_attributes: settings.vllm_compatible_attributes,
            captures_content: captures_content(&env)?,
        })
    }
}

impl QueueLimits {
    fn resolve(env: &Env<'_>, prefix: &str, delay: u64) -> Result<QueueLimits, ConfigError> {
        let max_queue_size = env.count(&format!("{prefix}_MAX_QUEUE_SIZE"), 2048, 1..=1 << 20)?;
        let max_export_batch_size = env.count(
            &format!("{prefix}_MAX_EXPORT_BATCH_SIZE"),
            max_queue_size.min(512),
            1..=max_queue_size,
        )?;
        let schedule_delay = env.milliseconds(&format!("{prefix}_SCHEDULE_DELAY"), delay)?;
        Ok(QueueLimits { max_queue_size, max_export_batch_size, schedule_delay })
    }
}

/// Whether prompts and answers go onto spans. Nothing but this variable makes them.
fn captures_content(env: &Env<'_>) -> Result<bool, ConfigError> {
    const SETTING: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
    let Some(found) = env.get(SETTING) else { return Ok(false) };
    match found.to_ascii_lowercase().as_str() {
        "true" | "span_only" => Ok(true),
        "false" | "no_content" => Ok(false),
        _ => Err(ConfigError::new(SETTING, found, "true, span_only, false, no_content")),
    }
}

/// 0 unless everything is to be traced in detail.
fn step_trace_ratio(settings: &TelemetrySettings) -> Result<f64, ConfigError> {
    let ratio = settings.detailed_trace_step_ratio.unwrap_or(0.01);
    if !(0.0..=1.0).contains(&ratio) {
        return Err(ConfigError::new(
            "--detailed-trace-step-ratio",
            ratio.to_string(),
            "a number from 0 to 1",
        ));
    }
    let all = settings.collect_detailed_traces.contains(&DetailedTraces::All);
    Ok(if all { ratio } else { 0.0 })
}

fn temporality(env: &Env<'_>) -> Result<Temporality, ConfigError> {
    const SETTING: &str = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
    let Some(found) = env.get(SETTING) else { return Ok(Temporality::Cumulative) };
    match found.to_ascii_lowercase().as_str() {
        "cumulative" => Ok(Temporality::Cumulative),
        "delta" => Ok(Temporality::Delta),
        "lowmemory" => Ok(Temporality::LowMemory),
        _ => Err(ConfigError::new(SETTING, found, "cumulative, delta, lowmemory")),
    }
}
