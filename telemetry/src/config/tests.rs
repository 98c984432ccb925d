use std::time::Duration;

use opentelemetry::Key;
use opentelemetry_sdk::metrics::Temporality;

use super::{DetailedTraces, Measure, Protocol, Push, TelemetryConfig, TelemetrySettings};
use crate::fixtures::resolve;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const HTTP: (&str, &str) = (PROTOCOL, "http/protobuf");

fn with(variables: &[(&str, &str)]) -> TelemetryConfig {
    resolve(TelemetrySettings::default(), variables).expect("settings")
}

fn flag(endpoint: &str) -> TelemetrySettings {
    TelemetrySettings { otlp_traces_endpoint: Some(endpoint.to_owned()), ..TelemetrySettings::default() }
}

fn endpoint(push: Option<&Push>) -> String {
    push.expect("on").endpoint.to_string()
}

fn refusal(settings: TelemetrySettings, variables: &[(&str, &str)]) -> String {
    resolve(settings, variables).expect_err("a wrong value").to_string()
}

#[test]
fn nothing_set_pushes_nothing() {
    let config = with(&[]);
    assert!(config.traces.is_none() && config.metrics.is_none() && !config.disabled);
    assert_eq!(config.metrics_interval, Duration::from_secs(60));
    assert_eq!(config.queue.max_queue_size, 2048);
}

#[test]
fn a_flag_wins_over_the_specific_variable_and_that_over_the_generic_one() {
    let variables = [(ENDPOINT, "http://generic:1"), (TRACES_ENDPOINT, "http://specific:2")];
    let config = resolve(flag("http://flag:3"), &variables).unwrap();
    assert_eq!(endpoint(config.traces.as_ref()), "http://flag:3/");
    assert_eq!(endpoint(config.metrics.as_ref()), "http://generic:1/");
    assert_eq!(endpoint(with(&variables).traces.as_ref()), "http://specific:2/");
}

#[test]
fn http_paths_are_appended_to_the_generic_endpoint_and_to_a_flag_without_one() {
    let config = with(&[HTTP, (ENDPOINT, "http://c:4318/base/")]);
    assert_eq!(endpoint(config.traces.as_ref()), "http://c:4318/base/v1/traces");
    assert_eq!(endpoint(config.metrics.as_ref()), "http://c:4318/base/v1/metrics");
    assert_eq!(
        endpoint(with(&[HTTP, (TRACES_ENDPOINT, "http://c:4318")]).traces.as_ref()),
        "http://c:4318/",
        "the signal's own variable is verbatim"
    );
    for (given, resolved) in [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("https://c/custom", "https://c/custom"),
    ] {
        assert_eq!(endpoint(resolve(flag(given), &[HTTP]).unwrap().traces.as_ref()), resolved);
    }
}

#[test]
fn a_grpc_endpoint_without_scheme_is_plain_text_unless_told_otherwise() {
    let insecure = "OTEL_EXPORTER_OTLP_TRACES_INSECURE";
    for (given, variables, resolved) in [
        ("collector:4317", &[][..], "http://collector:4317/"),
        ("grpc://collector:4317", &[], "http://collector:4317/"),
        ("https://collector:4317", &[], "https://collector:4317/"),
        ("[::1]:4317", &[], "http://[::1]:4317/"),
        ("collector:4317", &[(insecure, "false")], "https://collector:4317/"),
    ] {
        assert_eq!(endpoint(resolve(flag(given), variables).unwrap().traces.as_ref()), resolved);
    }
}

#[test]
fn the_exporter_variable_switches_variables_off_and_a_default_endpoint_on() {
    let off = [(ENDPOINT, "http://c:1"), ("OTEL_TRACES_EXPORTER", "none")];
    assert!(with(&off).traces.is_none());
    assert!(with(&off).metrics.is_some());
    assert!(resolve(flag("http://c:2"), &off).unwrap().traces.is_some(), "a flag wins");
    let on = with(&[HTTP, ("OTEL_METRICS_EXPORTER", "otlp")]);
    assert_eq!(endpoint(on.metrics.as_ref()), "http://localhost:4318/v1/metrics");
    assert!(with(&[("OTEL_SDK_DISABLED", "true"), (ENDPOINT, "http://c:1")]).traces.is_none());
}

