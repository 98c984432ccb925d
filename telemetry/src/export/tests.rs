//! Export against real sockets on the loopback address.

mod sink;
mod tls;

use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use self::sink::Sink;
use crate::config::TelemetrySettings;
use crate::fixtures::{Script, http, identity, resolve, sample};
use crate::observation::FinishReason;
use crate::pipeline::{ModelTelemetry, Telemetry};

const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];
const SOON: Duration = Duration::from_secs(20);

fn telemetry(endpoint: &str, protocol: &str, variables: &[(&str, &str)]) -> Telemetry {
    let mut all = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    ];
    all.extend_from_slice(variables);
    // The later of two wins.
    all.reverse();
    Telemetry::start(resolve(TelemetrySettings::default(), &all).unwrap(), Vec::new()).unwrap()
}

/// One finished request: five spans.
fn one_request(telemetry: &Telemetry, model: &ModelTelemetry) {
    let base = Instant::now();
    let span = http(telemetry, base, &::http::HeaderMap::new());
    let mut script = Script::new(model, Some(span.clone()), base);
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    span.responded(200, None);
}

const SPANS_PER_REQUEST: usize = 5;

fn counted(telemetry: &Telemetry, result: &str) -> u64 {
    let text = telemetry.render_metrics(None).body;
    sample(&text, &format!("limpid_otlp_exporter_spans_total{{result=\"{result}\"}}")).unwrap() as u64
}

fn queued(telemetry: &Telemetry) -> u64 {
    sample(&telemetry.render_metrics(None).body, "limpid_otlp_exporter_span_queue_length").unwrap() as u64
}

fn failed_requests(telemetry: &Telemetry) -> u64 {
    let text = telemetry.render_metrics(None).body;
    sample(&text, "limpid_otlp_exporter_requests_total{result=\"failed\",signal=\"traces\"}").unwrap() as u64
}

/// Waits for a condition on counters, which nobody announces.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn names(spans: &[Span]) -> Vec<&str> {
    let mut names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn both_protocols_deliver_both_signals_with_headers_and_gzip() {
    for protocol in PROTOCOLS {
        for gzip in ["none", "gzip"] {
            let sink = Sink::start(protocol).await;
            let telemetry = telemetry(
                &sink.endpoint,
                protocol,
                &[
                    ("OTEL_EXPORTER_OTLP_COMPRESSION", gzip),
                    ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue%20team"),
                ],
            );
            one_request(&telemetry, &telemetry.model(identity()));
            let spans = sink.spans(SPANS_PER_REQUEST).await;
            assert_eq!(
                names(&spans),
                ["POST /v1/chat/completions", "chat tiny", "decode", "prefill", "queue"],
                "{protocol} {gzip}"
            );
            sink.metrics(1).await;
            assert_eq!(telemetry.shutdown(Duration::from_secs(5)).await, Vec::<String>::new());
            for seen in sink.requests() {
                assert_eq!(seen.tenant.as_deref(), Some("blue team"), "{protocol}");
                assert_eq!(seen.encoding.as_deref().unwrap_or("none"), gzip, "{protocol}");
            }
        }
    }
}

