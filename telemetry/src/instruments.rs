//! Instruments made from catalogue rows, with their attributes bound once.
//!
//! Recording afterwards is an atomic addition: no look-up, no allocation, no attribute. A bound counter or
//! histogram exists at 0 from the moment it is made; a gauge is a number that is read when somebody collects,
//! so an idle one is reported as well, under delta temporality too. A row that is switched off gives a handle
//! that records nothing, so that dialects need not ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Meter};

use crate::catalogue::Row;
use crate::config::MetricsConfig;
use crate::exemplar::{ExemplarStore, SeriesExemplars, SpanLink};

/// Makes instruments. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Instruments {
    meter: Meter,
    exemplars: Arc<ExemplarStore>,
    config: Arc<MetricsConfig>,
}

/// A bound counter.
#[derive(Clone)]
pub(crate) struct Counter(Option<BoundCounter<u64>>);

impl Counter {
    pub(crate) fn add(&self, value: u64) {
        if let (Some(counter), true) = (&self.0, value > 0) {
            counter.add(value);
        }
    }
}

/// A bound histogram with its exemplars.
#[derive(Clone)]
pub(crate) struct Histogram(Option<BoundSeries>);

#[derive(Clone)]
struct BoundSeries {
    bound: BoundHistogram<f64>,
    exemplars: Arc<SeriesExemplars>,
}

impl Histogram {
    /// Records a value; with a link it becomes its bucket's exemplar.
    pub(crate) fn record(&self, value: f64, link: Option<SpanLink>) {
        let Some(series) = &self.0 else { return };
        series.bound.record(value);
        if let Some(link) = link {
            series.exemplars.record(value, link);
        }
    }
}

/// A gauge: the latest value set.
#[derive(Clone)]
pub(crate) struct Gauge(Arc<AtomicU64>);

impl Gauge {
    pub(crate) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl Instruments {
    pub(crate) fn new(
        meter: Meter,
        exemplars: Arc<ExemplarStore>,
        config: Arc<MetricsConfig>,
    ) -> Instruments {
        Instruments { meter, exemplars, config }
    }

    pub(crate) fn config(&self) -> &MetricsConfig {
        &self.config
    }

    pub(crate) fn counter(&self, row: &Row, attributes: Vec<KeyValue>) -> Counter {
        if !self.config.enabled(row) {
            return Counter(None);
        }
        let counter = self
            .meter
            .u64_counter(row.instrument)
            .with_unit(row.unit)
            .with_description(row.description)
            .build();
        Counter(Some(counter.bind(&attributes)))
    }

    /// A histogram, or a summary, which is one without bounds.
    pub(crate) fn histogram(&self, row: &Row, max_model_len: usize, attributes: Vec<KeyValue>) -> Histogram {
        if !self.config.enabled(row) {
            return Histogram(None);
        }
        let bounds = self.config.bounds(row, max_model_len);
        let histogram = self
            .meter
            .f64_histogram(row.instrument)
            .with_unit(row.unit)
            .with_description(row.description)
            .with_boundaries(bounds.clone())
            .build();
        Histogram(Some(BoundSeries {
            bound: histogram.bind(&attributes),
            exemplars: self.exemplars.series(row.wire_name(), &attributes, &bounds),
        }))
    }

    pub(crate) fn gauge(&self, row: &Row, attributes: Vec<KeyValue>) -> Gauge {
        let value = Arc::new(AtomicU64::new(0f64.to_bits()));
        let read = Arc::clone(&value);
        self.observe_gauge(row, attributes, move || f64::from_bits(read.load(Ordering::Relaxed)));
        Gauge(value)
    }

    /// A gauge whose value somebody else keeps.
    pub(crate) fn observe_gauge(
        &self,
        row: &Row,
        attributes: Vec<KeyValue>,
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        if self.config.enabled(row) {
            self.meter
                .f64_observable_gauge(row.instrument)
                .with_unit(row.unit)
                .with_description(row.description)
                .with_callback(move |observer| observer.observe(read(), &attributes))
                .build();
        }
    }

    /// A counter whose value somebody else keeps.
    pub(crate) fn observe_counter(
        &self,
        row: &Row,
        attributes: Vec<KeyValue>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        if self.config.enabled(row) {
            self.meter
                .u64_observable_counter(row.instrument)
                .with_unit(row.unit)
                .with_description(row.description)
                .with_callback(move |observer| observer.observe(read(), &attributes))
                .build();
        }
    }

    /// A counter of fractions whose value somebody else keeps.
    pub(crate) fn observe_float_counter(&self, row: &Row, read: impl Fn() -> f64 + Send + Sync + 'static) {
        if self.config.enabled(row) {
            self.meter
                .f64_observable_counter(row.instrument)
                .with_unit(row.unit)
                .with_description(row.description)
                .with_callback(move |observer| observer.observe(read(), &[]))
                .build();
        }
    }

    /// Several series of something that is added and taken away, kept by somebody else.
    pub(crate) fn observe_up_down(
        &self,
        row: &Row,
        read: impl Fn(&mut dyn FnMut(i64, &[KeyValue])) + Send + Sync + 'static,
    ) {
        if self.config.enabled(row) {
            self.meter
                .i64_observable_up_down_counter(row.instrument)
                .with_unit(row.unit)
                .with_description(row.description)
                .with_callback(move |observer| {
                    read(&mut |value, attributes| observer.observe(value, attributes));
                })
                .build();
        }
    }
}
