//! The push: the same as the scrape, cumulative or as deltas.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use limpid_telemetry::catalogue::rows;
use limpid_tests::environment::fake_time_library;
use limpid_tests::exposition::{Labels, Scrape};
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_metrics::{AggregationTemporality, Point, Stream, StreamKind, streams};
use limpid_tests::otlp_receiver::{Export, OtlpReceiver, Transport};
use limpid_tests::server::{Options, slow_model, tiny_model};
use limpid_tests::spans;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;

use crate::catalogue::SUCCESS;
use crate::{CHAT, SOON, chat, quick, scrape, scrape_until, sending_to};

/// A scrape's families in the shape of a push: points by labels, buckets not cumulated.
fn as_pushed(scrape: &Scrape, name: &str) -> BTreeMap<Labels, Point> {
    let family = scrape.family(name);
    if family.kind != "histogram" {
        let samples = family.samples.iter();
        return samples.map(|sample| (sample.labels.clone(), Point::Number(sample.value))).collect();
    }
    let series = scrape.histograms(name).into_iter().map(|(labels, histogram)| {
        let mut before = 0.0;
        let counts = histogram.buckets.iter().map(|(_, cumulative)| {
            let count = cumulative - before;
            before = *cumulative;
            count as u64
        });
        let counts = counts.collect();
        let bounds = histogram.buckets.iter().map(|(le, _)| le.parse::<f64>().unwrap());
        let bounds = bounds.filter(|bound| bound.is_finite()).collect();
        (labels, Point::Histogram { bounds, counts, sum: histogram.sum, count: histogram.count as u64 })
    });
    series.collect()
}

/// What was pushed is what is scraped: all of vLLM's names, types, help, labels and values, and the types of
/// everything.
pub(crate) fn check_push(gaps: &mut Gaps, pushed: &BTreeMap<String, Stream>, scraped: &Scrape) {
    let vllm = |name: &&String| name.starts_with("vllm:");
    let pushed_names: BTreeSet<&String> = pushed.keys().filter(vllm).collect();
    let scraped_names: BTreeSet<&String> = scraped.families.keys().filter(vllm).collect();
    gaps.equal("names", pushed_names.clone(), scraped_names);
    for name in pushed_names {
        let stream = &pushed[name];
        let Some(family) = scraped.families.get(name) else { continue };
        gaps.equal(format_args!("{name}'s type"), kind(stream), family.kind.as_str());
        gaps.equal(format_args!("{name}'s unit"), stream.unit.as_str(), "");
        gaps.equal(format_args!("{name}'s help"), stream.description.as_str(), family.help.as_str());
        gaps.equal(format_args!("{name}'s points"), &stream.points, &as_pushed(scraped, name));
        if stream.kind == StreamKind::Counter || stream.kind == StreamKind::Histogram {
            let temporality = Some(AggregationTemporality::Cumulative);
            gaps.equal(format_args!("{name}'s temporality"), stream.temporality, temporality);
        }
    }
    for (name, stream) in pushed {
        for point in stream.points.values() {
            if let Point::Histogram { bounds, .. } = point {
                let default = bounds.starts_with(&[0.0, 5.0, 10.0, 25.0]);
                gaps.expect(!default, format_args!("{name} has the SDK's default bounds"));
            }
        }
    }
    for row in rows() {
        let (Some(stream), Some(family)) =
            (pushed.get(row.wire_name()), scraped.families.get(&row.exposed_name()))
        else {
            continue;
        };
        gaps.equal(format_args!("{}'s type", row.wire_name()), kind(stream), family.kind.as_str());
    }
}

/// A stream's type as a scrape names it.
fn kind(stream: &Stream) -> &'static str {
    match stream.kind {
        StreamKind::Gauge | StreamKind::UpDownCounter => "gauge",
        StreamKind::Counter => "counter",
        StreamKind::Histogram => "histogram",
        StreamKind::Summary => "summary",
    }
}

