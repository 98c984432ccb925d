//! Exemplars: the way from a histogram bucket to a trace.
//!
//! The SDK has the type and never fills it, so this store keeps, for every bucket of every histogram series,
//! the latest measurement that was made inside a sampled span. The text of `/metrics` and the OTLP payload
//! both look it up by stream name and attributes. Memory is fixed once the series exist.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Instant, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, TraceId};

use crate::clock::Anchor;

/// The sampled span a measurement was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanLink {
    pub(crate) trace_id: TraceId,
    pub(crate) span_id: SpanId,
}

/// A measurement worth following.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exemplar {
    pub(crate) value: f64,
    pub(crate) link: SpanLink,
    pub(crate) time: SystemTime,
}

/// The exemplars of one histogram series, bucket by bucket, `+Inf` last.
#[derive(Debug)]
pub(crate) struct SeriesExemplars {
    attributes: Vec<KeyValue>,
    bounds: Vec<f64>,
    latest: Mutex<Vec<Option<Exemplar>>>,
    anchor: Anchor,
}

impl SeriesExemplars {
    /// Keeps the measurement as its bucket's latest.
    pub(crate) fn record(&self, value: f64, link: SpanLink) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        let exemplar = Exemplar { value, link, time: self.anchor.wall(Instant::now()) };
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)[bucket] = Some(exemplar);
    }

    /// The latest exemplar of every bucket.
    pub(crate) fn latest(&self) -> Vec<Option<Exemplar>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// All series that keep exemplars.
#[derive(Debug)]
pub(crate) struct ExemplarStore {
    anchor: Anchor,
    series: RwLock<HashMap<&'static str, Vec<Arc<SeriesExemplars>>>>,
}

impl ExemplarStore {
    pub(crate) fn new(anchor: Anchor) -> ExemplarStore {
        ExemplarStore { anchor, series: RwLock::default() }
    }

    /// The series of a stream with these attributes, made if it is new.
    pub(crate) fn series(
        &self,
        stream: &'static str,
        attributes: &[KeyValue],
        bounds: &[f64],
    ) -> Arc<SeriesExemplars> {
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let of_stream = all.entry(stream).or_default();
        if let Some(known) = of_stream.iter().find(|series| same(&series.attributes, attributes)) {
            return Arc::clone(known);
        }
        let series = Arc::new(SeriesExemplars {
            attributes: attributes.to_vec(),
            bounds: bounds.to_vec(),
            latest: Mutex::new(vec![None; bounds.len() + 1]),
            anchor: self.anchor,
        });
        of_stream.push(Arc::clone(&series));
        series
    }

    /// Bounds of a stream's series without attributes; `None` if there is none.
    pub(crate) fn bounds_without_attributes(&self, stream: &str) -> Option<Vec<f64>> {
        let all = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let series = all.get(stream)?.iter().find(|series| series.attributes.is_empty())?;
        Some(series.bounds.clone())
    }

    /// The exemplars of a series by what an exporter sees of it; `None` if it keeps none.
    pub(crate) fn find(
        &self,
        stream: &str,
        same_series: impl Fn(&[KeyValue]) -> bool,
    ) -> Option<Vec<Option<Exemplar>>> {
        let all = self.series.read().unwrap_or_else(PoisonError::into_inner);
        all.get(stream)?.iter().find(|series| same_series(&series.attributes)).map(|series| series.latest())
    }
}

/// Whether two attribute lists are the same set.
pub(crate) fn same(one: &[KeyValue], other: &[KeyValue]) -> bool {
    one.len() == other.len() && one.iter().all(|attribute| other.contains(attribute))
}

#[cfg(test)]
mod tests {
    use opentelemetry::KeyValue;
    use opentelemetry::trace::{SpanId, TraceId};

    use super::{Anchor, ExemplarStore, SpanLink, same};

    fn link(id: u64) -> SpanLink {
        SpanLink { trace_id: TraceId::from(u128::from(id)), span_id: SpanId::from(id) }
    }

    #[test]
    fn every_bucket_keeps_its_latest_measurement_with_the_bound_inclusive() {
        let store = ExemplarStore::new(Anchor::now());
        let attributes = [KeyValue::new("a", "1"), KeyValue::new("b", "2")];
        let series = store.series("s", &attributes, &[0.1, 1.0]);
        series.record(0.05, link(1));
        series.record(0.1, link(2));
        series.record(5.0, link(3));
        let reversed = [KeyValue::new("b", "2"), KeyValue::new("a", "1")];
        let latest = store.find("s", |attributes| same(attributes, &reversed)).unwrap();
        assert_eq!(latest[0].unwrap().link, link(2));
        assert!(latest[1].is_none());
        assert_eq!(latest[2].unwrap().link, link(3));
        assert!(store.find("t", |_| true).is_none());
    }

    #[test]
    fn the_same_series_asked_for_twice_is_one_series() {
        let store = ExemplarStore::new(Anchor::now());
        store.series("s", &[KeyValue::new("a", "1")], &[1.0]).record(0.5, link(7));
        let again = store.series("s", &[KeyValue::new("a", "1")], &[1.0]);
        assert_eq!(again.latest()[0].unwrap().link, link(7));
    }
}
