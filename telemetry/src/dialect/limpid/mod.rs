//! What no other dialect has: how loaded an engine is ([`crate::load`]), what preemption costs, where a step's
//! time goes, what computes; and how the OTLP exporters themselves fare. The exporters' numbers belong to the
//! process, not to a model; [`crate::export`] counts them and [`observe_exporters`] shows them.

pub(crate) mod rows;

use std::sync::Arc;
use std::time::Instant;

use opentelemetry::KeyValue;

use super::{Dialect, attributes};
use crate::export::{Counts, Totals};
use crate::identity::ModelIdentity;
use crate::instruments::{Histogram, Instruments};
use crate::lifecycle::{NewTokens, RequestFinished};
use crate::load::EngineLoad;
use crate::observation::StepFinished;
use crate::semconv::key;

pub(super) struct Limpid {
    preempted: Histogram,
    plan: Histogram,
    execute: Histogram,
    apply: Histogram,
}

impl Limpid {
    pub(super) fn new(instruments: &Instruments, identity: &ModelIdentity, load: &Arc<EngineLoad>) -> Limpid {
        let saturation = Arc::clone(load);
        let series = attributes(&rows::SATURATION, identity, &[]);
        instruments.observe_gauge(&rows::SATURATION, series, move || saturation.saturation(Instant::now()));
        let batch = Arc::clone(load);
        let series = attributes(&rows::MAX_RUNNING_REQUESTS_UNDER_SLO, identity, &[]);
        instruments.observe_gauge(&rows::MAX_RUNNING_REQUESTS_UNDER_SLO, series, move || {
            batch.largest_batch_within_slo().unwrap_or(0.0)
        });
        let device = &identity.device;
        let names = [&device.kind, &device.name, &device.device_type, &device.backend, &device.driver];
        let mut series = attributes(&rows::DEVICE_INFO, identity, &[]);
        // The first two labels are the model's and the engine's.
        for (attribute, name) in series.iter_mut().skip(2).zip(names) {
            attribute.value = name.clone().into();
        }
        instruments.gauge(&rows::DEVICE_INFO, series).set(1.0);
        let part = |part| {
            let series = attributes(&rows::STEP_DURATION, identity, &[(key::PART, part)]);
            instruments.histogram(&rows::STEP_DURATION, identity.max_model_len, series)
        };
        let row = &rows::PREEMPTED_DURATION;
        Limpid {
            preempted: instruments.histogram(row, identity.max_model_len, attributes(row, identity, &[])),
            plan: part("plan"),
            execute: part("execute"),
            apply: part("apply"),
        }
    }
}

impl Dialect for Limpid {
    fn step_finished(&self, step: &StepFinished) {
        if step.num_prompt_tokens + step.num_generation_tokens > 0 {
            self.plan.record(step.times.scheduler.as_secs_f64(), None);
            self.execute.record(step.times.execute.as_secs_f64(), None);
            self.apply.record(step.apply.as_secs_f64(), None);
        }
    }

    fn new_tokens(&self, _tokens: &NewTokens) {}

    fn request_finished(&self, request: &RequestFinished) {
        if let Some(preempted) = request.preempted {
            self.preempted.record(preempted.as_secs_f64(), request.link);
        }
    }
}

/// Reads one of the exporters' numbers.
type Read = fn(Totals) -> u64;

/// Shows the exporters' counts. `spans` + what is queued = sampled spans that ended.
pub(crate) fn observe_exporters(
    instruments: &Instruments,
    spans: &Arc<Counts>,
    data_points: &Arc<Counts>,
    log_records: &Arc<Counts>,
) {
    let observe = |row, attributes: &[(&'static str, &'static str)], counts: &Arc<Counts>, read: Read| {
        let counts = Arc::clone(counts);
        let attributes = attributes.iter().map(|&(key, value)| KeyValue::new(key, value)).collect();
        instruments.observe_counter(row, attributes, move || read(counts.totals()));
    };
    observe(&rows::SPANS, &[(key::RESULT, "exported")], spans, |totals| totals.exported);
    observe(&rows::SPANS, &[(key::RESULT, "failed")], spans, |totals| totals.failed);
    observe(&rows::SPANS, &[(key::RESULT, "dropped")], spans, |totals| totals.dropped);
    observe(&rows::DATA_POINTS, &[(key::RESULT, "exported")], data_points, |totals| totals.exported);
    observe(&rows::DATA_POINTS, &[(key::RESULT, "failed")], data_points, |totals| totals.failed);
    observe(&rows::LOG_RECORDS, &[(key::RESULT, "exported")], log_records, |totals| totals.exported);
    observe(&rows::LOG_RECORDS, &[(key::RESULT, "failed")], log_records, |totals| totals.failed);
    observe(&rows::LOG_RECORDS, &[(key::RESULT, "dropped")], log_records, |totals| totals.dropped);
    for (signal, counts) in [("traces", spans), ("metrics", data_points), ("logs", log_records)] {
        let signal = (key::SIGNAL, signal);
        observe(&rows::REQUESTS, &[signal, (key::RESULT, "ok")], counts, |totals| totals.requests_ok);
        observe(&rows::REQUESTS, &[signal, (key::RESULT, "failed")], counts, |totals| totals.requests_failed);
    }
    let queued = Arc::clone(spans);
    instruments.observe_gauge(&rows::SPAN_QUEUE_LENGTH, Vec::new(), move || queued.totals().pending as f64);
}