#[tokio::test]
async fn pushed_and_scraped_are_the_same_names_types_labels_and_values() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport).start().await;
        for tokens in [1, 5, 9] {
            server.client().post(CHAT, &chat(tokens)).await;
        }
        scrape_until(server.client(), "three requests", |scrape| scrape.value(SUCCESS, &[]) == 3.0).await;
        let so_far = receiver.received().metrics.len();
        let pushed = receiver
            .wait_for("an export after the last request", SOON, |received| {
                received.metrics.get(so_far + 1).map(|export| streams(&export.message))
            })
            .await;
        let scraped = scrape(server.client()).await;

        let mut gaps = Gaps::default();
        check_push(&mut gaps, &pushed, &scraped);
        gaps.assert_none(format_args!("{transport:?}"));
    }
}

/// Points of one series rise in time; they have one start, or deltas follow each other without an overlap.
fn check_times(gaps: &mut Gaps, exports: &[Export<ExportMetricsServiceRequest>]) {
    let mut last: BTreeMap<(String, Labels), (u64, u64)> = BTreeMap::new();
    for export in exports {
        for (name, stream) in streams(&export.message) {
            let is_delta = stream.temporality == Some(AggregationTemporality::Delta);
            for (labels, (start, time)) in stream.times {
                let Some((first_start, before)) = last.insert((name.clone(), labels), (start, time)) else {
                    continue;
                };
                gaps.expect(time > before, format_args!("{name}: {time} after {before}"));
                if is_delta {
                    gaps.expect(start >= before, format_args!("{name} from {start}, was at {before}"));
                } else if stream.kind != StreamKind::Gauge {
                    gaps.equal(format_args!("{name}'s start"), start, first_start);
                }
            }
        }
    }
}

#[tokio::test]
async fn cumulative_exports_have_one_start_and_rising_times() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http).start().await;
    server.client().post(CHAT, &chat(4)).await;
    let exports = receiver
        .wait_for("twenty exports", Duration::from_secs(40), |received| {
            (received.metrics.len() >= 20).then(|| received.metrics.clone())
        })
        .await;
    let mut gaps = Gaps::default();
    check_times(&mut gaps, &exports);
    let instances: BTreeSet<String> = exports
        .iter()
        .flat_map(|export| &export.message.resource_metrics)
        .filter_map(|resource| {
            let attributes = &resource.resource.as_ref()?.attributes;
            spans::string(attributes, "service.instance.id").map(str::to_owned)
        })
        .collect();
    gaps.equal("service.instance.id", instances.len(), 1);
    gaps.assert_none("twenty exports of one server");
}

#[tokio::test]
async fn a_clock_set_back_by_an_hour_moves_no_point_back() {
    let Some(library) = fake_time_library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set_clock = |offset: &str| {
        let written = folder.path().join("written");
        std::fs::write(&written, offset).unwrap();
        std::fs::rename(&written, &clock).unwrap();
    };
    for temporality in ["cumulative", "delta"] {
        set_clock("+0");
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, Transport::Http)
            .env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality)
            .env("LD_PRELOAD", library.to_str().unwrap())
            .env("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .start()
            .await;
        let created = async || {
            let answer = server.client().post(CHAT, &chat(4)).await.json();
            answer["created"].as_u64().expect("a time")
        };
        let exports = async |count: usize| {
            receiver
                .wait_for("exports", SOON, |received| {
                    (received.metrics.len() >= count).then(|| received.metrics.clone())
                })
                .await
        };
        let before = created().await;
        exports(5).await;
        set_clock("-1h");
        let after = created().await;
        assert!(after + 3000 < before, "the server's clock was {before} and is {after}");
        let exports = exports(receiver.received().metrics.len() + 5).await;

        let mut gaps = Gaps::default();
        check_times(&mut gaps, &exports);
        gaps.assert_none(format_args!("{temporality}, {} exports", exports.len()));
    }
}

