//! The catalogue: every instrument of every dialect, declared once.
//!
//! A [`Row`] says what an instrument is called inside the SDK and on the wire, its kind, unit, description,
//! labels with their closed value sets, buckets, group, status and what switches it on. Instruments, views,
//! the text of `/metrics`, the reference page and the parity test derive from these rows; nobody else spells
//! a metric name.
//!
//! Invariants, held by tests: names are unique; descriptions are constants (no model, version or device in
//! them, because a collector keys families by name and keeps the first description); every label's values are
//! a closed set or fixed for the life of the process, so that no client can add a series.

pub(crate) mod buckets;
pub(crate) mod hidden;
mod queries;
mod reference;
#[cfg(test)]
mod tests;

use crate::dialect;
use crate::exposition::prometheus_name;
pub use buckets::Buckets;
pub use hidden::{HIDDEN, Hidden};
pub use queries::{QUERIES, Query};
pub use reference::reference_page;

/// A row of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The folder it comes from: `vllm`, `genai`, `limpid`, `sglang`.
    pub dialect: &'static str,
    /// The instrument's name in the SDK, which refuses `:`.
    pub instrument: &'static str,
    /// Final name of the stream, if a View gives it one. Such a stream has an empty unit on the wire, so that
    /// no exporter and no translation strategy adds a suffix.
    pub renamed: Option<&'static str>,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// What is counted or measured; the wire unit too, unless `renamed`.
    pub unit: &'static str,
    /// HELP text.
    pub description: &'static str,
    /// Labels in the order of the original.
    pub labels: &'static [Label],
    /// Section of vLLM's or SGLang's tables (`2.1` …), empty for other dialects.
    pub group: &'static str,
    /// Where it stands with the system the name comes from.
    pub status: Status,
    /// What has to be on for it to exist.
    pub condition: Condition,
}

/// Kinds of instruments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Goes up and down by what is added and taken away; a gauge to Prometheus.
    UpDownCounter,
    /// Sum and count without a distribution. To OTLP it is a histogram without bounds.
    Summary,
    /// Distribution.
    Histogram(Buckets),
}

/// A label and where its values come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Label {
    /// Attribute key.
    pub name: &'static str,
    /// Its values.
    pub values: Values,
}

/// Where a label's values come from. None of them comes from a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Name of the served model.
    ModelName,
    /// Index of the engine.
    Engine,
    /// Index of the engine where there are several; absent where there is one.
    Rank,
    /// A setting's value, fixed once the engine is ready.
    Setting,
    /// Always this.
    Constant(&'static str),
    /// Exactly these.
    Closed(&'static [&'static str]),
    /// A route of the server, or one word for all other paths.
    Route,
    /// A method HTTP defines, or one word for all others.
    Method,
    /// A status that the server answers with.
    StatusCode,
    /// One of the server's error kinds; absent where there was no error.
    ErrorKind,
}

/// Where a metric stands with the system its name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Exposed there today.
    Current,
    /// Gone there, or declared and never moved; alive here because its cause is.
    Revived,
}

/// What has to be on for a metric to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// `--collect-detailed-traces model|all`.
    DetailedModel,
    /// `--collect-detailed-traces worker|all`.
    DetailedWorker,
    /// `--kv-cache-metrics`.
    KvCacheMetrics,
    /// `--enable-mfu-metrics`.
    MfuMetrics,
    /// `--slo-inter-token-ms`.
    Slo,
    /// Linux, whose `/proc` it is read from.
    Linux,
}

impl Condition {
    /// What the reference page says about it; empty for [`Condition::Always`].
    pub fn describe(self) -> &'static str {
        match self {
            Condition::Always => "",
            Condition::DetailedModel => "`--collect-detailed-traces model` or `all`",
            Condition::DetailedWorker => "`--collect-detailed-traces worker` or `all`",
            Condition::KvCacheMetrics => "`--kv-cache-metrics`",
            Condition::MfuMetrics => "`--enable-mfu-metrics`",
            Condition::Slo => "`--slo-inter-token-ms`",
            Condition::Linux => "Linux",
        }
    }
}

impl Row {
    /// Name on the wire (OTLP).
    pub fn wire_name(&self) -> &'static str {
        self.renamed.unwrap_or(self.instrument)
    }

    /// Unit on the wire (OTLP).
    pub fn wire_unit(&self) -> &'static str {
        if self.renamed.is_some() { "" } else { self.unit }
    }

    /// Family name on `/metrics`, `_total` of counters included.
    pub fn exposed_name(&self) -> String {
        prometheus_name(self.wire_name(), self.wire_unit(), self.kind == Kind::Counter)
    }

    /// Most label sets that one engine and model can have.
    pub fn series_per_model(&self) -> usize {
        self.labels
            .iter()
            .map(|label| match label.values {
                Values::Closed(values) => values.len(),
                Values::ErrorKind | Values::Route => 16,
                Values::Method => 10,
                Values::StatusCode => 12,
                Values::ModelName | Values::Engine | Values::Rank | Values::Setting | Values::Constant(_) => {
                    1
                }
            })
            .product()
    }

    /// Bound on the stream's series. The SDK allocates a table of this size per stream and reader, so it is
    /// small: enough for sixteen engines.
    pub(crate) fn cardinality_limit(&self) -> usize {
        (16 * self.series_per_model()).clamp(32, 2000)
    }
}

/// All rows, dialect by dialect.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    dialect::ROWS.iter().flat_map(|rows| rows.iter())
}

/// The row of an instrument.
pub(crate) fn row_of_instrument(name: &str) -> Option<&'static Row> {
    rows().find(|row| row.instrument == name)
}
