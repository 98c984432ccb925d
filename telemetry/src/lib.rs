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
pub mod config;
#[cfg(feature = "sdk")]
mod http_span;
#[cfg(feature = "sdk")]
mod pipeline;
#[cfg(feature = "sdk")]
mod request;

#[cfg(feature = "sdk")]
pub use config::{DetailedTraces, TelemetryConfig, TelemetrySettings};
#[cfg(feature = "sdk")]
pub use http_span::{HttpRequestStarted, HttpSpan};
#[cfg(feature = "sdk")]
pub use pipeline::{MetricsText, ModelIdentity, ModelTelemetry, Telemetry};
#[cfg(feature = "sdk")]
pub use request::{Operation, RequestGuard, RequestOutcome, RequestParams, RequestProgress, RequestStarted};
