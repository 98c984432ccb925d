//! What no other dialect has: today, how the OTLP exporters themselves fare. The numbers belong to the
//! process, not to a model; [`crate::export`] counts them and [`observe_exporters`] shows them.

pub(crate) mod rows;

use std::sync::Arc;

use opentelemetry::KeyValue;

use crate::export::Counts;
use crate::instruments::Instruments;
use crate::semconv::key;

/// Shows the exporters' counts. `spans` + what is queued = sampled spans that ended.
pub(crate) fn observe_exporters(instruments: &Instruments, spans: &Arc<Counts>, metrics: &Arc<Counts>) {
    let results = |counts: &Arc<Counts>| -> [(&'static str, Arc<Counts>, fn(&Counts) -> u64); 3] {
        [
            ("exported", Arc::clone(counts), Counts::exported),
            ("failed", Arc::clone(counts), Counts::failed),
            ("dropped", Arc::clone(counts), Counts::dropped),
        ]
    };
    for (result, counts, read) in results(spans) {
        instruments.observe_counter(&rows::SPANS, vec![KeyValue::new(key::RESULT, result)], move || read(&counts));
    }
    for (result, counts, read) in results(metrics).into_iter().take(2) {
        instruments.observe_counter(&rows::DATA_POINTS, vec![KeyValue::new(key::RESULT, result)], move || {
            read(&counts)
        });
    }
    for (signal, counts) in [("traces", spans), ("metrics", metrics)] {
        for (result, read) in
            [("ok", Counts::requests_ok as fn(&Counts) -> u64), ("failed", Counts::requests_failed)]
        {
            let counts = Arc::clone(counts);
            let attributes = vec![KeyValue::new(key::SIGNAL, signal), KeyValue::new(key::RESULT, result)];
            instruments.observe_counter(&rows::REQUESTS, attributes, move || read(&counts));
        }
    }
    let queued = Arc::clone(spans);
    instruments.observe_gauge(&rows::SPAN_QUEUE_LENGTH, Vec::new(), move || queued.pending() as f64);
}
