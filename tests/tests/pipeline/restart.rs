//! A collector that restarts under load: what was lost is known, and nothing is lost silently.

use std::sync::atomic::{AtomicBool, Ordering};

use limpid_tests::client::Client;
use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::gaps::Gaps;
use limpid_tests::programs::collector::Collector;
use limpid_tests::programs::jaeger::Jaeger;
use limpid_tests::programs::poll;
use limpid_tests::programs::prometheus::Prometheus;
use serde_json::Value;

use crate::{CHAT, Pipeline, SOON, ask, chat};

const SPANS: &str = "limpid_otlp_exporter_spans_total";

async fn scrape(client: Client) -> Scrape {
    Scrape::parse(client.get("/metrics").await.text(), Format::Text004).expect("a good scrape")
}

/// How many spans Jaeger has of a trace.
async fn spans_of(jaeger: &Jaeger, id: &str) -> usize {
    let trace = jaeger.trace(id).await;
    trace.map_or(0, |trace: Value| trace["spans"].as_array().map_or(0, Vec::len))
}

/// Waits until limpid holds no span any more, and returns what it counted.
async fn settled(client: Client) -> Scrape {
    poll("an empty span queue", SOON, async || {
        let scrape = scrape(client).await;
        (scrape.value("limpid_otlp_exporter_span_queue_length", &[]) == 0.0).then_some(scrape)
    })
    .await
}

fn lost(scrape: &Scrape) -> f64 {
    scrape.value(SPANS, &[("result", "failed")]) + scrape.value(SPANS, &[("result", "dropped")])
}

/// Jaeger has what limpid says was exported, and no more.
async fn expect_all_that_was_exported(jaeger: &Jaeger, scrape: &Scrape, gaps: &mut Gaps) {
    let exported = scrape.value(SPANS, &[("result", "exported")]);
    let arrived = poll("what was exported to be in Jaeger", SOON, async || {
        let traces = jaeger.traces("limpid", None).await;
        let spans = traces.iter().map(|trace| trace["spans"].as_array().map_or(0, Vec::len)).sum::<usize>();
        (spans as f64 >= exported).then_some(spans as f64)
    })
    .await;
    gaps.equal("spans in Jaeger", arrived, exported);
}

/// Prometheus saw limpid's counters up to their last values, and none of them fall.
async fn expect_counters_that_only_rise(client: Client, prometheus: &Prometheus, gaps: &mut Gaps) {
    let tokens = scrape(client).await.value("vllm:generation_tokens_total", &[]);
    poll("the counters' last values", SOON, async || {
        let found = prometheus.query("vllm:generation_tokens_total").await;
        found.first().filter(|(_, value)| *value == tokens).map(|_| ())
    })
    .await;
    let counters = "count by (__name__) ({job=\"limpid\", __name__=~\"(vllm:|limpid_).*_total\"})";
    let counters = prometheus.query(counters).await;
    gaps.expect(counters.len() >= 8, format_args!("only {} counters", counters.len()));
    for (labels, _) in counters {
        let name = &labels["__name__"];
        let falls = prometheus.query(&format!("max(resets({name}{{job=\"limpid\"}}[10m]))")).await;
        gaps.equal(format_args!("falls of {name}"), falls.first().map(|(_, value)| *value), Some(0.0));
    }
}

#[tokio::test]
async fn a_short_restart_of_the_collector_loses_nothing() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    let Pipeline { server, collector, jaeger, prometheus, _alone } = pipeline;
    let client = server.client();
    let mut asked = Vec::new();
    for _ in 0..10 {
        asked.push(ask(client, CHAT, &chat(5)).await);
    }
    let ports = collector.ports;
    collector.stop().await;
    for _ in 0..10 {
        asked.push(ask(client, CHAT, &chat(5)).await);
    }
    let _collector = Collector::start("config.yaml", ports, jaeger.otlp).await;
    for _ in 0..10 {
        asked.push(ask(client, CHAT, &chat(5)).await);
    }
    let mut gaps = Gaps::default();
    let scrape = settled(client).await;
    gaps.equal("spans lost", lost(&scrape), 0.0);
    expect_all_that_was_exported(&jaeger, &scrape, &mut gaps).await;
    let whole = spans_of(&jaeger, &asked[0]).await;
    for id in &asked {
        gaps.equal(format_args!("spans of {id}"), spans_of(&jaeger, id).await, whole);
    }
    expect_counters_that_only_rise(client, &prometheus, &mut gaps).await;
    gaps.assert_none(format_args!("{} requests", asked.len()));
}

#[tokio::test]
async fn a_long_absence_of_the_collector_under_load_loses_nothing_silently() {
    let Some(pipeline) = Pipeline::start("config.yaml", false).await else { return };
    let Pipeline { server, collector, jaeger, prometheus, _alone } = pipeline;
    let client = server.client();
    let loading = AtomicBool::new(true);
    let load = async {
        let mut asked = Vec::new();
        while loading.load(Ordering::Relaxed) {
            let eight = std::iter::repeat_with(|| async { ask(client, CHAT, &chat(5)).await }).take(8);
            asked.extend(futures::future::join_all(eight).await);
        }
        asked
    };
    let story = async {
        poll("traces before the absence", SOON, async || {
            (jaeger.traces("limpid", None).await.len() >= 5).then_some(())
        })
        .await;
        let ports = collector.ports;
        collector.stop().await;
        // Longer than limpid can hold: something is really lost, and limpid says so.
        poll("a loss", 3 * SOON, async || (lost(&scrape(client).await) > 0.0).then_some(())).await;
        loading.store(false, Ordering::Relaxed);
        Collector::start("config.yaml", ports, jaeger.otlp).await
    };
    let (asked, _collector) = tokio::join!(load, story);
    settled(client).await;
    let mut after = Vec::new();
    for _ in 0..20 {
        after.push(ask(client, CHAT, &chat(5)).await);
    }

    let mut gaps = Gaps::default();
    let scrape = settled(client).await;
    expect_all_that_was_exported(&jaeger, &scrape, &mut gaps).await;
    let whole = spans_of(&jaeger, &asked[0]).await;
    gaps.expect(whole >= 5, format_args!("{whole} spans in a trace before the absence"));
    let mut missing = 0;
    for id in &asked {
        missing += whole.saturating_sub(spans_of(&jaeger, id).await);
    }
    gaps.expect(missing > 0, "nothing was lost, so the absence tested nothing");
    gaps.expect(missing as f64 <= lost(&scrape), format_args!("{missing} spans are missing"));
    for id in &after {
        gaps.equal(format_args!("spans of {id}, asked afterwards"), spans_of(&jaeger, id).await, whole);
    }
    expect_counters_that_only_rise(client, &prometheus, &mut gaps).await;
    gaps.assert_none(format_args!("limpid counted {} lost spans", lost(&scrape)));
}
