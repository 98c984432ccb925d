//! The running telemetry: tracer, meter, exporters, scrape.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    Instrument, InstrumentKind, ManualReader, PeriodicReader, Pipeline, SdkMeterProvider, Stream, Temporality,
};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, SpanProcessor};

use crate::catalogue;
use crate::clock::Anchor;
use crate::config::{ConfigError, MetricsConfig, Push, Signal, TelemetryConfig};
use crate::dialect::{self, Dialect};
use crate::exemplar::ExemplarStore;
use crate::export::{
    Closing, Counts, Delivery, ExportRuntime, LogQueue, MetricsExporter, Processors, SpanExporter,
};
use crate::exposition::{self, Format};
use crate::http_metrics::{HttpMetrics, RouteMethod};
use crate::identity::ModelIdentity;
use crate::instruments::Instruments;
use crate::load::EngineLoad;
use crate::log_stats::LogStats;
use crate::logs;
use crate::observation::{
    AdmissionLimit, BlockResidency, Phase, SleepOperation, SleepState, StepDetail, StepFinished,
};
use crate::request::{RequestGuard, RequestStarted};
use crate::sleep::SleepOperationGuard;
use crate::trace::{HttpRequestStarted, HttpSpan, RequestLink, RequestSpan, Tracing, step_span};

/// How long a batch of spans or log records is kept for a collector that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A step links to every request of its batch, and batches are far smaller than this.
const MAX_STEP_LINKS: u32 = 4096;
/// More than a request's timeline ever keeps.
const MAX_EVENTS_PER_SPAN: u32 = 1024;

/// Sends what a signal's provider holds, and ends it.
type Flush = fn(&Inner, Duration);

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
    inner: Arc<Inner>,
}

struct Inner {
    tracing: Tracing,
    instruments: Instruments,
    reader: SharedReader,
    exemplars: Arc<ExemplarStore>,
    tracer_provider: Option<SdkTracerProvider>,
    meter_provider: SdkMeterProvider,
    closing: Closing,
    spans: Arc<Counts>,
    data_points: Arc<Counts>,
    log_records: Arc<Counts>,
    logs: Option<LogQueue>,
    traces_endpoint: Option<String>,
    step_trace_ratio: f64,
    description: Vec<String>,
    /// Dropped last: the exporters above run on it.
    _runtime: Option<ExportRuntime>,
}

