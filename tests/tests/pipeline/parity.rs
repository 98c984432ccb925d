//! The same by scrape and by push: every family of the catalogue, as Prometheus sees it on both ways.

use std::collections::{BTreeMap, BTreeSet};

use limpid_telemetry::catalogue::{Kind, rows};
use limpid_tests::exposition::Labels;
use limpid_tests::gaps::Gaps;
use limpid_tests::programs::poll;
use limpid_tests::programs::prometheus::Prometheus;

use crate::{DIRECT, EXPORTER, Pipeline, SOON, load};

/// Families whose values change by being looked at or by time alone, so that two readings never agree: what the
/// exporters themselves do, and the process. Their names, types and labels are compared, their values are not.
const RESTLESS: [&str; 3] = ["limpid_otlp_exporter_", "process_", "limpid_engine_saturation_ratio"];

/// Series by name and labels, without what tells the two ways apart.
async fn series(prometheus: &Prometheus, job: &str) -> BTreeMap<Labels, f64> {
    let found = prometheus.query(&format!("{{job=\"{job}\"}}")).await;
    found
        .into_iter()
        .filter(|(labels, _)| {
            let name = labels["__name__"].as_str();
            // What Prometheus adds by itself, and what the collector adds.
            name != "up"
                && name != "target_info"
                && !name.starts_with("scrape_")
                && !name.starts_with("traces_span_metrics_")
        })
        .map(|(mut labels, value)| {
            labels.remove("job");
            labels.remove("instance");
            (labels, value)
        })
        .collect()
}

fn differences(direct: &BTreeMap<Labels, f64>, pushed: &BTreeMap<Labels, f64>) -> Vec<String> {
    let mut found = Vec::new();
    let both: BTreeSet<&Labels> = direct.keys().chain(pushed.keys()).collect();
    for labels in both {
        match (direct.get(labels), pushed.get(labels)) {
            (Some(direct), Some(pushed)) => {
                let restless = RESTLESS.iter().any(|prefix| labels["__name__"].starts_with(prefix));
                if direct != pushed && !restless {
                    found.push(format!("{labels:?}: {direct} by scrape, {pushed} by push"));
                }
            }
            (Some(_), None) => found.push(format!("{labels:?}: by scrape only")),
            (None, _) => found.push(format!("{labels:?}: by push only")),
        }
    }
    found
}

#[tokio::test]
async fn every_family_is_the_same_by_scrape_and_by_way_of_the_collector() {
    let Some(pipeline) = Pipeline::start("config.yaml", true).await else { return };
    let prometheus = &pipeline.prometheus;
    load(pipeline.server.client()).await;

    // Both ways have their delay; once the load is over they meet.
    let mut last = Vec::new();
    let meet = async {
        loop {
            let (direct, pushed) = (series(prometheus, DIRECT).await, series(prometheus, "limpid").await);
            last = differences(&direct, &pushed);
            if last.is_empty() && !direct.is_empty() {
                break (direct, pushed);
            }
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
    };
    let met = tokio::time::timeout(SOON, meet).await;
    let Ok((direct, _)) = met else {
        panic!("{} differences after {SOON:?}:\n{}", last.len(), last.join("\n"))
    };

    let mut gaps = Gaps::default();
    let names: BTreeSet<&str> = direct.keys().map(|labels| labels["__name__"].as_str()).collect();
    for row in rows() {
        let name = row.exposed_name();
        let counted = matches!(row.kind, Kind::Histogram(_) | Kind::Summary);
        let sample = if counted { format!("{name}_count") } else { name };
        gaps.expect(names.contains(sample.as_str()), format_args!("{sample} is in neither"));
    }
    // Compared as they are spelled: dashboards ask for le="1.0".
    let spelled = direct.keys().filter_map(|labels| labels.get("le")).any(|le| le == "1.0");
    gaps.expect(spelled, "no bucket is spelled le=\"1.0\"");
    let (scraped, pushed) = (prometheus.metadata(DIRECT).await, prometheus.metadata(EXPORTER).await);
    for (family, (kind, help)) in &scraped {
        let Some((pushed_kind, pushed_help)) =
            gaps.some(format_args!("{family} by push"), pushed.get(family))
        else {
            continue;
        };
        gaps.equal(format_args!("type of {family}"), pushed_kind, kind);
        gaps.equal(format_args!("help of {family}"), pushed_help, help);
    }
    gaps.expect(scraped.len() >= rows().count(), format_args!("only {} families", scraped.len()));
    gaps.assert_none("by scrape and by push");
}

#[tokio::test]
async fn pushed_series_carry_limpids_own_job_and_instance_and_no_scope() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    let running = poll("limpid's series", SOON, async || {
        let found = pipeline.prometheus.query("vllm:num_requests_running").await;
        (!found.is_empty()).then_some(found)
    })
    .await;
    let (labels, _) = &running[0];
    let mut gaps = Gaps::default();
    gaps.equal("series", running.len(), 1);
    let names: Vec<&str> = labels.keys().map(String::as_str).collect();
    gaps.equal("labels", names, vec!["__name__", "engine", "instance", "job", "model_name"]);
    gaps.equal("job", labels.get("job").map(String::as_str), Some("limpid"));
    gaps.assert_none(format_args!("{labels:?}"));
}
