//! Dialects: each a folder that turns observations into its own instruments.
//!
//! All dialects get the same observation at the same moment, so they cannot disagree. To add one: make a
//! folder with `rows.rs` (its part of the catalogue) and `mod.rs` (a type that binds its instruments for one
//! engine and model and implements [`Dialect`]), then add its rows to [`ROWS`] and its constructor to
//! [`for_model`]. A dialect about the process rather than a model, like `limpid` today, has only rows and is
//! fed by whoever owns the numbers.

mod genai;
pub(crate) mod limpid;
mod vllm;

use crate::catalogue::Row;
use crate::instruments::Instruments;
use crate::lifecycle::{NewTokens, ParentFinished, RequestFinished};
use crate::observation::{AdmissionLimit, BlockResidency, SleepState, StepFinished};
use crate::pipeline::ModelIdentity;

/// The rows of all dialects.
pub(crate) const ROWS: &[&[Row]] = &[vllm::rows::ROWS, genai::rows::ROWS, limpid::rows::ROWS];

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
    /// Sampled KV blocks lost their contents.
    fn blocks_evicted(&self, _blocks: &[BlockResidency]) {}
    /// A request was refused because too many are there.
    fn admission_rejected(&self, _limit: AdmissionLimit) {}
    /// The engine went to sleep or woke up.
    fn sleep_state_changed(&self, _state: SleepState) {}
}

/// All dialects, bound. From here on every known series exists at 0.
pub(crate) fn for_model(instruments: &Instruments, identity: &ModelIdentity) -> Vec<Box<dyn Dialect>> {
    vec![Box::new(vllm::Vllm::new(instruments, identity)), Box::new(genai::GenAi::new(instruments, identity))]
}