impl Telemetry {
    /// Starts exporters and meters. Never waits for a collector; exporters bring their own small runtime.
    ///
    /// `span_processors` see the same spans as the exporter; with one of them spans are made even if no
    /// endpoint is set.
    ///
    /// # Errors
    /// An exporter that cannot be built from checked settings, or detailed traces that nobody would see.
    pub fn start(
        config: TelemetryConfig,
        span_processors: Vec<Box<dyn SpanProcessor>>,
    ) -> Result<Telemetry, ConfigError> {
        let traced = !config.disabled && (config.traces.is_some() || !span_processors.is_empty());
        if config.detailed_traces_asked && !traced && !config.disabled {
            return Err(ConfigError::new(
                "--collect-detailed-traces",
                "set without a traces endpoint",
                "together with --otlp-traces-endpoint or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            ));
        }
        let pushes = [&config.traces, &config.metrics, &config.logs];
        let runtime = match pushes.into_iter().any(Option::is_some) {
            false => None,
            true => Some(ExportRuntime::start().map_err(|error| {
                ConfigError::new(
                    "the OTLP exporters' thread",
                    error.to_string(),
                    "a system that can start it",
                )
            })?),
        };
        let anchor = Anchor::now();
        let exemplars = Arc::new(ExemplarStore::new(anchor));
        let exporting = Exporting {
            config: &config,
            runtime: runtime.as_ref(),
            closing: Closing::new(),
            exemplars: Arc::clone(&exemplars),
            spans: Arc::default(),
            data_points: Arc::default(),
            log_records: Arc::default(),
        };
        let reader = SharedReader(Arc::new(ManualReader::builder().build()));
        let meter_provider = exporting.meter_provider(&reader)?;
        let tracer_provider = match traced {
            true => Some(exporting.tracer_provider(span_processors)?),
            false => None,
        };
        let logs = exporting.log_queue()?;
        logs::attach(logs.clone());
        let Exporting { closing, spans, data_points, log_records, .. } = exporting;
        let scope =
            || InstrumentationScope::builder("limpid").with_version(env!("CARGO_PKG_VERSION")).build();
        let instruments = Instruments::new(
            meter_provider.meter_with_scope(scope()),
            Arc::clone(&exemplars),
            Arc::new(config.stats.clone()),
        );
        dialect::limpid::observe_exporters(&instruments, &spans, &data_points, &log_records);
        dialect::vllm::process::observe(&instruments);
        let tracing = Tracing {
            tracer: tracer_provider.as_ref().map(|provider| provider.tracer_with_scope(scope())),
            anchor,
            measure: config.measure,
            vllm_compatible_attributes: config.vllm_compatible_attributes,
            captures_content: config.captures_content,
        };
        let inner = Inner {
            tracing,
            instruments,
            reader,
            exemplars,
            tracer_provider,
            meter_provider,
            closing,
            spans,
            data_points,
            log_records,
            logs,
            traces_endpoint: config.traces.as_ref().map(Push::shown_endpoint),
            step_trace_ratio: config.step_trace_ratio,
            description: describe(&config),
            _runtime: runtime,
        };
        Ok(Telemetry { inner: Arc::new(inner) })
    }

    /// One line per signal for the start-up log: protocol, endpoint, or why it is off.
    pub fn describe(&self) -> Vec<String> {
        self.inner.description.clone()
    }

    /// Instruments for one engine serving one model; every known series exists at 0 from here on.
    pub fn model(&self, identity: ModelIdentity) -> ModelTelemetry {
        let stats = self.inner.instruments.config();
        let load = Arc::new(EngineLoad::new(identity.max_num_seqs, stats.slo_inter_token));
        let (dialects, log_stats) = match stats.log_stats {
            true => (
                dialect::for_model(&self.inner.instruments, &identity, &load),
                Some(LogStats::new(identity.engine)),
            ),
            false => (Vec::new(), None),
        };
        let tracing = self.inner.tracing.clone();
        let ModelIdentity { model_name, engine, .. } = identity;
        ModelTelemetry {
            inner: Arc::new(ModelInner { dialects, load, log_stats, tracing, model_name, engine }),
        }
    }

    /// Metrics of HTTP requests over `scheme`. The series that `routes` will need exist at 0 from here on.
    /// Call it once.
    pub fn http_metrics(&self, scheme: &'static str, routes: &[RouteMethod]) -> HttpMetrics {
        HttpMetrics::new(&self.inner.instruments, scheme, routes)
    }

    /// Opens the SERVER span of an HTTP request.
    pub fn http_request(&self, started: HttpRequestStarted<'_>) -> Arc<HttpSpan> {
        Arc::new(HttpSpan::start(&self.inner.tracing, &started))
    }

    /// Draws the trace of the start that began at `from` and ends now.
    pub fn started_up(&self, phases: &[Phase], from: Instant) {
        step_span::startup(&self.inner.tracing, phases, from, Instant::now());
    }

    /// Whether an operator asked for prompts and answers on spans.
    pub fn captures_content(&self) -> bool {
        self.inner.tracing.captures_content
    }

    /// Share of engine steps to trace; 0 unless detailed traces of everything were asked for and somebody
    /// reads spans.
    pub fn step_trace_ratio(&self) -> f64 {
        if self.inner.tracing.tracer.is_some() { self.inner.step_trace_ratio } else { 0.0 }
    }

    /// Renders all metrics from memory for a scraper that sent this `Accept` header.
    pub fn render_metrics(&self, accept: Option<&str>) -> MetricsText {
        let format = Format::negotiate(accept);
        let mut metrics = ResourceMetrics::default();
        // After shutdown the reader has nothing; an empty answer is still well-formed.
        let _ = self.inner.reader.collect(&mut metrics);
        let body = exposition::render(&metrics, &self.inner.exemplars, format);
        MetricsText { content_type: format.content_type(), body }
    }

    /// Flushes and ends all exporters within `timeout`, whatever the collector does. Says what was lost.
    pub async fn shutdown(&self, timeout: Duration) -> Vec<String> {
        self.inner.closing.begin(timeout);
        // Threads rather than blocking tasks: a runtime waits for those when it ends, and an exporter that
        // hangs must not hold up anything. Both signals at once, so that one cannot use up the other's time.
        let (done, ended) = tokio::sync::mpsc::unbounded_channel();
        let started = Instant::now();
        let flushes: [(Signal, Flush); 2] = [
            (Signal::Traces, |inner, timeout| {
                if let Some(provider) = &inner.tracer_provider {
                    let _ = provider.shutdown_with_timeout(timeout);
                }
            }),
            (Signal::Metrics, |inner, timeout| {
                let _ = inner.meter_provider.shutdown_with_timeout(timeout);
            }),
        ];
        for (signal, flush) in flushes {
            let inner = Arc::clone(&self.inner);
            let done = done.clone();
            let spawned = std::thread::Builder::new().name("limpid-otlp-end".to_owned()).spawn(move || {
                flush(&inner, timeout);
                drop(inner);
                let _ = done.send(());
            });
            if let Err(error) = spawned {
                tracing::warn!("OTLP {}: not flushed, no thread: {error}", signal.as_str());
            }
        }
        drop(done);
        // What is under way ends at the deadline; a moment more lets it be counted.
        let grace = Duration::from_millis(100);
        let mut ended = ended;
        let _ = tokio::time::timeout((timeout + grace).saturating_sub(started.elapsed()), async {
            while ended.recv().await.is_some() {}
            if let Some(logs) = &self.inner.logs {
                logs.ended().await;
            }
        })
        .await;
        self.losses()
    }

    fn losses(&self) -> Vec<String> {
        let spans = self.inner.spans.totals();
        let lost = spans.failed + spans.dropped + spans.pending;
        let mut losses = Vec::new();
        if let (Some(endpoint), true) = (&self.inner.traces_endpoint, lost > 0) {
            losses.push(format!(
                "OTLP traces to {endpoint}: {lost} spans lost ({} given up, {} dropped from a full queue, {} still \
                 undelivered at the end), {} delivered",
                spans.failed, spans.dropped, spans.pending, spans.exported,
            ));
        }
        let points = self.inner.data_points.totals();
        let lost = points.failed + points.pending;
        if lost > 0 {
            losses.push(format!("OTLP metrics: {lost} data points lost, {} delivered", points.exported));
        }
        let records = self.inner.log_records.totals();
        let lost = records.failed + records.dropped + records.pending;
        if lost > 0 {
            losses.push(format!("OTLP logs: {lost} log records lost, {} delivered", records.exported));
        }
        losses
    }
}

impl Drop for Inner {
    /// Whoever drops without [`Telemetry::shutdown`] does not wait for a collector for long either.
    fn drop(&mut self) {
        if let Some(logs) = &self.logs {
            logs::detach(logs);
        }
        if !self.closing.begun() {
            self.closing.begin(Duration::from_secs(1));
        }
    }
}

/// What the providers are built from.
struct Exporting<'a> {
    config: &'a TelemetryConfig,
    runtime: Option<&'a ExportRuntime>,
    closing: Closing,
    exemplars: Arc<ExemplarStore>,
    spans: Arc<Counts>,
    data_points: Arc<Counts>,
    log_records: Arc<Counts>,
}

impl Exporting<'_> {
    fn meter_provider(&self, reader: &SharedReader) -> Result<SdkMeterProvider, ConfigError> {
        let mut builder = SdkMeterProvider::builder()
            .with_resource(self.config.resource.clone())
            .with_view(view)
            .with_reader(reader.clone());
        let stats = self.config.stats.clone();
        builder = builder.with_view(move |instrument: &Instrument| hidden_view(&stats, instrument));
        if let (Some(push), Some(runtime)) = (&self.config.metrics, self.runtime) {
            let interval = self.config.metrics_interval;
            let delivery =
                in_runtime(runtime, || Delivery::new(push, interval, &self.closing, &self.data_points))?;
            let exporter = MetricsExporter::new(
                runtime.clone(),
                delivery,
                self.config.temporality,
                Arc::clone(&self.exemplars),
            );
            builder = builder.with_reader(PeriodicReader::builder(exporter).with_interval(interval).build());
        }
        Ok(builder.build())
    }