#[tokio::test]
async fn deltas_add_up_to_the_scraped_counters() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc)
        .env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
        .start()
        .await;
    for tokens in [3, 4, 5] {
        server.client().post(CHAT, &chat(tokens)).await;
        let exports = receiver.received().metrics.len();
        receiver
            .wait_for("one more export", SOON, |received| received.metrics.get(exports).map(|_| ()))
            .await;
    }
    let scraped =
        scrape_until(server.client(), "three requests", |scrape| scrape.value(SUCCESS, &[]) == 3.0).await;
    server.stop().await;
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut gaps = Gaps::default();
    for export in receiver.received().metrics {
        for (name, stream) in streams(&export.message) {
            if !name.starts_with("vllm:") || stream.kind == StreamKind::Gauge {
                continue;
            }
            let delta = Some(AggregationTemporality::Delta);
            gaps.equal(format_args!("{name}'s temporality"), stream.temporality, delta);
            for (key, value) in stream.points.values().filter_map(|point| match point {
                Point::Number(value) if name == "vllm:generation_tokens_total" => Some(("tokens", *value)),
                Point::Histogram { count, .. } if name == "vllm:e2e_request_latency_seconds" => {
                    Some(("requests", *count as f64))
                }
                _ => None,
            }) {
                *sums.entry(key).or_default() += value;
            }
        }
    }
    gaps.equal(
        "tokens",
        sums.get("tokens").copied(),
        Some(scraped.value("vllm:generation_tokens_total", &[])),
    );
    gaps.equal("tokens", sums.get("tokens").copied(), Some(12.0));
    gaps.equal("requests", sums.get("requests").copied(), Some(3.0));
    gaps.assert_none("sum of deltas = counter");
}

#[tokio::test]
async fn two_servers_describe_their_metrics_alike_and_themselves_apart() {
    let mut described = Vec::new();
    for options in [
        Options::new(&tiny_model()).arg("--served-model-name", "one"),
        Options::new(&slow_model())
            .arg("--served-model-name", "two")
            .arg("--block-size", "32")
            .arg("--max-model-len", "512"),
    ] {
        let receiver = OtlpReceiver::start().await;
        let server =
            quick(options).env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.grpc_endpoint()).start().await;
        let scraped = scrape(server.client()).await;
        let help: BTreeMap<String, String> =
            scraped.families.into_iter().map(|(name, family)| (name, family.help)).collect();
        let (pushed, instance) = receiver
            .wait_for("an export", SOON, |received| {
                let message = &received.metrics.first()?.message;
                let resource = message.resource_metrics.first()?.resource.as_ref()?;
                let instance = spans::string(&resource.attributes, "service.instance.id")?.to_owned();
                let descriptions: BTreeMap<String, String> =
                    streams(message).into_iter().map(|(name, stream)| (name, stream.description)).collect();
                Some((descriptions, instance))
            })
            .await;
        described.push((help, pushed, instance));
    }
    let (one, two) = (&described[0], &described[1]);
    assert_eq!(one.0, two.0, "HELP");
    assert_eq!(one.1, two.1, "descriptions");
    assert_ne!(one.2, two.2, "service.instance.id");
}

/// The bounds that the GenAI conventions list.
const GEN_AI: [(&str, &[f64]); 3] = [
    (
        "gen_ai.server.request.duration",
        &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92],
    ),
    (
        "gen_ai.server.time_per_output_token",
        &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
    ),
    (
        "gen_ai.server.time_to_first_token",
        &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0],
    ),
];

#[tokio::test]
async fn gen_ai_histograms_have_the_conventions_bounds_provider_and_unit() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).start().await;
    server.client().post(CHAT, &chat(4)).await;
    let pushed = receiver
        .wait_for("an export of the request", SOON, |received| {
            let pushed = streams(&received.metrics.last()?.message);
            let counted = pushed[GEN_AI[0].0]
                .points
                .values()
                .any(|point| matches!(point, Point::Histogram { count: 1, .. }));
            counted.then_some(pushed)
        })
        .await;
    let mut gaps = Gaps::default();
    for (name, wanted) in GEN_AI {
        let Some(stream) = gaps.some(name, pushed.get(name)) else { continue };
        gaps.equal(format_args!("{name}'s unit"), stream.unit.as_str(), "s");
        for (labels, point) in &stream.points {
            let provider = labels.get("gen_ai.provider.name").map(String::as_str);
            gaps.equal(format_args!("{name}'s provider"), provider, Some("limpid"));
            gaps.expect(!labels.contains_key("gen_ai.system"), format_args!("{name} has the old key"));
            match point {
                Point::Histogram { bounds, .. } => {
                    gaps.equal(format_args!("{name}'s bounds"), &bounds[..], wanted)
                }
                Point::Number(_) => gaps.note(format_args!("{name} is no histogram")),
            }
        }
    }
    gaps.assert_none("the GenAI conventions' metrics");
}
