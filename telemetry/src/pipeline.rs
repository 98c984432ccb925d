//! The running telemetry: tracer, meter, exporters, scrape.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::trace::SpanProcessor;

use crate::config::TelemetryConfig;
use crate::http_span::{HttpRequestStarted, HttpSpan};
use crate::observation::StepFinished;
use crate::request::{RequestGuard, RequestStarted};

/// Labels of a served model and facts that never change while it is served.
#[derive(Clone, Debug)]
pub struct ModelIdentity {
    /// `model_name`: the first served name.
    pub model_name: String,
    /// `engine`: index of the engine.
    pub engine: u32,
    /// Longest sequence; bounds the token histograms' buckets.
    pub max_model_len: usize,
    /// Labels of `vllm:cache_config_info`, in vLLM's names.
    pub cache_config: Vec<(&'static str, String)>,
}

/// A scrape's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsText {
    /// The format really sent.
    pub content_type: &'static str,
    /// The text.
    pub body: String,
}

/// Everything that runs. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    _inner: Arc<()>,
}

impl Telemetry {
    /// Starts exporters and meters. Needs a tokio runtime that outlives it. Never waits for a collector.
    ///
    /// # Errors
    /// An exporter that cannot be built from checked settings.
    pub fn start(
        config: TelemetryConfig,
        span_processors: Vec<Box<dyn SpanProcessor>>,
    ) -> Result<Telemetry, crate::config::ConfigError> {
        let _ = (config, span_processors);
        Ok(Telemetry { _inner: Arc::new(()) })
    }

    /// One line per signal for the start-up log: protocol, endpoint, or why it is off.
    pub fn describe(&self) -> Vec<String> {
        Vec::new()
    }

    /// Instruments for one engine serving one model; every known series exists at 0 from here on.
    pub fn model(&self, identity: ModelIdentity) -> ModelTelemetry {
        let _ = identity;
        ModelTelemetry { _inner: Arc::new(()) }
    }

    /// Opens the SERVER span of an HTTP request.
    pub fn http_request(&self, started: HttpRequestStarted<'_>) -> Arc<HttpSpan> {
        let _ = started;
        unreachable!("stub")
    }

    /// Renders all metrics from memory for a scraper that sent this `Accept` header.
    pub fn render_metrics(&self, accept: Option<&str>) -> MetricsText {
        let _ = accept;
        MetricsText { content_type: "text/plain; version=0.0.4; charset=utf-8", body: String::new() }
    }

    /// Flushes and ends all exporters within `timeout`, whatever the collector does. Says what was lost.
    pub async fn shutdown(&self, timeout: Duration) -> Vec<String> {
        let _ = timeout;
        Vec::new()
    }
}

/// Records for one engine and model. Cheap to clone.
#[derive(Clone)]
pub struct ModelTelemetry {
    _inner: Arc<()>,
}

impl ModelTelemetry {
    /// Takes one step's state in.
    pub fn step_finished(&self, step: &StepFinished) {
        let _ = step;
    }

    /// Opens a request below its HTTP span.
    pub fn request(&self, parent: Option<Arc<HttpSpan>>, started: RequestStarted) -> RequestGuard {
        let _ = (parent, started);
        unreachable!("stub")
    }
}