#[test]
fn protocols_are_read_specific_first_and_others_are_refused_by_name() {
    let config = with(&[(ENDPOINT, "http://c:1"), HTTP, ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")]);
    assert_eq!(config.traces.unwrap().protocol, Protocol::HttpProtobuf);
    assert_eq!(config.metrics.unwrap().protocol, Protocol::Grpc);
    assert_eq!(
        refusal(TelemetrySettings::default(), &[(PROTOCOL, "http/json")]),
        "OTEL_EXPORTER_OTLP_PROTOCOL is http/json; allowed: grpc, http/protobuf"
    );
}

#[test]
fn wrong_values_are_refused_with_setting_found_and_allowed() {
    for (settings, variables, expected) in [
        (
            flag("not a url"),
            &[][..],
            "--otlp-traces-endpoint is \"not a url\"; allowed: for grpc: http://host:port",
        ),
        (flag("http://"), &[], "--otlp-traces-endpoint is"),
        (flag("http://c:99999"), &[], "--otlp-traces-endpoint is"),
        (flag("http://c:port"), &[], "--otlp-traces-endpoint is"),
        (flag("ftp://c"), &[], "--otlp-traces-endpoint is"),
        (flag(""), &[], "--otlp-traces-endpoint is \"\""),
        (flag("c:4318"), &[HTTP], "allowed: for http/protobuf: a URL such as http://host:4318/v1/traces"),
        (TelemetrySettings::default(), &[("OTEL_TRACES_SAMPLER", "xray")], "OTEL_TRACES_SAMPLER is xray"),
        (
            TelemetrySettings::default(),
            &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "1.5")],
            "OTEL_TRACES_SAMPLER_ARG is 1.5; allowed: a number from 0 to 1",
        ),
        (TelemetrySettings::default(), &[("OTEL_TRACES_EXPORTER", "zipkin")], "allowed: otlp, none"),
        (TelemetrySettings::default(), &[("OTEL_BSP_MAX_QUEUE_SIZE", "0")], "OTEL_BSP_MAX_QUEUE_SIZE is 0"),
        (
            TelemetrySettings::default(),
            &[("OTEL_BSP_MAX_QUEUE_SIZE", "8"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9")],
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 9; allowed: a whole number from 1 to 8",
        ),
        (
            TelemetrySettings::default(),
            &[("OTEL_METRIC_EXPORT_INTERVAL", "1s")],
            "OTEL_METRIC_EXPORT_INTERVAL is 1s",
        ),
        (
            TelemetrySettings::default(),
            &[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both")],
            "allowed: cumulative, delta, lowmemory",
        ),
        (TelemetrySettings::default(), &[("OTEL_RESOURCE_ATTRIBUTES", "a")], "entry 1 without '='"),
        (
            flag("http://c"),
            &[("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")],
            "OTEL_EXPORTER_OTLP_COMPRESSION is zstd; allowed: gzip, none",
        ),
    ] {
        let refusal = refusal(settings, variables);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn headers_are_decoded_and_their_values_shown_nowhere() {
    let config = with(&[
        (TRACES_ENDPOINT, "http://user:hunter2@c:1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "generic=no"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20s3cret, x-tenant=a"),
    ]);
    let push = config.traces.as_ref().unwrap();
    assert_eq!(push.headers[0].1.to_str().unwrap(), "Bearer s3cret");
    assert_eq!(push.headers.len(), 2);
    let shown = format!("{config:?} {}", push.shown_endpoint());
    assert!(!shown.contains("s3cret") && !shown.contains("hunter2"), "{shown}");
    let broken = refusal(
        TelemetrySettings::default(),
        &[(ENDPOINT, "http://c:1"), ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret%zz")],
    );
    assert!(broken.contains("authorization") && !broken.contains("s3cret"), "{broken}");
    let userinfo = refusal(flag("http://user:hunter2@c:port"), &[]);
    assert!(!userinfo.contains("hunter2"), "{userinfo}");
}

#[test]
fn every_process_has_an_instance_of_its_own_and_names_can_be_given() {
    let id = Key::from_static_str("service.instance.id");
    let name = Key::from_static_str("service.name");
    let (one, other) = (with(&[]).resource, with(&[]).resource);
    assert_ne!(one.get(&id), other.get(&id));
    assert_eq!(one.get(&name).unwrap().as_str(), "limpid");
    let given = with(&[
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,service.instance.id=pod%2D1,team=x"),
        ("OTEL_SERVICE_NAME", "b"),
    ])
    .resource;
    assert_eq!(given.get(&name).unwrap().as_str(), "b");
    assert_eq!(given.get(&id).unwrap().as_str(), "pod-1");
    assert_eq!(given.get(&Key::from_static_str("team")).unwrap().as_str(), "x");
}

#[test]
fn detail_is_what_was_asked_for_and_temporality_and_samplers_have_all_their_forms() {
    for (asked, measure) in [
        (vec![DetailedTraces::Model], Measure { forward: true, execute: false }),
        (vec![DetailedTraces::Worker], Measure { forward: false, execute: true }),
        (vec![DetailedTraces::All], Measure { forward: true, execute: true }),
        (vec![DetailedTraces::Model, DetailedTraces::Worker], Measure { forward: true, execute: true }),
        (vec![], Measure::default()),
    ] {
        let settings = TelemetrySettings { collect_detailed_traces: asked, ..TelemetrySettings::default() };
        assert_eq!(resolve(settings, &[]).unwrap().measure, measure);
    }
    let delta = with(&[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "DELTA")]);
    assert_eq!(delta.temporality, Temporality::Delta);
    for sampler in [
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ] {
        with(&[("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", "0.25")]);
    }
}

#[test]
fn logs_are_pushed_only_if_asked_for_by_name() {
    const LOGS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT";
    let generic = (ENDPOINT, "http://c:4318");
    assert!(with(&[generic]).logs.is_none());
    assert!(with(&[("OTEL_LOGS_EXPORTER", "none"), (LOGS_ENDPOINT, "http://l:1")]).logs.is_none());
    let asked = ("OTEL_LOGS_EXPORTER", "otlp");
    assert_eq!(endpoint(with(&[HTTP, generic, asked]).logs.as_ref()), "http://c:4318/v1/logs");
    assert_eq!(endpoint(with(&[asked]).logs.as_ref()), "http://localhost:4317/");
    assert_eq!(endpoint(with(&[generic, (LOGS_ENDPOINT, "http://l:1")]).logs.as_ref()), "http://l:1/");
    let flag = TelemetrySettings {
        otlp_logs_endpoint: Some("http://f:4318".to_owned()),
        ..TelemetrySettings::default()
    };
    let config = resolve(flag, &[HTTP]).unwrap();
    assert_eq!(endpoint(config.logs.as_ref()), "http://f:4318/v1/logs");
    assert!(config.traces.is_none());
    assert_eq!(config.log_queue.schedule_delay, Duration::from_secs(1));
}

#[test]
fn content_is_captured_by_the_standard_values_and_nothing_else() {
    const CAPTURE: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
    assert!(!with(&[]).captures_content);
    for (value, captures) in [("true", true), ("SPAN_ONLY", true), ("False", false), ("no_content", false)] {
        assert_eq!(with(&[(CAPTURE, value)]).captures_content, captures, "{value}");
    }
    let refused = refusal(TelemetrySettings::default(), &[(CAPTURE, "event_only")]);
    assert!(
        refused.starts_with("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is event_only"),
        "{refused}"
    );
}

#[test]
fn steps_are_traced_only_with_all_detail_and_by_a_share() {
    let ratio = |detail: &[DetailedTraces], ratio| {
        let settings = TelemetrySettings {
            collect_detailed_traces: detail.to_vec(),
            detailed_trace_step_ratio: ratio,
            ..TelemetrySettings::default()
        };
        resolve(settings, &[]).map(|config| config.step_trace_ratio)
    };
    assert_eq!(ratio(&[], Some(1.0)), Ok(0.0));
    assert_eq!(ratio(&[DetailedTraces::Model, DetailedTraces::Worker], Some(1.0)), Ok(0.0));
    assert_eq!(ratio(&[DetailedTraces::All], None), Ok(0.01));
    assert_eq!(ratio(&[DetailedTraces::All], Some(0.5)), Ok(0.5));
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert!(ratio(&[DetailedTraces::All], Some(wrong)).is_err(), "{wrong}");
    }
}
