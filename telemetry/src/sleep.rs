//! A sleep or a wake-up of the engine that somebody waits for.
//!
//! What state the engine is in afterwards is told apart from it ([`ModelTelemetry::sleep_state_changed`]), because
//! an operation may fail, and whoever asked may leave before it is over.
//!
//! Invariant: what was counted as under way is taken off again and timed, on every way out.

use std::time::Instant;

use crate::observation::SleepOperation;
use crate::pipeline::ModelTelemetry;

/// Lasts as long as somebody waits. Dropping it ends the operation, however it went.
pub struct SleepOperationGuard {
    model: ModelTelemetry,
    operation: SleepOperation,
    started: Instant,
}

impl SleepOperationGuard {
    pub(crate) fn start(model: &ModelTelemetry, operation: SleepOperation) -> SleepOperationGuard {
        for dialect in model.dialects() {
            dialect.sleep_operation_started(operation);
        }
        SleepOperationGuard { model: model.clone(), operation, started: Instant::now() }
    }
}

impl Drop for SleepOperationGuard {
    fn drop(&mut self) {
        for dialect in self.model.dialects() {
            dialect.sleep_operation_ended(self.operation, self.started.elapsed());
        }
    }
}
