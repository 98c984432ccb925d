//! Queries: limpid's own dashboards and data sources, the expressions of the seed in their working form, vLLM's public
//! dashboards. Each returns numbers after a load, or its reason not to is known.

use std::time::Duration;

use limpid_tests::gaps::Gaps;
use limpid_tests::programs::poll;
use limpid_tests::programs::prometheus::Prometheus;
use serde_json::Value;
use xtask::{dashboards, promql};

use crate::{Pipeline, SOON, load, read, vllm_dashboards};

/// Queries on metrics that are there, but have no numbers on a server like the tests': what would have to happen
/// cannot happen here. One that gets numbers all the same has to go.
const QUIET: &[(&str, &str)] = &[
    (
        "error_type!=\"\"",
        "no request of the load fails by the server's fault, and refusals have no error.type",
    ),
    ("STATUS_CODE_ERROR\"}[5m]", "no request of the load fails by the server's fault"),
    ("vllm:kv_block_", "no block is evicted by the load"),
    (
        "/ sum(rate(vllm:external_prefix_cache_queries_total",
        "limpid has no KV connector, so nothing is ever looked up",
    ),
    ("/ sum(rate(vllm:mm_cache_queries_total", "limpid takes text only, so nothing is ever looked up"),
    ("rate(vllm:sleep_mode_operation_duration_seconds_", "nobody sends the server to sleep"),
    (
        "vllm:lora_requests_info{",
        "the series has no model_name and engine labels, as in vLLM, so a filter for a certain one misses it",
    ),
];

/// Every query with where it is from.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for dashboard in dashboards::all().expect("dashboards") {
        for (title, query) in dashboard.queries {
            queries.push((format!("{}, {title}", dashboard.uid), query));
        }
    }
    let seed: Vec<Value> = serde_json::from_str(include_str!("../../data/promql.json")).expect("JSON");
    for goal in &seed {
        let id = goal["id"].as_str().expect("an id");
        let expressions = goal["expressions"].as_array().expect("expressions");
        assert!(
            !expressions.is_empty() || goal["none"].is_string(),
            "{id} has neither expression nor reason"
        );
        queries.extend(expressions.iter().map(|query| (id.to_owned(), query.as_str().unwrap().to_owned())));
    }
    queries.extend(vllm_dashboards::queries());
    let sources = read("otel-collector/grafana/provisioning/datasources/datasources.yaml");
    let sources: Value = serde_yaml_ng::from_str(&sources).expect("YAML");
    for source in sources["datasources"].as_array().expect("data sources") {
        for query in source["jsonData"]["tracesToMetrics"]["queries"].as_array().into_iter().flatten() {
            let text = |key: &str| query[key].as_str().expect("text").to_owned();
            queries.push((format!("from a trace, {}", text("name")), text("query")));
        }
    }
    queries
}

/// A query as Grafana would send it, with every variable at All.
fn filled(query: &str) -> String {
    query
        .replace("$$__tags", "job=\"limpid\"")
        .replace("$__rate_interval", "1m")
        .replace("=~\"$job\"", "=~\".+\"")
        .replace("=~\"$model_name\"", "=~\".+\"")
        .replace("=~\"$instance\"", "=~\".+\"")
        .replace("=~\"$engine\"", "=~\".+\"")
}

async fn has_numbers(prometheus: &Prometheus, query: &str) -> bool {
    prometheus.query(query).await.iter().any(|(_, value)| !value.is_nan())
}

#[test]
fn every_metric_in_a_query_is_served_or_lacking_for_a_known_reason() {
    let mut gaps = Gaps::default();
    for (place, query) in queries() {
        if let Err(name) = promql::lacking(&query) {
            gaps.note(format_args!("{place}: nobody knows {name} in {query}"));
        }
        gaps.expect(!filled(&query).contains('$'), format_args!("{place}: a variable is left in {query}"));
    }
    gaps.assert_none("names of metrics");
}

#[test]
fn every_reason_for_which_a_metric_is_lacking_is_some_querys() {
    let queries = queries();
    let names: Vec<String> = queries.iter().flat_map(|(_, query)| promql::metrics(query)).collect();
    let mut gaps = Gaps::default();
    for (prefix, reason) in promql::LACKING {
        let lacking = |name: &&String| promql::availability(name) == promql::Availability::Lacking(reason);
        let used = names.iter().filter(lacking).any(|name| name.starts_with(prefix));
        gaps.expect(used, format_args!("no query lacks a metric {prefix}, so LACKING need not name it"));
    }
    gaps.assert_none("what limpid lacks");
}

#[tokio::test]
#[allow(clippy::print_stderr)]
async fn every_query_returns_numbers_after_a_load_or_has_a_reason_not_to() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    let prometheus = &pipeline.prometheus;
    // A rate needs a sample before and one after.
    load(pipeline.server.client()).await;
    let first = "sum(vllm:request_success_total) > 0 \
                 and sum(traces_span_metrics_calls_total{span_kind=\"SPAN_KIND_SERVER\"}) > 0";
    poll("a first sample", SOON, async || has_numbers(prometheus, first).await.then_some(())).await;
    load(pipeline.server.client()).await;
    let mut gaps = Gaps::default();
    let mut reasons = std::collections::BTreeMap::<&str, usize>::new();
    let mut answered = 0;
    let mut quiet = Vec::new();
    let deadline = tokio::time::Instant::now() + SOON;
    for (place, query) in queries() {
        if let Some(reason) = promql::lacking(&query).ok().flatten() {
            *reasons.entry(reason).or_default() += 1;
            continue;
        }
        if let Some((part, reason)) = QUIET.iter().find(|(part, _)| query.contains(part)) {
            *reasons.entry(reason).or_default() += 1;
            quiet.push((*part, place, filled(&query)));
            continue;
        }
        // The second load's samples are on their way for a while.
        let filled = filled(&query);
        loop {
            if has_numbers(prometheus, &filled).await {
                answered += 1;
                break;
            }
            if tokio::time::Instant::now() > deadline {
                gaps.note(format_args!("{place}: {query}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    // By now everything has arrived that ever will.
    for (_, place, query) in &quiet {
        let numbers = has_numbers(prometheus, query).await;
        gaps.expect(!numbers, format_args!("{place}: {query} has numbers, so QUIET need not name it"));
    }
    for (part, _) in QUIET {
        let used = quiet.iter().any(|(used, _, _)| used == part);
        gaps.expect(used, format_args!("no query is quiet because of {part}, so QUIET need not name it"));
    }
    eprintln!("{answered} queries return numbers; the others do not because");
    for (reason, count) in reasons {
        eprintln!("  {count:3} {reason}");
    }
    gaps.assert_none("queries without numbers");
}
