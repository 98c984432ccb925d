//! Observations in, `/metrics` out.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::Telemetry;
use crate::catalogue::{self, Condition, Kind, Values};
use crate::config::{DetailedTraces, MetricsDialect, MetricsSettings, TelemetrySettings};
use crate::fixtures::{
    Script, detailed, every_dialect, http, identity, in_memory, resolve, sample, started, step,
};
use crate::identity::{ModelIdentity, StartupTimes};
use crate::observation::{
    AdmissionLimit, BlockResidency, FinishReason, RequestEventKind as Event, SleepOperation, SleepState,
};
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
    let telemetry = every_dialect();
    let startup = StartupTimes { load_weights: Some(Duration::ZERO), total: Some(Duration::ZERO) };
    telemetry.model(ModelIdentity { startup, ..identity() });
    let _http = telemetry.http_metrics("http", &[("POST", "/v1/chat/completions")]);
    let text = telemetry.render_metrics(None).body;
    for row in catalogue::rows() {
        let name = row.exposed_name();
        let exists = text.contains(&format!("# TYPE {name} "));
        assert_eq!(exists, [Condition::Always, Condition::Linux].contains(&row.condition), "{name}");
        if !exists {
            continue;
        }
        let suffix = if matches!(row.kind, Kind::Histogram(_) | Kind::Summary) { "_count" } else { "" };
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
        let http = name.starts_with("http_");
        assert!(lines.len() == known || http && !lines.is_empty(), "{name}: {lines:?}");
        let constant = name.ends_with("_info")
            || name.starts_with("process_")
            || name == "vllm:engine_sleep_state"
            || ["kv_available_tokens", "max_total_num_tokens", "page_size", "num_pages", "context_len"]
                .iter()
                .chain(&["kv_cache_memory_usage_gb"])
                .any(|suffix| name == format!("sglang:{suffix}"));
        assert!(constant || lines.iter().all(|line| line.ends_with(" 0.0")), "{lines:?}");
        for label in row.labels {
            let exposed = label.name.replace('.', "_");
            let has = lines.iter().all(|line| line.contains(&format!("{exposed}=\"")));
            let may_be_absent = [Values::ErrorKind, Values::Rank].contains(&label.values);
            assert!(has || may_be_absent, "{name} without {exposed}");
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

fn with_metrics(metrics: MetricsSettings) -> Telemetry {
    let settings = TelemetrySettings { metrics, ..TelemetrySettings::default() };
    Telemetry::start(resolve(settings, &[]).unwrap(), Vec::new()).unwrap()
}

#[test]
fn hidden_names_come_back_with_the_values_of_their_successors() {
    let until = |version: &str| MetricsSettings {
        show_hidden_metrics_for_version: Some(version.to_owned()),
        ..MetricsSettings::default()
    };
    let telemetry = with_metrics(until("0.11"));
    let model = telemetry.model(identity());
    model.step_finished(&step(Instant::now()));
    let mut script = Script::new(&model, None, Instant::now());
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    let text = telemetry.render_metrics(None).body;
    for (old, new) in [
        ("gpu_cache_usage_perc", "kv_cache_usage_perc"),
        ("gpu_prefix_cache_queries_total", "prefix_cache_queries_total"),
        ("gpu_prefix_cache_hits_total", "prefix_cache_hits_total"),
    ] {
        assert_eq!(vllm(&text, old), vllm(&text, new), "{old}");
        assert!(vllm(&text, old) > 0.0, "{old}");
    }
    let histogram = |name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(&format!("vllm:{name}")));
        lines.map(str::to_owned).collect()
    };
    let old = histogram("time_per_output_token_seconds");
    assert_eq!(old, histogram("inter_token_latency_seconds"));
    assert_eq!(old.len(), 22);
    assert!(!text.contains("vllm:time_in_queue_requests"), "it was gone in 0.11");
    for settings in [MetricsSettings::default(), until("0.12")] {
        let telemetry = with_metrics(settings);
        telemetry.model(identity());
        assert!(!telemetry.render_metrics(None).body.contains("gpu_cache_usage_perc"));
    }
}