    fn log_queue(&self) -> Result<Option<LogQueue>, ConfigError> {
        let (Some(push), Some(runtime)) = (&self.config.logs, self.runtime) else { return Ok(None) };
        let counts = &self.log_records;
        let delivery = in_runtime(runtime, || Delivery::new(push, PATIENCE, &self.closing, counts))?;
        let (closing, limits) = (self.closing.clone(), self.config.log_queue);
        Ok(Some(LogQueue::start(runtime, delivery, closing, limits, &self.config.resource, counts)))
    }

    fn tracer_provider(&self, others: Vec<Box<dyn SpanProcessor>>) -> Result<SdkTracerProvider, ConfigError> {
        let mut export = None;
        if let (Some(push), Some(runtime)) = (&self.config.traces, self.runtime) {
            let queue = self.config.queue;
            let delivery = in_runtime(runtime, || Delivery::new(push, PATIENCE, &self.closing, &self.spans))?;
            let exporter = SpanExporter::new(runtime.clone(), delivery, &self.config.resource);
            let batch = BatchSpanProcessor::builder(exporter)
                .with_batch_config(
                    BatchConfigBuilder::default()
                        .with_max_queue_size(queue.max_queue_size)
                        .with_max_export_batch_size(queue.max_export_batch_size)
                        .with_scheduled_delay(queue.schedule_delay)
                        .build(),
                )
                .build();
            export = Some((batch, queue.max_queue_size, Arc::clone(&self.spans)));
        }
        Ok(SdkTracerProvider::builder()
            .with_resource(self.config.resource.clone())
            .with_sampler(self.config.sampler.clone())
            .with_max_links_per_span(MAX_STEP_LINKS)
            .with_max_events_per_span(MAX_EVENTS_PER_SPAN)
            .with_span_processor(Processors::new(export, others))
            .build())
    }
}

