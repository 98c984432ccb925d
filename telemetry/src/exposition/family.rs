//! From the SDK's streams to families of series, in a stable order.

use std::borrow::Cow;

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};

use super::text::label_text;
use crate::catalogue::{self, Kind};
use crate::exemplar::{Exemplar, ExemplarStore};

/// Series of one name.
pub(super) struct Family {
    /// With `_total` if it is a counter.
    pub(super) name: String,
    pub(super) kind: FamilyKind,
    pub(super) help: String,
    pub(super) series: Vec<Series>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

pub(super) struct Series {
    /// As they are written, sorted by name.
    pub(super) labels: String,
    pub(super) value: SeriesValue,
}

pub(super) enum SeriesValue {
    Number(f64),
    Histogram {
        bounds: Vec<f64>,
        /// Per bucket, not cumulative; one more than bounds, or none without bounds.
        counts: Vec<u64>,
        /// Samples in all.
        count: u64,
        sum: f64,
        /// Empty, or one for each bucket.
        exemplars: Vec<Option<Exemplar>>,
    },
}

/// All families of a collection, by name. A stream of a kind that no instrument of ours has is left out.
pub(super) fn families(
    metrics: &ResourceMetrics,
    exemplars: &ExemplarStore,
    with_exemplars: bool,
) -> Vec<Family> {
    let store = exemplars;
    let exemplars = with_exemplars.then_some(exemplars);
    let mut families: Vec<Family> = metrics
        .scope_metrics()
        .flat_map(|scope| scope.metrics())
        .filter_map(|metric| match metric.data() {
            AggregatedMetrics::F64(data) => family(metric, data, |value| value, exemplars),
            AggregatedMetrics::U64(data) => family(metric, data, |value| value as f64, exemplars),
            AggregatedMetrics::I64(data) => family(metric, data, |value| value as f64, exemplars),
        })
        .collect();
    add_unrecorded(&mut families, store);
    families.sort_by(|one, other| one.name.cmp(&other.name));
    families
}

/// The SDK shows a bound series at 0 only if it has attributes. A histogram without any is added here.
fn add_unrecorded(families: &mut Vec<Family>, store: &ExemplarStore) {
    let rows =
        catalogue::rows().filter(|row| row.labels.is_empty() && matches!(row.kind, Kind::Histogram(_)));
    for row in rows {
        let name = row.exposed_name();
        let Some(bounds) = store.bounds_without_attributes(row.wire_name()) else { continue };
        if families.iter().all(|family| family.name != name) {
            let counts = vec![0; bounds.len() + 1];
            let value = SeriesValue::Histogram { bounds, counts, count: 0, sum: 0.0, exemplars: Vec::new() };
            families.push(Family {
                name,
                kind: FamilyKind::Histogram,
                help: row.description.to_owned(),
                series: vec![Series { labels: String::new(), value }],
            });
        }
    }
}

fn family<T: Copy>(
    metric: &Metric,
    data: &MetricData<T>,
    number: impl Fn(T) -> f64,
    exemplars: Option<&ExemplarStore>,
) -> Option<Family> {
    let (kind, mut series) = match data {
        MetricData::Gauge(gauge) => {
            let series = gauge.data_points().map(|point| Series {
                labels: labels(point.attributes()),
                value: SeriesValue::Number(number(point.value())),
            });
            (FamilyKind::Gauge, series.collect::<Vec<_>>())
        }
        MetricData::Sum(sum) => {
            let series = sum.data_points().map(|point| Series {
                labels: labels(point.attributes()),
                value: SeriesValue::Number(number(point.value())),
            });
            let kind = if sum.is_monotonic() { FamilyKind::Counter } else { FamilyKind::Gauge };
            (kind, series.collect())
        }
        MetricData::Histogram(histogram) => {
            let series = histogram.data_points().map(|point| Series {
                labels: labels(point.attributes()),
                value: SeriesValue::Histogram {
                    bounds: point.bounds().collect(),
                    counts: point.bucket_counts().collect(),
                    count: point.count(),
                    sum: number(point.sum()),
                    exemplars: exemplars
                        .and_then(|store| {
                            store.find(metric.name(), |attributes| {
                                attributes.len() == point.attributes().count()
                                    && point.attributes().all(|attribute| attributes.contains(attribute))
                            })
                        })
                        .unwrap_or_default(),
                },
            });
            // A histogram without bounds is how a summary comes: sum and count alone.
            let summary = histogram.data_points().all(|point| point.bounds().next().is_none());
            (if summary { FamilyKind::Summary } else { FamilyKind::Histogram }, series.collect())
        }
        MetricData::ExponentialHistogram(_) => return None,
    };
    series.sort_by(|one, other| one.labels.cmp(&other.labels));
    let name = prometheus_name(metric.name(), metric.unit(), kind == FamilyKind::Counter);
    Some(Family { name, kind, help: metric.description().to_owned(), series })
}

fn labels<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut labels: Vec<(Cow<'_, str>, Cow<'_, str>)> =
        attributes.map(|attribute| (label_name(attribute.key.as_str()), attribute.value.as_str())).collect();
    labels.sort();
    label_text(labels.iter().map(|(name, value)| (&**name, &**value)))
}

