//! Recording rules and alerts: promtool agrees with them, each fires and stays quiet where it should, and the
//! metrics they read are there.

use std::collections::BTreeSet;

use limpid_tests::gaps::Gaps;
use limpid_tests::programs::{missing, poll, run};
use serde_json::Value;
use xtask::programs::Program;
use xtask::promql;

use crate::{Pipeline, SOON, load, read, root};

const RULES: &str = "otel-collector/prometheus/rules/limpid.yaml";
const TESTS: &str = "otel-collector/prometheus/tests/limpid.yaml";

/// Name and expression of every rule of a kind: `record` or `alert`.
fn rules(kind: &str) -> Vec<(String, String)> {
    let file: Value = serde_yaml_ng::from_str(&read(RULES)).expect("YAML");
    let groups = file["groups"].as_array().expect("groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    rules.filter(|rule| rule[kind].is_string()).map(|rule| (text(&rule[kind]), text(&rule["expr"]))).collect()
}

#[test]
fn promtool_takes_the_rules_and_their_tests_pass() {
    if missing(&[(Program::Prometheus, "promtool")]) {
        return;
    }
    for arguments in [["check", "rules", RULES], ["test", "rules", TESTS]] {
        if let Err(text) = run(Program::Prometheus, "promtool", root(), &arguments) {
            panic!("promtool {arguments:?}:\n{text}");
        }
    }
}

/// Some pipelines store `vllm_` for `vllm:`. The rules then need the same replacement, and nothing else.
#[test]
fn rules_and_their_tests_pass_with_underscores_for_colons_too() {
    if missing(&[(Program::Prometheus, "promtool")]) {
        return;
    }
    let folder = tempfile::TempDir::new().unwrap();
    for path in [RULES, TESTS] {
        let text = read(path);
        let renamed = text.replace("vllm:", "vllm_");
        assert_ne!(renamed, text, "{path}");
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, renamed).unwrap();
    }
    if let Err(text) = run(Program::Prometheus, "promtool", folder.path(), &["test", "rules", TESTS]) {
        panic!("{text}");
    }
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_quiet() {
    let tests: Value = serde_yaml_ng::from_str(&read(TESTS)).expect("YAML");
    let (mut fires, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for test in tests["tests"].as_array().expect("tests") {
        for case in test["alert_rule_test"].as_array().into_iter().flatten() {
            let name = case["alertname"].as_str().expect("a name").to_owned();
            let alerts = case["exp_alerts"].as_array().map_or(0, Vec::len);
            if alerts > 0 {
                fires.insert(name)
            } else {
                quiet.insert(name)
            };
        }
    }
    let alerts: BTreeSet<String> = rules("alert").into_iter().map(|(name, _)| name).collect();
    assert_eq!(fires, alerts, "alerts with a case in which they fire");
    assert_eq!(quiet, alerts, "alerts with a case in which they are quiet");
}

#[test]
fn rules_read_only_what_limpid_the_collector_or_another_rule_serves() {
    let recorded: BTreeSet<String> = rules("record").into_iter().map(|(name, _)| name).collect();
    let mut gaps = Gaps::default();
    for (name, expression) in rules("record").into_iter().chain(rules("alert")) {
        for metric in promql::metrics(&expression) {
            let known = match metric.starts_with("limpid:") {
                true => recorded.contains(&metric),
                false => promql::availability(&metric) == promql::Availability::Served,
            };
            gaps.expect(known, format_args!("{name} reads {metric}"));
        }
    }
    gaps.assert_none(RULES);
}

#[tokio::test]
async fn recording_rules_have_numbers_after_a_load_and_no_alert_is_pending() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    for _ in 0..2 {
        load(pipeline.server.client()).await;
        poll("a sample", SOON, async || {
            let found = pipeline.prometheus.query("vllm:request_success_total > 0").await;
            (!found.is_empty()).then_some(())
        })
        .await;
    }
    for (name, _) in rules("record") {
        poll(&name, SOON, async || {
            let found = pipeline.prometheus.query(&name).await;
            found.iter().any(|(_, value)| value.is_finite()).then_some(())
        })
        .await;
    }
    let alerts = pipeline.prometheus.alerts().await;
    // A fifth of the load's requests is given up by their client on purpose.
    let unexpected: Vec<&String> = alerts.iter().filter(|name| *name != "LimpidAborts").collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}
