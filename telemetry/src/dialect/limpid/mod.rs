//! What no other dialect has: today, how the OTLP exporters themselves fare. The numbers belong to the
//! process, not to a model; [`crate::export`] counts them and [`observe_exporters`] shows them.

pub(crate) mod rows;

use std::sync::Arc;

use opentelemetry::KeyValue;

use crate::export::{Counts, Totals};
use crate::instruments::Instruments;
use crate::semconv::key;

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