fn label_name(key: &str) -> Cow<'_, str> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts_with_digit = key.starts_with(|c: char| c.is_ascii_digit());
    if !starts_with_digit && key.chars().all(is_legal) {
        return key.into();
    }
    let mut name: String = key.chars().map(|c| if is_legal(c) { c } else { '_' }).collect();
    if starts_with_digit {
        name.insert_str(0, "key_");
    }
    name.into()
}

/// The Prometheus name of a stream, by the rules of Prometheus' and the collector's default translation:
/// words are split at everything but letters, digits and `:`, the unit's word is appended if no word says it
/// yet, and a counter ends in one `total`. A name that is final already (a `vllm:` one, without unit) is only
/// checked, because a histogram may rightly end in `_total`.
pub(crate) fn prometheus_name(stream: &str, unit: &str, counter: bool) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == ':';
    let mut words: Vec<Cow<'_, str>> =
        stream.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(Cow::from).collect();
    let unit = match unit {
        "s" => "seconds",
        "ms" => "milliseconds",
        "By" => "bytes",
        "1" if !counter => "ratio",
        "" | "1" => "",
        annotation if annotation.starts_with('{') => "",
        other => other,
    };
    if !unit.is_empty() && !words.iter().any(|word| word == unit) {
        words.push(unit.into());
    }
    if counter {
        words.retain(|word| word != "total");
        words.push("total".into());
    }
    let mut name = words.join("_");
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{label_name, prometheus_name};

    #[test]
    fn names_come_out_as_the_collectors_default_translation_makes_them() {
        for (stream, unit, counter, expected) in [
            ("vllm:prompt_tokens_total", "", true, "vllm:prompt_tokens_total"),
            ("vllm:time_to_first_token_seconds", "", false, "vllm:time_to_first_token_seconds"),
            ("vllm:iteration_tokens_total", "", false, "vllm:iteration_tokens_total"),
            ("vllm:kv_cache_usage_perc", "", false, "vllm:kv_cache_usage_perc"),
            ("gen_ai.server.time_to_first_token", "s", false, "gen_ai_server_time_to_first_token_seconds"),
            ("gen_ai.server.request.duration", "s", false, "gen_ai_server_request_duration_seconds"),
            ("limpid.otlp.exporter.spans", "{span}", true, "limpid_otlp_exporter_spans_total"),
            ("a.b/c", "By", false, "a_b_c_bytes"),
        ] {
            assert_eq!(prometheus_name(stream, unit, counter), expected);
        }
    }

    #[test]
    fn label_names_are_made_legal() {
        assert_eq!(label_name("gen_ai.request.model"), "gen_ai_request_model");
        assert_eq!(label_name("_block_size_resolved"), "_block_size_resolved");
        assert_eq!(label_name("9lives"), "key_9lives");
    }
}