/// Builds a client where its tasks will run.
fn in_runtime<T>(runtime: &ExportRuntime, build: impl FnOnce() -> T) -> T {
    let _entered = runtime.handle().map(|handle| handle.enter());
    build()
}

/// Gives a stream its final name and a small table; see [`catalogue::Row`].
fn view(instrument: &Instrument) -> Option<Stream> {
    let row = catalogue::row_of_instrument(instrument.name())?;
    Stream::builder()
        .with_name(row.wire_name())
        .with_unit(row.wire_unit())
        .with_cardinality_limit(row.cardinality_limit())
        .build()
        .ok()
}

/// A second stream under the name that vLLM gave up, if that is to be shown.
fn hidden_view(stats: &MetricsConfig, instrument: &Instrument) -> Option<Stream> {
    let hidden = stats.shown_again(instrument.name())?;
    let row = catalogue::row_of_instrument(instrument.name())?;
    Stream::builder()
        .with_name(hidden.name)
        .with_description(hidden.description)
        .with_unit("")
        .with_cardinality_limit(row.cardinality_limit())
        .build()
        .ok()
}

fn describe(config: &TelemetryConfig) -> Vec<String> {
    let line = |signal: Signal, push: &Option<Push>, flag: &str| match push {
        Some(push) => format!(
            "OTLP {}: {} to {} (from {}{})",
            signal.as_str(),
            push.protocol.as_str(),
            push.shown_endpoint(),
            push.setting,
            if push.gzip { ", gzip" } else { "" },
        ),
        None if config.disabled => format!("OTLP {}: off (OTEL_SDK_DISABLED)", signal.as_str()),
        None => format!("OTLP {}: off (no {flag}, no endpoint variable)", signal.as_str()),
    };
    let mut lines = vec![
        line(Signal::Traces, &config.traces, "--otlp-traces-endpoint"),
        line(Signal::Metrics, &config.metrics, "--otlp-metrics-endpoint"),
        line(Signal::Logs, &config.logs, "--otlp-logs-endpoint"),
    ];
    if config.captures_content {
        lines.push(
            "prompts and answers go onto spans (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)"
                .to_owned(),
        );
    }
    lines
}

