//! Several engines in one process.

use std::time::{Duration, Instant};

use super::Telemetry;
use crate::catalogue::{self, Values};
use crate::config::{MetricsDialect, MetricsSettings, TelemetrySettings};
use crate::fixtures::{Script, identity, resolve, sample, step};
use crate::identity::{ModelIdentity, StartupTimes};
use crate::observation::FinishReason;

#[test]
fn each_of_several_engines_has_its_own_series_of_every_engine_family_from_the_start() {
    let metrics = MetricsSettings {
        dialects: vec![
            MetricsDialect::Vllm,
            MetricsDialect::GenAi,
            MetricsDialect::Limpid,
            MetricsDialect::Sglang,
        ],
        ..MetricsSettings::default()
    };
    let settings = TelemetrySettings { metrics, ..TelemetrySettings::default() };
    let telemetry = Telemetry::start(resolve(settings, &[]).unwrap(), Vec::new()).unwrap();
    let startup = StartupTimes { load_weights: Some(Duration::ZERO), total: Some(Duration::ZERO) };
    let model =
        |engine| telemetry.model(ModelIdentity { engine, startup, data_parallel_size: 3, ..identity() });
    let models = [model(0), model(1), model(2)];
    let text = telemetry.render_metrics(None).body;
    for row in catalogue::rows() {
        let name = row.exposed_name();
        let Some(label) =
            row.labels.iter().find(|label| matches!(label.values, Values::Engine | Values::Rank))
        else {
            continue;
        };
        if !text.contains(&format!("# TYPE {name} ")) {
            continue;
        }
        let of_engine = |engine: u32| {
            let labelled = format!("{}=\"{engine}\"", label.name);
            let lines = text.lines().filter(|line| line.starts_with(&name) && line.contains(&labelled));
            lines.count()
        };
        assert!(of_engine(0) > 0, "{name}");
        assert_eq!([of_engine(1), of_engine(2), of_engine(3)], [of_engine(0), of_engine(0), 0], "{name}");
    }
    for (model, requests) in models.iter().zip(1..) {
        for _ in 0..requests {
            let mut script = Script::new(model, None, Instant::now());
            script.three_tokens();
            script.finish(51, FinishReason::Stop, None);
        }
    }
    models[2].step_finished(&step(Instant::now()));
    let text = telemetry.render_metrics(None).body;
    for (engine, requests) in [("0", 1.0), ("1", 2.0), ("2", 3.0)] {
        let labels = format!("engine=\"{engine}\",finished_reason=\"stop\",model_name=\"tiny\"");
        let series = format!("vllm:request_success_total{{{labels}}}");
        assert_eq!(sample(&text, &series), Some(requests), "{series}");
        let running = format!("vllm:num_requests_running{{engine=\"{engine}\",model_name=\"tiny\"}}");
        assert_eq!(sample(&text, &running), Some(if engine == "2" { 3.0 } else { 0.0 }), "{running}");
    }
    // What knows no engine is what all of them did.
    let count = |family: &str| {
        let prefix = format!("{family}_count");
        let lines = text.lines().filter(|line| line.starts_with(&prefix));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    assert_eq!(count("gen_ai_server_request_duration_seconds"), 6.0);
    assert_eq!(count("sglang:e2e_request_latency_seconds"), 6.0);
    assert_eq!(count("vllm:e2e_request_latency_seconds"), 6.0);
}
