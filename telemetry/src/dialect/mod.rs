//! Dialects: each a folder that turns observations into its own instruments.
//!
//! All dialects get the same observation at the same moment, so they cannot disagree. To add one: make a
//! folder with `rows.rs` (its part of the catalogue) and `mod.rs` (a type that binds its instruments for one
//! engine and model and implements [`Dialect`]), then add its rows to [`ROWS`] and its constructor to
//! [`for_model`]. Rows about the process rather than a model (exporters, HTTP, `/proc`) are fed by whoever
//! owns the numbers.

pub(crate) mod genai;
pub(crate) mod limpid;
mod sglang;
pub(crate) mod vllm;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;

use crate::catalogue::{Label, Row, Values};
use crate::config::MetricsDialect;
use crate::identity::ModelIdentity;
use crate::instruments::Instruments;
use crate::lifecycle::{NewTokens, ParentFinished, Preempted, RequestFinished};
use crate::load::EngineLoad;
use crate::observation::{AdmissionLimit, BlockResidency, SleepOperation, SleepState, StepFinished};

/// The rows of all dialects.
pub(crate) const ROWS: &[&[Row]] = &[
    vllm::rows::ROWS,
    vllm::cache_rows::ROWS,
    vllm::server_rows::ROWS,
    genai::rows::ROWS,
    limpid::rows::ROWS,
    sglang::rows::ROWS,
    sglang::request_rows::ROWS,
];

/// Instruments of one dialect for one engine and model. Called by the frontend, never by the engine thread.
pub(crate) trait Dialect: Send + Sync {
    /// An engine step ended.
    fn step_finished(&self, step: &StepFinished);
    /// A request got tokens.
    fn new_tokens(&self, tokens: &NewTokens);
    /// A request ended, in whatever way. With several choices each of them is one.
    fn request_finished(&self, request: &RequestFinished);
    /// The last choice of what a client sent as one request ended.
    fn parent_finished(&self, _parent: &ParentFinished) {}
    /// A request lost its blocks.
    fn preempted(&self, _preempted: &Preempted) {}
    /// Sampled KV blocks lost their contents.
    fn blocks_evicted(&self, _blocks: &[BlockResidency]) {}
    /// A request was refused because too many are there.
    fn admission_rejected(&self, _limit: AdmissionLimit) {}
    /// The engine went to sleep or woke up.
    fn sleep_state_changed(&self, _state: SleepState) {}
    /// Somebody asked the engine to sleep or to wake up, and waits for it.
    fn sleep_operation_started(&self, _operation: SleepOperation) {}
    /// That is over, whether it came to pass, failed, or was not waited for any longer.
    fn sleep_operation_ended(&self, _operation: SleepOperation, _took: Duration) {}
}

/// All dialects that are asked for, bound. From here on every known series exists at 0.
pub(crate) fn for_model(
    instruments: &Instruments,
    identity: &ModelIdentity,
    load: &Arc<EngineLoad>,
) -> Vec<Box<dyn Dialect>> {
    let mut dialects: Vec<Box<dyn Dialect>> = Vec::new();
    if instruments.config().speaks(MetricsDialect::Vllm) {
        dialects.push(Box::new(vllm::Vllm::new(instruments, identity)));
    }
    if instruments.config().speaks(MetricsDialect::GenAi) {
        dialects.push(Box::new(genai::GenAi::new(instruments, identity)));
    }
    if instruments.config().speaks(MetricsDialect::Limpid) {
        dialects.push(Box::new(limpid::Limpid::new(instruments, identity, load)));
    }
    if instruments.config().speaks(MetricsDialect::Sglang) {
        dialects.push(Box::new(sglang::Sglang::new(instruments, identity, load)));
    }
    dialects
}

/// One label set of a row. `chosen` gives the values of the labels that have several. A setting that the
/// engine does not have reads `None`, which is how vLLM prints an absent one.
pub(crate) fn attributes(
    row: &Row,
    identity: &ModelIdentity,
    chosen: &[(&'static str, &'static str)],
) -> Vec<KeyValue> {
    let attribute = |label: &Label| {
        Some(match label.values {
            Values::ModelName => KeyValue::new(label.name, identity.model_name.clone()),
            Values::Rank if identity.data_parallel_size <= 1 => return None,
            Values::Engine | Values::Rank => KeyValue::new(label.name, identity.engine.to_string()),
            Values::Constant(value) => KeyValue::new(label.name, value),
            Values::Setting => {
                let value = identity.cache_config.iter().find(|(name, _)| *name == label.name);
                KeyValue::new(label.name, value.map_or_else(|| "None".to_owned(), |(_, value)| value.clone()))
            }
            Values::Closed(_) | Values::ErrorKind | Values::Route | Values::Method | Values::StatusCode => {
                let value = chosen.iter().find(|(name, _)| *name == label.name);
                KeyValue::new(label.name, value.map(|(_, value)| *value).unwrap_or_default())
            }
        })
    };
    row.labels.iter().filter_map(attribute).collect()
}