#[test]
fn switches_bring_block_residency_and_the_cost_of_steps() {
    let telemetry = with_metrics(MetricsSettings {
        kv_cache_metrics: true,
        enable_mfu_metrics: true,
        slo_inter_token: Some(Duration::from_millis(50)),
        ..MetricsSettings::default()
    });
    let model = telemetry.model(identity());
    model.step_finished(&step(Instant::now()));
    model.blocks_evicted(&[BlockResidency {
        lifetime: Duration::from_secs(9),
        idle: Duration::from_secs(3),
        reuse_gaps: vec![Duration::from_secs(1), Duration::from_secs(2)],
    }]);
    let text = telemetry.render_metrics(None).body;
    for (name, value) in [
        ("kv_block_lifetime_seconds_sum", 9.0),
        ("kv_block_idle_before_evict_seconds_sum", 3.0),
        ("kv_block_reuse_gap_seconds_sum", 3.0),
        ("kv_block_reuse_gap_seconds_count", 2.0),
        ("estimated_flops_per_gpu_total", 100.0),
        ("estimated_read_bytes_per_gpu_total", 10.0),
        ("estimated_write_bytes_per_gpu_total", 1.0),
    ] {
        assert_eq!(vllm(&text, name), value, "{name}");
    }
    let slo = "limpid_engine_max_running_requests_under_slo{engine=\"0\",model_name=\"tiny\"}";
    assert_eq!(sample(&text, slo), Some(8.0));
}

#[test]
fn sleep_and_refusals_show() {
    let telemetry = scraped_only();
    let model = telemetry.model(identity());
    let states = |model_state| {
        if let Some(state) = model_state {
            model.sleep_state_changed(state);
        }
        let text = telemetry.render_metrics(None).body;
        ["awake", "weights_offloaded", "discard_all"].map(|state| {
            let labels = format!("engine=\"0\",model_name=\"tiny\",sleep_state=\"{state}\"");
            sample(&text, &format!("vllm:engine_sleep_state{{{labels}}}")).unwrap()
        })
    };
    assert_eq!(states(None), [1.0, 0.0, 0.0]);
    assert_eq!(states(Some(SleepState::WeightsOffloaded)), [0.0, 1.0, 0.0]);
    assert_eq!(states(Some(SleepState::DiscardAll)), [0.0, 0.0, 1.0]);
    assert_eq!(states(Some(SleepState::Paused)), [0.0; 3]);
    assert_eq!(states(Some(SleepState::Awake)), [1.0, 0.0, 0.0]);
    model.admission_rejected(AdmissionLimit::MaxNumQueuedTokens);
    let refused = "vllm:admission_rejections_total{model_name=\"tiny\",reason=\"max_num_queued_tokens\"}";
    assert_eq!(sample(&telemetry.render_metrics(None).body, refused), Some(1.0));
}

#[test]
fn a_sleep_is_under_way_until_its_guard_is_dropped_and_timed_then() {
    let telemetry = scraped_only();
    let model = telemetry.model(identity());
    let counts = || {
        let text = telemetry.render_metrics(None).body;
        ["sleep", "release_kv_cache_memory", "wake"].map(|operation| {
            let of = |name: &str| sample(&text, &format!("{name}{{operation=\"{operation}\"}}")).unwrap();
            (
                of("vllm:sleep_mode_operations_in_flight"),
                of("vllm:sleep_mode_operation_duration_seconds_count"),
            )
        })
    };
    assert_eq!(counts(), [(0.0, 0.0); 3]);
    let sleeps = [SleepOperation::Sleep; 2].map(|operation| model.sleep_operation(operation));
    let wake = model.sleep_operation(SleepOperation::Wake);
    assert_eq!(counts(), [(2.0, 0.0), (0.0, 0.0), (1.0, 0.0)]);
    drop(sleeps);
    assert_eq!(counts(), [(0.0, 2.0), (0.0, 0.0), (1.0, 0.0)]);
    drop(wake);
    assert_eq!(counts(), [(0.0, 2.0), (0.0, 0.0), (0.0, 1.0)]);
}