#[tokio::test]
async fn a_current_thread_runtime_flushes_at_shutdown() {
    for protocol in PROTOCOLS {
        let sink = Sink::start(protocol).await;
        let telemetry = telemetry(&sink.endpoint, protocol, &[("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
        one_request(&telemetry, &telemetry.model(identity()));
        assert_eq!(telemetry.shutdown(Duration::from_secs(10)).await, Vec::<String>::new());
        assert_eq!(sink.spans(SPANS_PER_REQUEST).await.len(), SPANS_PER_REQUEST);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_values_equal_scraped_ones_and_carry_exemplars() {
    let sink = Sink::start("grpc").await;
    let telemetry = telemetry(&sink.endpoint, "grpc", &[("OTEL_METRIC_EXPORT_INTERVAL", "60000")]);
    let model = telemetry.model(identity());
    for _ in 0..3 {
        one_request(&telemetry, &model);
    }
    let text = telemetry.render_metrics(None).body;
    let spans = sink.spans(3 * SPANS_PER_REQUEST).await;
    telemetry.shutdown(Duration::from_secs(5)).await;
    let metrics = sink.metrics(1).await;
    let find = |name: &str| {
        let metric = metrics.iter().find(|metric| metric.name == name);
        metric.unwrap_or_else(|| panic!("{name} was not pushed"))
    };
    let tokens = find("vllm:generation_tokens_total");
    assert_eq!(tokens.unit, "");
    let Some(Data::Sum(sum)) = &tokens.data else { panic!("{:?}", tokens.data) };
    assert!(sum.is_monotonic);
    assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsInt(9)));
    assert_eq!(sample(&text, "vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"}"), Some(9.0));
    let first = find("vllm:time_to_first_token_seconds");
    let Some(Data::Histogram(histogram)) = &first.data else { panic!("{:?}", first.data) };
    let point = &histogram.data_points[0];
    assert_eq!(point.count, 3);
    assert_eq!(point.explicit_bounds[..3], [0.001, 0.005, 0.01]);
    let exemplar = &point.exemplars[0];
    let sampled = spans.iter().find(|span| span.span_id == exemplar.span_id).expect("the exemplar's span");
    assert_eq!(sampled.name, "chat tiny");
    assert_eq!(sampled.trace_id, exemplar.trace_id);
    for name in ["gen_ai.server.request.duration", "limpid.otlp.exporter.spans", "vllm:kv_cache_usage_perc"] {
        find(name);
    }
    assert_eq!(find("gen_ai.server.request.duration").unit, "s");
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_temporality_sends_deltas_that_add_up() {
    let sink = Sink::start("http/protobuf").await;
    let telemetry = telemetry(
        &sink.endpoint,
        "http/protobuf",
        &[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")],
    );
    let model = telemetry.model(identity());
    one_request(&telemetry, &model);
    sink.metrics(1).await;
    one_request(&telemetry, &model);
    let text = telemetry.render_metrics(None).body;
    telemetry.shutdown(Duration::from_secs(5)).await;
    let mut pushed = 0;
    let mut gauges = 0;
    for metric in sink.metrics(2).await {
        match &metric.data {
            Some(Data::Sum(sum)) if metric.name == "vllm:generation_tokens_total" => {
                assert_eq!(sum.aggregation_temporality, AggregationTemporality::Delta as i32);
                for point in &sum.data_points {
                    if let Some(number_data_point::Value::AsInt(value)) = point.value {
                        pushed += value;
                    }
                }
            }
            Some(Data::Gauge(gauge)) if metric.name == "vllm:num_requests_running" => {
                gauges += gauge.data_points.len();
            }
            _ => {}
        }
    }
    assert_eq!(pushed, 6);
    assert_eq!(sample(&text, "vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"}"), Some(6.0));
    assert!(gauges >= 2, "idle gauges are in every payload");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_starts_later_gets_everything() {
    for protocol in PROTOCOLS {
        let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = place.local_addr().unwrap();
        drop(place);
        let telemetry = telemetry(&format!("http://{address}"), protocol, &[]);
        let model = telemetry.model(identity());
        for _ in 0..5 {
            one_request(&telemetry, &model);
        }
        until("a refused connection", || failed_requests(&telemetry) > 0).await;
        assert_eq!(counted(&telemetry, "failed"), 0);
        let sink = Sink::start_at(protocol, TcpListener::bind(address).await.unwrap()).await;
        assert_eq!(sink.spans(5 * SPANS_PER_REQUEST).await.len(), 5 * SPANS_PER_REQUEST);
        until("the count", || counted(&telemetry, "exported") == 5 * SPANS_PER_REQUEST as u64).await;
        assert_eq!(queued(&telemetry), 0);
        telemetry.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_ends_shutdown_at_its_timeout_and_the_loss_is_told() {
    for protocol in PROTOCOLS {
        // Accepted by the system, answered by nobody.
        let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let telemetry = telemetry(&format!("http://{}", hole.local_addr().unwrap()), protocol, &[]);
        one_request(&telemetry, &telemetry.model(identity()));
        let started = Instant::now();
        let losses = telemetry.shutdown(Duration::from_millis(400)).await;
        let took = started.elapsed();
        assert!(took < Duration::from_millis(1_500), "{protocol}: {took:?}");
        assert!(losses[0].contains("5 spans lost"), "{protocol}: {losses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_does_not_hold_up_the_end() {
    for protocol in PROTOCOLS {
        let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", place.local_addr().unwrap());
        drop(place);
        let telemetry = telemetry(&endpoint, protocol, &[]);
        one_request(&telemetry, &telemetry.model(identity()));
        let started = Instant::now();
        let losses = telemetry.shutdown(Duration::from_secs(30)).await;
        assert!(started.elapsed() < Duration::from_secs(5), "{protocol}: {:?}", started.elapsed());
        assert!(losses[0].contains("5 spans lost"), "{losses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_drops_and_every_span_is_accounted_for() {
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", hole.local_addr().unwrap());
    let telemetry = telemetry(
        &endpoint,
        "http/protobuf",
        &[("OTEL_BSP_MAX_QUEUE_SIZE", "1"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")],
    );
    let model = telemetry.model(identity());
    for _ in 0..50 {
        one_request(&telemetry, &model);
    }
    let made = 50 * SPANS_PER_REQUEST as u64;
    let (exported, failed, dropped) =
        (counted(&telemetry, "exported"), counted(&telemetry, "failed"), counted(&telemetry, "dropped"));
    assert_eq!((exported, failed, dropped, queued(&telemetry)), (0, 0, made - 1, 1));
    let losses = telemetry.shutdown(Duration::from_millis(100)).await;
    assert!(losses[0].contains(&format!("{made} spans lost")), "{losses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_no_retry_can_mend_is_given_up_at_once() {
    let sink = Sink::start("http/protobuf").await;
    sink.answer(404);
    let telemetry = telemetry(&sink.endpoint, "http/protobuf", &[]);
    one_request(&telemetry, &telemetry.model(identity()));
    until("giving up", || counted(&telemetry, "failed") == SPANS_PER_REQUEST as u64).await;
    telemetry.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_collector_is_tried_again() {
    let sink = Sink::start("http/protobuf").await;
    sink.answer(503);
    let telemetry = telemetry(&sink.endpoint, "http/protobuf", &[]);
    one_request(&telemetry, &telemetry.model(identity()));
    until("a refusal", || failed_requests(&telemetry) > 0).await;
    sink.answer(200);
    until("delivery", || counted(&telemetry, "exported") == SPANS_PER_REQUEST as u64).await;
    assert_eq!(counted(&telemetry, "failed"), 0);
    telemetry.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_the_collector_refuses_are_not_called_exported() {
    for protocol in PROTOCOLS {
        let sink = Sink::start(protocol).await;
        sink.refuse(2);
        let telemetry = telemetry(&sink.endpoint, protocol, &[("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
        one_request(&telemetry, &telemetry.model(identity()));
        let losses = telemetry.shutdown(Duration::from_secs(5)).await;
        assert!(losses[0].contains("2 spans lost") && losses[0].contains("3 delivered"), "{losses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_at_an_http_port_is_noticed() {
    let sink = Sink::start("http/protobuf").await;
    let telemetry = telemetry(&sink.endpoint, "grpc", &[]);
    one_request(&telemetry, &telemetry.model(identity()));
    until("a failed request", || failed_requests(&telemetry) > 0).await;
    telemetry.shutdown(Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_endpoint_speaks_tls_first() {
    for protocol in PROTOCOLS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        let telemetry = telemetry(&endpoint, protocol, &[]);
        one_request(&telemetry, &telemetry.model(identity()));
        let (mut stream, _) = tokio::time::timeout(SOON, listener.accept()).await.unwrap().unwrap();
        let mut hello = [0u8; 2];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(hello, [0x16, 0x03], "{protocol}: a TLS ClientHello");
        drop((stream, listener));
        telemetry.shutdown(Duration::from_secs(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_counts_are_integers_and_the_resource_says_who_speaks() {
    let sink = Sink::start("http/protobuf").await;
    let telemetry = telemetry(&sink.endpoint, "http/protobuf", &[("OTEL_SERVICE_NAME", "edge")]);
    one_request(&telemetry, &telemetry.model(identity()));
    let spans = sink.spans(SPANS_PER_REQUEST).await;
    let model = spans.iter().find(|span| span.name == "chat tiny").unwrap();
    let value = |key: &str| {
        let attribute = model.attributes.iter().find(|attribute| attribute.key == key);
        attribute.and_then(|attribute| attribute.value.clone()).and_then(|value| value.value)
    };
    assert_eq!(value("gen_ai.usage.input_tokens"), Some(Value::IntValue(20)));
    assert!(matches!(value("gen_ai.response.finish_reasons"), Some(Value::ArrayValue(_))));
    assert!(matches!(value("gen_ai.latency.e2e"), Some(Value::DoubleValue(_))));
    assert_eq!(sink.service_names(), ["edge"]);
    telemetry.shutdown(Duration::from_secs(5)).await;
}
