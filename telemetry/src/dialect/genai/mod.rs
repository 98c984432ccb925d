//! The semantic conventions' server metrics.
//!
//! `gen_ai.server.request.duration` covers every request; an engine error carries `error.type`. The other two
//! cover successful requests only, as the conventions ask, and are observed when it is known that they are.

pub(crate) mod http;
pub(crate) mod rows;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use opentelemetry::KeyValue;

use super::Dialect;
use crate::identity::ModelIdentity;
use crate::instruments::{Histogram, Instruments};
use crate::lifecycle::{NewTokens, RequestFinished};
use crate::observation::{FinishReason, StepFinished};
use crate::request::Operation;
use crate::semconv::{self, key};

pub(super) struct GenAi {
    instruments: Instruments,
    model_name: String,
    max_model_len: usize,
    /// By [`Operation`].
    operations: [PerOperation; Operation::ALL.len()],
    /// Durations of failed requests. Error kinds are few and come from the server's own list; a series is
    /// made when its kind first occurs.
    failed: Mutex<HashMap<(Operation, &'static str), Histogram>>,
}

struct PerOperation {
    duration: Histogram,
    time_to_first_token: Histogram,
    time_per_output_token: Histogram,
}

impl GenAi {
    pub(super) fn new(instruments: &Instruments, identity: &ModelIdentity) -> GenAi {
        let operations = Operation::ALL.map(|operation| {
            let histogram = |row| {
                instruments.histogram(
                    row,
                    identity.max_model_len,
                    attributes(operation, &identity.model_name, None),
                )
            };
            PerOperation {
                duration: histogram(&rows::REQUEST_DURATION),
                time_to_first_token: histogram(&rows::TIME_TO_FIRST_TOKEN),
                time_per_output_token: histogram(&rows::TIME_PER_OUTPUT_TOKEN),
            }
        });
        GenAi {
            instruments: instruments.clone(),
            model_name: identity.model_name.clone(),
            max_model_len: identity.max_model_len,
            operations,
            failed: Mutex::default(),
        }
    }

    fn failed(&self, operation: Operation, error_type: &'static str) -> Histogram {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed
            .entry((operation, error_type))
            .or_insert_with(|| {
                self.instruments.histogram(
                    &rows::REQUEST_DURATION,
                    self.max_model_len,
                    attributes(operation, &self.model_name, Some(error_type)),
                )
            })
            .clone()
    }
}

fn attributes(operation: Operation, model_name: &str, error_type: Option<&'static str>) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(key::OPERATION_NAME, operation.as_str()),
        KeyValue::new(key::PROVIDER_NAME, semconv::PROVIDER),
        KeyValue::new(key::REQUEST_MODEL, model_name.to_owned()),
        KeyValue::new(key::RESPONSE_MODEL, model_name.to_owned()),
    ];
    attributes.extend(error_type.map(|error_type| KeyValue::new(key::ERROR_TYPE, error_type)));
    attributes
}

impl Dialect for GenAi {
    fn step_finished(&self, _step: &StepFinished) {}

    fn new_tokens(&self, _tokens: &NewTokens) {}

    fn request_finished(&self, request: &RequestFinished) {
        let seconds = request.e2e.as_secs_f64();
        let operation = &self.operations[request.operation as usize];
        match request.reason {
            FinishReason::Error => {
                let error_type = request.error_type.unwrap_or(semconv::ERROR_OTHER);
                self.failed(request.operation, error_type).record(seconds, request.link);
            }
            FinishReason::Abort => operation.duration.record(seconds, request.link),
            FinishReason::Stop | FinishReason::Length | FinishReason::Repetition => {
                operation.duration.record(seconds, request.link);
                if let Some(interval) = request.time_to_first_token {
                    operation.time_to_first_token.record(interval.as_secs_f64(), request.link);
                }
                if let (Some(first), true) = (request.time_to_first_token, request.num_generation_tokens > 1)
                {
                    let rest = request.e2e.saturating_sub(first).as_secs_f64();
                    let per_token = rest / (request.num_generation_tokens - 1) as f64;
                    operation.time_per_output_token.record(per_token, request.link);
                }
            }
        }
    }
}