/// One reader for whoever scrapes and for the provider, which wants to own it.
#[derive(Clone, Debug)]
struct SharedReader(Arc<ManualReader>);

impl MetricReader for SharedReader {
    fn register_pipeline(&self, pipeline: std::sync::Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

/// Records for one engine and model. Cheap to clone.
#[derive(Clone)]
pub struct ModelTelemetry {
    inner: Arc<ModelInner>,
}

struct ModelInner {
    dialects: Vec<Box<dyn Dialect>>,
    load: Arc<EngineLoad>,
    log_stats: Option<LogStats>,
    tracing: Tracing,
    model_name: String,
    engine: u32,
}

impl ModelTelemetry {
    /// Takes one step's state in.
    pub fn step_finished(&self, step: &StepFinished) {
        let Some(log_stats) = &self.inner.log_stats else { return };
        log_stats.step_finished(step);
        self.inner.load.step_finished(step);
        for dialect in &self.inner.dialects {
            dialect.step_finished(step);
        }
    }

    /// Draws a sampled step, with links to the requests of its batch.
    pub fn step_traced(&self, detail: &StepDetail, requests: Vec<RequestLink>) {
        step_span::step(&self.inner.tracing, self.inner.engine, detail, requests);
    }

    /// Opens a request below its HTTP span.
    pub fn request(&self, http: Option<Arc<HttpSpan>>, started: RequestStarted) -> RequestGuard {
        self.choices(http, started, 1).remove(0)
    }

    /// Opens a request whose answer has `num_choices` choices: one guard and one model span for each of them.
    pub fn choices(
        &self,
        http: Option<Arc<HttpSpan>>,
        started: RequestStarted,
        num_choices: usize,
    ) -> Vec<RequestGuard> {
        let inner = &self.inner;
        let span =
            || RequestSpan::start(&inner.tracing, http.as_ref(), &inner.model_name, inner.engine, &started);
        RequestGuard::choices(self, &started, http.as_ref(), num_choices, span)
    }

    /// Takes in that sampled KV blocks lost their contents.
    pub fn blocks_evicted(&self, blocks: &[BlockResidency]) {
        for dialect in &self.inner.dialects {
            dialect.blocks_evicted(blocks);
        }
    }

    /// Counts a request that was not admitted.
    pub fn admission_rejected(&self, limit: AdmissionLimit) {
        for dialect in &self.inner.dialects {
            dialect.admission_rejected(limit);
        }
    }

    /// Takes in what of the engine is resident now.
    pub fn sleep_state_changed(&self, state: SleepState) {
        for dialect in &self.inner.dialects {
            dialect.sleep_state_changed(state);
        }
    }

    /// Somebody waits for the engine to sleep or to wake up, until the guard is dropped.
    pub fn sleep_operation(&self, operation: SleepOperation) -> SleepOperationGuard {
        SleepOperationGuard::start(self, operation)
    }

    /// What the engine did since the previous call, as a line for the log; `None` while it is idle and with
    /// log statistics off.
    pub fn stats_line(&self, now: Instant) -> Option<String> {
        self.inner.log_stats.as_ref()?.line(now)
    }

    pub(crate) fn dialects(&self) -> &[Box<dyn Dialect>] {
        &self.inner.dialects
    }
}

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod tests;
