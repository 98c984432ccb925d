//! Metrics to OTLP, with what the SDK does not have: exemplars, and times that rise when the system clock is set back.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue as ProtoKeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::metrics::v1::exemplar::Value as ExemplarValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar as ProtoExemplar, Histogram, HistogramDataPoint, Metric,
    NumberDataPoint, Summary, SummaryDataPoint,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;

use super::ExportRuntime;
use super::deliver::Delivery;
use super::signal::Metrics;
use crate::clock::RisingClock;
use crate::exemplar::{Exemplar, ExemplarStore};

/// Sends what the periodic reader collects. Answers Ok for the reason [`super::SpanExporter`] gives.
pub(crate) struct MetricsExporter {
    runtime: ExportRuntime,
    delivery: Delivery,
    temporality: Temporality,
    exemplars: Arc<ExemplarStore>,
    clock: Mutex<RisingClock>,
}

impl MetricsExporter {
    pub(crate) fn new(
        runtime: ExportRuntime,
        delivery: Delivery,
        temporality: Temporality,
        exemplars: Arc<ExemplarStore>,
    ) -> MetricsExporter {
        let clock = Mutex::new(RisingClock::start());
        MetricsExporter { runtime, delivery, temporality, exemplars, clock }
    }
}

impl PushMetricExporter for MetricsExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let mut message = ExportMetricsServiceRequest::from(metrics);
        let window = self.clock.lock().unwrap_or_else(PoisonError::into_inner).window();
        let points = complete(&mut message, Window::of(window), &self.exemplars);
        if points == 0 {
            return Ok(());
        }
        // The reader is the queue, and holds one collection.
        self.delivery.counts().enqueue(points, u64::MAX);
        let delivery = self.delivery.clone();
        let sent = match self.runtime.handle() {
            Some(handle) => {
                handle.spawn(async move { delivery.deliver::<Metrics>(message, points).await }).await.is_ok()
            }
            None => false,
        };
        if !sent {
            self.delivery.counts().gave_up(points);
        }
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        self.temporality
    }
}

/// What one collection is about, in nanoseconds since the epoch.
#[derive(Clone, Copy)]
struct Window {
    since: u64,
    until: u64,
}

impl Window {
    fn of((since, until): (SystemTime, SystemTime)) -> Window {
        Window { since: nanoseconds(since), until: nanoseconds(until) }
    }

    /// Replaces the SDK's times, which are the system clock's. The start of a cumulative stream stays.
    fn stamp(self, temporality: i32, start: &mut u64, time: &mut u64) {
        *time = self.until;
        if temporality == AggregationTemporality::Delta as i32 {
            *start = self.since;
        }
    }

    fn stamp_numbers(self, temporality: i32, points: &mut [NumberDataPoint]) -> usize {
        for point in &mut *points {
            self.stamp(temporality, &mut point.start_time_unix_nano, &mut point.time_unix_nano);
        }
        points.len()
    }
}

/// Stamps all points, adds exemplars to the histograms, and counts the points.
fn complete(message: &mut ExportMetricsServiceRequest, window: Window, exemplars: &ExemplarStore) -> u64 {
    let metrics = message
        .resource_metrics
        .iter_mut()
        .flat_map(|resource| &mut resource.scope_metrics)
        .flat_map(|scope| &mut scope.metrics);
    let mut points = 0;
    for Metric { name, data, .. } in metrics {
        points += match data {
            Some(Data::Gauge(gauge)) => {
                window.stamp_numbers(AggregationTemporality::Unspecified as i32, &mut gauge.data_points)
            }
            Some(Data::Sum(sum)) => window.stamp_numbers(sum.aggregation_temporality, &mut sum.data_points),
            Some(Data::Histogram(histogram)) => {
                let temporality = histogram.aggregation_temporality;
                for point in &mut histogram.data_points {
                    window.stamp(temporality, &mut point.start_time_unix_nano, &mut point.time_unix_nano);
                }
                let points = histogram.data_points.len();
                if is_summary(histogram) {
                    *data = Some(Data::Summary(to_summary(std::mem::take(histogram))));
                } else {
                    for point in &mut histogram.data_points {
                        add_exemplars(name, point, exemplars);
                    }
                }
                points
            }
            _ => 0,
        };
    }
    points as u64
}

/// A histogram without bounds is how the SDK keeps a sum and a count alone. As a histogram it would reach
/// Prometheus with a bucket that a scrape does not have. A summary is cumulative by definition.
fn is_summary(histogram: &Histogram) -> bool {
    histogram.aggregation_temporality == AggregationTemporality::Cumulative as i32
        && histogram.data_points.iter().all(|point| point.explicit_bounds.is_empty())
}

fn to_summary(histogram: Histogram) -> Summary {
    let points = histogram.data_points.into_iter().map(|point| SummaryDataPoint {
        attributes: point.attributes,
        start_time_unix_nano: point.start_time_unix_nano,
        time_unix_nano: point.time_unix_nano,
        count: point.count,
        sum: point.sum.unwrap_or_default(),
        quantile_values: Vec::new(),
        flags: point.flags,
    });
    Summary { data_points: points.collect() }
}

/// Those of the point's own time: with delta temporality an old exemplar belongs to an old point.
fn add_exemplars(stream: &str, point: &mut HistogramDataPoint, store: &ExemplarStore) {
    let Some(latest) = store.find(stream, |attributes| same(attributes, &point.attributes)) else { return };
    let since = point.start_time_unix_nano;
    point.exemplars = latest
        .into_iter()
        .flatten()
        .map(|exemplar| to_proto(&exemplar))
        .filter(|exemplar| exemplar.time_unix_nano >= since)
        .collect();
}

fn to_proto(exemplar: &Exemplar) -> ProtoExemplar {
    ProtoExemplar {
        filtered_attributes: Vec::new(),
        time_unix_nano: nanoseconds(exemplar.time),
        span_id: exemplar.link.span_id.to_bytes().to_vec(),
        trace_id: exemplar.link.trace_id.to_bytes().to_vec(),
        value: Some(ExemplarValue::AsDouble(exemplar.value)),
    }
}

/// Since the epoch.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// All our attributes are strings, but for status codes.
fn same(ours: &[KeyValue], sent: &[ProtoKeyValue]) -> bool {
    ours.len() == sent.len()
        && sent.iter().all(|sent| {
            let value = match sent.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(AnyValue::StringValue(value)) => value.as_str().into(),
                Some(AnyValue::IntValue(value)) => Cow::Owned(value.to_string()),
                _ => return false,
            };
            ours.iter().any(|ours| ours.key.as_str() == sent.key && ours.value.as_str() == value)
        })
}
