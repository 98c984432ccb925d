//! Metrics as they were pushed, in the shape of a scrape, so that both ways out can be compared.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;

pub use opentelemetry_proto::tonic::metrics::v1::AggregationTemporality;

use crate::exposition::Labels;

/// What a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Gauge.
    Gauge,
    /// Sum that only rises.
    Counter,
    /// Sum that also falls.
    UpDownCounter,
    /// Histogram with explicit bounds.
    Histogram,
    /// Sum and count alone.
    Summary,
}

/// One point of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Point {
    /// Of a gauge or sum.
    Number(f64),
    /// Of a histogram, or of a summary, which has no buckets.
    Histogram {
        /// Upper bounds, `+Inf` left out.
        bounds: Vec<f64>,
        /// Counts per bucket, not cumulated; one more than bounds.
        counts: Vec<u64>,
        /// Sum of the values.
        sum: f64,
        /// Number of values.
        count: u64,
    },
}

/// One metric stream of one export.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Name on the wire.
    pub name: String,
    /// Unit on the wire.
    pub unit: String,
    /// Description on the wire.
    pub description: String,
    /// What it is.
    pub kind: StreamKind,
    /// Temporality; gauges have none.
    pub temporality: Option<AggregationTemporality>,
    /// Points by their attributes.
    pub points: BTreeMap<Labels, Point>,
    /// Start and end time of each point, in the same order as `points`.
    pub times: BTreeMap<Labels, (u64, u64)>,
}

/// The streams of one export, by name.
///
/// # Panics
/// If a name or a label set comes twice, or a stream has a kind that limpid does not use.
pub fn streams(request: &ExportMetricsServiceRequest) -> BTreeMap<String, Stream> {
    let mut streams = BTreeMap::new();
    let scopes = request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    for metric in scopes.flat_map(|scope| &scope.metrics) {
        let (kind, temporality, points) = match metric.data.as_ref().expect("a metric has data") {
            Data::Gauge(gauge) => (StreamKind::Gauge, None, numbers(&gauge.data_points)),
            Data::Sum(sum) => (
                if sum.is_monotonic { StreamKind::Counter } else { StreamKind::UpDownCounter },
                Some(sum.aggregation_temporality()),
                numbers(&sum.data_points),
            ),
            Data::Histogram(histogram) => {
                let points = histogram.data_points.iter().map(|point| {
                    let value = Point::Histogram {
                        bounds: point.explicit_bounds.clone(),
                        counts: point.bucket_counts.clone(),
                        sum: point.sum.unwrap_or_default(),
                        count: point.count,
                    };
                    (labels(&point.attributes), value, (point.start_time_unix_nano, point.time_unix_nano))
                });
                (StreamKind::Histogram, Some(histogram.aggregation_temporality()), points.collect())
            }
            Data::Summary(summary) => {
                let points = summary.data_points.iter().map(|point| {
                    let value = Point::Histogram {
                        bounds: Vec::new(),
                        counts: Vec::new(),
                        sum: point.sum,
                        count: point.count,
                    };
                    (labels(&point.attributes), value, (point.start_time_unix_nano, point.time_unix_nano))
                });
                (StreamKind::Summary, None, points.collect())
            }
            other => panic!("{} is {other:?}", metric.name),
        };
        let mut stream = Stream {
            name: metric.name.clone(),
            unit: metric.unit.clone(),
            description: metric.description.clone(),
            kind,
            temporality,
            points: BTreeMap::new(),
            times: BTreeMap::new(),
        };
        for (labels, point, times) in points {
            stream.times.insert(labels.clone(), times);
            let twice = stream.points.insert(labels, point);
            assert!(twice.is_none(), "{} has a label set twice in one export", metric.name);
        }
        assert!(streams.insert(metric.name.clone(), stream).is_none(), "{} comes twice", metric.name);
    }
    streams
}

type Points = Vec<(Labels, Point, (u64, u64))>;

fn numbers(points: &[opentelemetry_proto::tonic::metrics::v1::NumberDataPoint]) -> Points {
    points
        .iter()
        .map(|point| {
            let value = match point.value.expect("a point has a value") {
                number_data_point::Value::AsDouble(value) => value,
                number_data_point::Value::AsInt(value) => value as f64,
            };
            let times = (point.start_time_unix_nano, point.time_unix_nano);
            (labels(&point.attributes), Point::Number(value), times)
        })
        .collect()
}

fn labels(attributes: &[KeyValue]) -> Labels {
    attributes
        .iter()
        .map(|attribute| {
            let value = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(Value::StringValue(value)) => value.clone(),
                Some(Value::IntValue(value)) => value.to_string(),
                Some(Value::BoolValue(value)) => value.to_string(),
                Some(Value::DoubleValue(value)) => value.to_string(),
                other => panic!("attribute {} is {other:?}", attribute.key),
            };
            (attribute.key.clone(), value)
        })
        .collect()
}
