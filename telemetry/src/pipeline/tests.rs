//! Observations in, `/metrics` out.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{ModelIdentity, Telemetry};
use crate::catalogue::{self, Condition, Kind, Values};
use crate::config::{DetailedTraces, TelemetrySettings};
use crate::fixtures::{Script, detailed, http, identity, in_memory, resolve, sample, started, step};
use crate::observation::{FinishReason, RequestEventKind as Event};
use crate::request::{RequestOutcome, RequestProgress};

const OPEN_METRICS: Option<&str> = Some("application/openmetrics-text; version=1.0.0");

fn scraped_only() -> Telemetry {
    Telemetry::start(resolve(TelemetrySettings::default(), &[]).unwrap(), Vec::new()).unwrap()
}

/// Value of a `vllm:` series with the usual labels.
fn vllm(text: &str, name: &str) -> f64 {
    let series = format!("vllm:{name}{{engine=\"0\",model_name=\"tiny\"}}");
    sample(text, &series).unwrap_or_else(|| panic!("no {series}"))
}

fn finished(text: &str, reason: &str) -> f64 {
    let series = format!(
        "vllm:request_success_total{{engine=\"0\",finished_reason=\"{reason}\",model_name=\"tiny\"}}"
    );
    sample(text, &series).unwrap_or_else(|| panic!("no {series}"))
}

