//! Observations in, OpenTelemetry out.
//!
//! An inference server reports what happened as plain, typed, past-tense values ([`observation`]); this
//! crate turns them into vLLM's metrics, the GenAI semantic conventions' spans and `gen_ai.latency.*`
//! attributes, and delivers both: by scrape (`/metrics`) and by OTLP push.
//!
//! It knows no engine, no scheduler and no HTTP framework. Without the `sdk` feature only [`observation`]
//! remains, so that an engine can report without depending on an OpenTelemetry SDK.

pub mod observation;

#[cfg(feature = "sdk")]
pub mod catalogue;
#[cfg(feature = "sdk")]
mod clock;
#[cfg(feature = "sdk")]
pub mod config;
#[cfg(feature = "sdk")]
mod dialect;
#[cfg(feature = "sdk")]
mod exemplar;
#[cfg(feature = "sdk")]
mod export;
#[cfg(feature = "sdk")]
mod exposition;
#[cfg(all(test, feature = "sdk"))]
mod fixtures;
#[cfg(feature = "sdk")]
mod http_metrics;
#[cfg(feature = "sdk")]
mod identity;
#[cfg(feature = "sdk")]
mod instruments;
#[cfg(feature = "sdk")]
mod lifecycle;
#[cfg(feature = "sdk")]
mod load;
#[cfg(feature = "sdk")]
mod log_stats;
#[cfg(feature = "sdk")]
mod logs;
#[cfg(feature = "sdk")]
mod pipeline;
#[cfg(feature = "sdk")]
mod request;
#[cfg(feature = "sdk")]
pub mod semconv;
#[cfg(feature = "sdk")]
mod sleep;
#[cfg(feature = "sdk")]
mod trace;

#[cfg(feature = "sdk")]
pub use config::{
    ConfigError, DetailedTraces, MetricsDialect, MetricsSettings, TelemetryConfig, TelemetrySettings,
};
#[cfg(feature = "sdk")]
pub use http_metrics::{HttpMetrics, HttpRequestGuard, HttpRequestHead, RouteMethod};
#[cfg(feature = "sdk")]
pub use identity::{DeviceIdentity, ModelIdentity, PoolIdentity, StartupTimes};
#[cfg(feature = "sdk")]
pub use logs::OtlpLogLayer;
#[cfg(feature = "sdk")]
pub use pipeline::{MetricsText, ModelTelemetry, Telemetry};
#[cfg(feature = "sdk")]
pub use request::{Operation, RequestGuard, RequestOutcome, RequestParams, RequestProgress, RequestStarted};
#[cfg(feature = "sdk")]
pub use sleep::SleepOperationGuard;
#[cfg(feature = "sdk")]
pub use trace::{HttpRequestStarted, HttpSpan, Message, RequestLink};