#[test]
fn without_log_stats_there_is_no_engine_metric_and_no_line() {
    let telemetry = with_metrics(MetricsSettings { disable_log_stats: true, ..MetricsSettings::default() });
    let model = telemetry.model(identity());
    model.step_finished(&step(Instant::now()));
    let mut script = Script::new(&model, None, Instant::now());
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    let text = telemetry.render_metrics(None).body;
    assert!(!text.contains("vllm:") && !text.contains("gen_ai_"), "{text}");
    assert!(text.contains("process_open_fds") && text.contains("limpid_otlp_exporter_spans_total"));
    assert_eq!(model.stats_line(Instant::now() + Duration::from_secs(5)), None);
}

#[test]
fn time_preempted_is_observed_for_requests_that_were() {
    let telemetry = scraped_only();
    let model = telemetry.model(identity());
    let mut script = Script::new(&model, None, Instant::now());
    script.three_tokens();
    script.step(90, &[(60, Event::Preempted), (85, Event::Scheduled { num_cached_tokens: 16 })], 1);
    script.finish(91, FinishReason::Stop, None);
    let mut script = Script::new(&model, None, Instant::now());
    script.three_tokens();
    script.finish(51, FinishReason::Stop, None);
    let text = telemetry.render_metrics(None).body;
    let series = |suffix: &str| {
        let name = format!("limpid_request_preempted_duration_seconds_{suffix}");
        sample(&text, &format!("{name}{{engine=\"0\",model_name=\"tiny\"}}")).unwrap()
    };
    assert_eq!(series("count"), 1.0);
    assert!((series("sum") - 0.025).abs() < 1e-9);
}

#[test]
fn sglangs_names_tell_the_same_story() {
    let telemetry = with_metrics(MetricsSettings {
        dialects: vec![MetricsDialect::Sglang],
        ..MetricsSettings::default()
    });
    let model = telemetry.model(identity());
    model.step_finished(&step(Instant::now()));
    let mut script = Script::new(&model, None, Instant::now());
    script.three_tokens();
    script.step(60, &[(55, Event::Preempted), (58, Event::Scheduled { num_cached_tokens: 16 })], 1);
    script.finish(61, FinishReason::Abort, None);
    let text = telemetry.render_metrics(None).body;
    assert!(!text.contains("vllm:"), "only what was asked for");
    let scheduler =
        "engine_type=\"unified\",model_name=\"tiny\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"";
    let requests = "engine_type=\"unified\",model_name=\"tiny\"";
    for (name, labels, value) in [
        ("num_running_reqs", scheduler, 3.0),
        ("num_queue_reqs", scheduler, 3.0),
        ("num_used_tokens", scheduler, 256.0),
        ("full_token_usage", scheduler, 0.1875),
        ("swa_token_usage", scheduler, 0.0625),
        ("kv_evictable_tokens", scheduler, 128.0),
        ("kv_available_tokens", scheduler, 624.0),
        ("max_total_num_tokens", scheduler, 1008.0),
        ("cache_hit_rate", scheduler, 0.8),
        ("num_retracted_requests_total", scheduler, 1.0),
        ("num_retracted_input_tokens_total", scheduler, 20.0),
        ("num_retracted_output_tokens_total", scheduler, 3.0),
        ("num_aborted_requests_total", requests, 1.0),
        ("generation_tokens_histogram_sum", requests, 4.0),
        ("inter_token_latency_seconds_count", requests, 3.0),
        ("total_retracted_reqs", "model_name=\"tiny\",tp_rank=\"0\"", 1.0),
    ] {
        assert_eq!(sample(&text, &format!("sglang:{name}{{{labels}}}")), Some(value), "{name}");
    }
    let streams =
        "sglang:num_requests_total{engine_type=\"unified\",is_streaming=\"true\",model_name=\"tiny\"}";
    assert_eq!(sample(&text, streams), Some(1.0));
}