#[test]
fn the_first_scrape_has_every_family_and_every_known_series_at_zero() {
    let telemetry = scraped_only();
    telemetry.model(identity());
    let text = telemetry.render_metrics(None).body;
    for row in catalogue::rows() {
        let name = row.exposed_name();
        let exists = text.contains(&format!("# TYPE {name} "));
        assert_eq!(exists, row.condition == Condition::Always, "{name}");
        if !exists {
            continue;
        }
        let suffix = if matches!(row.kind, Kind::Histogram(_)) { "_count" } else { "" };
        let lines = text.lines().filter(|line| {
            line.strip_prefix(&format!("{name}{suffix}")).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let lines: Vec<&str> = lines.collect();
        let known = row
            .labels
            .iter()
            .map(|label| match label.values {
                Values::Closed(values) => values.len(),
                _ => 1,
            })
            .product::<usize>();
        assert_eq!(lines.len(), known, "{name}: {lines:?}");
        let constant = if name == "vllm:cache_config_info" { " 1.0" } else { " 0.0" };
        assert!(lines.iter().all(|line| line.ends_with(constant)), "{lines:?}");
        for label in row.labels {
            let exposed = label.name.replace('.', "_");
            let has = lines.iter().all(|line| line.contains(&format!("{exposed}=\"")));
            assert!(has || label.values == Values::ErrorKind, "{name} without {exposed}");
        }
    }
    assert!(!text.contains("otel_scope") && !text.contains("target_info") && !text.contains("_created"));
    assert!(text.contains("block_size=\"16\"") && text.contains("sliding_window=\"None\""));
}

#[test]
fn detailed_histograms_exist_only_when_asked_for() {
    let (telemetry, _) = in_memory(detailed(), &[]);
    let mut script = Script::new(&telemetry.model(identity()), None, Instant::now());
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    let text = telemetry.render_metrics(None).body;
    assert_eq!(sample(&text, "vllm:model_forward_time_milliseconds_sum{model_name=\"tiny\"}"), Some(6.0));
    assert_eq!(sample(&text, "vllm:model_execute_time_milliseconds_sum{model_name=\"tiny\"}"), Some(9.0));
}

#[test]
fn detailed_traces_that_nobody_would_see_are_refused() {
    let asked = || TelemetrySettings {
        collect_detailed_traces: vec![DetailedTraces::Model],
        ..TelemetrySettings::default()
    };
    let refusal = Telemetry::start(resolve(asked(), &[]).unwrap(), Vec::new()).err().unwrap();
    assert!(refusal.to_string().starts_with("--collect-detailed-traces is set without a traces endpoint"));
    let (_telemetry, _) = in_memory(asked(), &[]);
    let disabled = resolve(asked(), &[("OTEL_SDK_DISABLED", "true")]).unwrap();
    let telemetry = Telemetry::start(disabled, Vec::new()).unwrap();
    assert!(telemetry.describe()[0].contains("OTEL_SDK_DISABLED"));
}

#[test]
fn choices_of_one_request_are_requests_of_their_own_and_observed_together_at_the_last_ones_end() {
    let telemetry = scraped_only();
    let model = telemetry.model(identity());
    let now = Instant::now();
    let mut started = started(now);
    started.params.n = Some(3);
    let mut guards = model.choices(None, started, 3);
    let value = |name: &str| vllm(&telemetry.render_metrics(None).body, name);
    for (index, mut guard) in guards.drain(..).enumerate() {
        assert_eq!(value("request_params_n_count"), 0.0, "{index} of 3 ended");
        guard.progress(RequestProgress {
            new_tokens_at: now,
            now,
            events: &[],
            num_new_tokens: [2, 9, 1][index],
            times: Default::default(),
        });
        // The last one is left to its own drop.
        if index < 2 {
            guard.finish(RequestOutcome { now, reason: FinishReason::Stop, error_type: None });
        }
    }
    for (name, expected) in [
        ("request_params_n_count", 1.0),
        ("request_params_n_sum", 3.0),
        ("request_max_num_generation_tokens_count", 1.0),
        ("request_max_num_generation_tokens_sum", 9.0),
        ("request_generation_tokens_count", 3.0),
        ("request_generation_tokens_sum", 12.0),
        ("request_prompt_tokens_sum", 60.0),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    assert_eq!(finished(&telemetry.render_metrics(None).body, "abort"), 1.0);
}

#[test]
fn a_step_sets_gauges_and_adds_to_counters() {
    let telemetry = scraped_only();
    let model = telemetry.model(identity());
    model.step_finished(&step(Instant::now()));
    let text = telemetry.render_metrics(None).body;
    for (name, value) in [
        ("num_requests_running", 3.0),
        ("num_requests_waiting", 3.0),
        ("kv_cache_usage_perc", 0.25),
        ("num_preemptions_total", 1.0),
        ("prefix_cache_queries_total", 20.0),
        ("prefix_cache_hits_total", 16.0),
        ("iteration_tokens_total_sum", 7.0),
        ("iteration_tokens_total_count", 1.0),
    ] {
        assert_eq!(vllm(&text, name), value, "{name}");
    }
    let by_reason =
        "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"}";
    assert_eq!(sample(&text, by_reason), Some(2.0));
}

#[test]
fn bucket_bounds_read_as_floats_in_both_formats() {
    let telemetry = scraped_only();
    telemetry.model(identity());
    for accept in [None, OPEN_METRICS] {
        let text = telemetry.render_metrics(accept).body;
        for bound in ["0.001", "1.0", "2.5", "10.0", "2560.0", "+Inf"] {
            let series = format!(
                "vllm:time_to_first_token_seconds_bucket{{engine=\"0\",model_name=\"tiny\",le=\"{bound}\"}}"
            );
            assert_eq!(sample(&text, &series), Some(0.0), "{series}");
        }
    }
}

#[test]
fn open_metrics_is_sent_as_asked_and_carries_the_sampled_trace() {
    let (telemetry, exporter) = in_memory(TelemetrySettings::default(), &[]);
    let base = Instant::now();
    let span = http(&telemetry, base, &http::HeaderMap::new());
    let mut script = Script::new(&telemetry.model(identity()), Some(span), base);
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    let spans = exporter.get_finished_spans().unwrap();
    let model = spans.iter().find(|span| span.name == "chat tiny").unwrap();
    let exemplar = format!(
        " # {{trace_id=\"{}\",span_id=\"{}\"}} 0.03 ",
        model.span_context.trace_id(),
        model.span_context.span_id()
    );
    let answer = telemetry.render_metrics(OPEN_METRICS);
    assert!(answer.content_type.starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(answer.body.ends_with("# EOF\n"));
    let bucket = answer
        .body
        .lines()
        .find(|line| {
            line.starts_with("vllm:time_to_first_token_seconds_bucket") && line.contains("le=\"0.04\"")
        })
        .unwrap();
    assert!(bucket.contains(&exemplar), "{bucket}");
    let old = telemetry.render_metrics(None);
    assert_eq!(old.content_type, "text/plain; version=0.0.4; charset=utf-8");
    assert!(!old.body.contains("trace_id") && !old.body.contains("# EOF"));
}

#[test]
fn a_hostile_model_name_breaks_no_line() {
    let telemetry = scraped_only();
    let model_name = "a\"b\\c\nd} 1\n# EOF".to_owned();
    telemetry.model(ModelIdentity { model_name, ..identity() });
    let text = telemetry.render_metrics(None).body;
    assert!(text.lines().all(|line| line.starts_with("# HELP ")
        || line.starts_with("# TYPE ")
        || line.rsplit(' ').next().unwrap().parse::<f64>().is_ok()));
    assert!(text.contains("model_name=\"a\\\"b\\\\c\\nd} 1\\n# EOF\""));
}

#[test]
fn varied_requests_make_no_new_series() {
    let telemetry = scraped_only();
    let model = telemetry.model(identity());
    let series = |telemetry: &Telemetry| -> Vec<String> {
        let text = telemetry.render_metrics(None).body;
        text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    let run = |reason| {
        let mut script = Script::new(&model, None, Instant::now());
        script.three_tokens();
        script.finish(51, reason, None);
    };
    run(FinishReason::Error);
    let before = series(&telemetry);
    for index in 0..200 {
        run(FinishReason::ALL[index % 5]);
    }
    assert_eq!(series(&telemetry), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever mix of ends: counts equal counts and sums equal sums.
    #[test]
    fn the_books_balance(mix in prop::collection::vec((0u8..4, 0u64..6, 0usize..6, 0u32..30), 0..40)) {
        let telemetry = scraped_only();
        let model = telemetry.model(identity());
        for (reached, tokens, end, cached) in &mix {
            let mut script = Script::new(&model, None, Instant::now());
            if *reached > 0 {
                script.step(2, &[(1, Event::Queued)], 0);
            }
            if *reached > 1 {
                let events =
                    [(5, Event::Scheduled { num_cached_tokens: *cached }), (9, Event::PrefillChunk { num_tokens: 3 })];
                script.step(9, &events, 0);
            }
            if *reached > 2 {
                for index in 0..*tokens {
                    script.step(10 + index, &[], 1 + index % 2);
                }
            }
            match FinishReason::ALL.get(*end) {
                Some(&reason) => script.finish(30, reason, None),
                None => drop(script),
            }
        }
        let text = telemetry.render_metrics(None).body;
        let ended: f64 = FinishReason::ALL.iter().map(|reason| finished(&text, reason.as_str())).sum();
        prop_assert_eq!(ended, mix.len() as f64);
        for histogram in [
            "e2e_request_latency_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
            "request_params_max_tokens",
            "request_params_n",
            "request_num_preemptions",
            "request_prefill_kv_computed_tokens",
        ] {
            prop_assert_eq!(vllm(&text, &format!("{histogram}_count")), ended, "{}", histogram);
        }
        let prompt_tokens = vllm(&text, "prompt_tokens_total");
        prop_assert_eq!(prompt_tokens, vllm(&text, "request_prompt_tokens_sum"));
        let by_source: f64 = ["local_compute", "local_cache_hit", "external_kv_transfer"]
            .iter()
            .map(|source| {
                let labels = format!("engine=\"0\",model_name=\"tiny\",source=\"{source}\"");
                sample(&text, &format!("vllm:prompt_tokens_by_source_total{{{labels}}}")).unwrap()
            })
            .sum();
        prop_assert_eq!(prompt_tokens, by_source);
        prop_assert_eq!(vllm(&text, "generation_tokens_total"), vllm(&text, "request_generation_tokens_sum"));
        let first_tokens = vllm(&text, "time_to_first_token_seconds_count");
        for histogram in ["request_prefill_time_seconds", "request_decode_time_seconds"] {
            prop_assert_eq!(vllm(&text, &format!("{histogram}_count")), first_tokens);
        }
    }
}

#[tokio::test]
async fn without_an_endpoint_shutdown_is_immediate_and_loses_nothing() {
    let telemetry = scraped_only();
    telemetry.model(identity());
    let losses =
        tokio::time::timeout(Duration::from_secs(2), telemetry.shutdown(Duration::from_secs(5))).await;
    assert_eq!(losses.unwrap(), Vec::<String>::new());
    assert!(telemetry.render_metrics(OPEN_METRICS).body.ends_with("# EOF\n"));
}
