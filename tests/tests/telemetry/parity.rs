//! A live scrape against vLLM's own declarations: families, types, labels, values and bounds. Every difference
//! is named on the compatibility page, or fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use limpid_tests::exposition::Scrape;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_metrics::{Point, streams};
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{CONTEXT_LENGTH, Options, tiny_model};
use serde_json::Value;

use crate::catalogue::{Buckets, SUCCESS};
use crate::{CHAT, SOON, chat, scrape, scrape_until, sending_to};

const PAGE: &str = include_str!("../../../docs/reference/vllm-compatibility.md");

/// A tiny model's server with every metric that a switch can bring.
pub(crate) fn everything() -> Options {
    Options::new(&tiny_model())
        .arg("--metrics-dialects", "vllm,genai,limpid,sglang")
        .arg("--show-hidden-metrics-for-version", "0.11")
        .arg("--slo-inter-token-ms", "50")
        .plain("--enable-mfu-metrics")
}

fn strings(value: &Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_live_scrape_has_vllms_families_types_labels_values_and_bounds() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../telemetry/src/catalogue/vllm-0.33.json")).unwrap();
    let server = Options::new(&tiny_model()).plain("--enable-mfu-metrics").start().await;
    server.client().post(CHAT, &chat(3)).await;
    let scrape = scrape(server.client()).await;
    let mut gaps = Gaps::default();
    let mut known = BTreeMap::new();
    for metric in golden["metrics"].as_array().unwrap() {
        let group = metric["group"].as_str().unwrap();
        let ours = ("2.1".."2.8").contains(&group) || group == "2.9" || group == "other";
        let name = metric.get("exposed").unwrap_or(&metric["name"]).as_str().unwrap();
        known.insert(name, metric);
        if !ours || metric["status"] != "current" || scrape.families.contains_key(name) {
            continue;
        }
        let declared = metric["name"].as_str().unwrap();
        let explained = PAGE.contains(&format!("`{declared}`")) || declared.starts_with("python_");
        gaps.expect(
            explained,
            format_args!("{name} is missing, and the compatibility page does not say why"),
        );
    }
    let theirs =
        |name: &str| ["vllm:", "http_request", "process_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, family) in scrape.families.iter().filter(|(name, _)| theirs(name)) {
        let Some(metric) = gaps.some(format_args!("vLLM's {name}"), known.get(name.as_str())) else {
            continue;
        };
        gaps.equal(format_args!("{name}'s type"), family.kind.as_str(), metric["type"].as_str().unwrap());
        let wanted = strings(&metric["labels"]);
        let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for sample in &family.samples {
            let labels: BTreeSet<String> =
                sample.labels.keys().filter(|label| *label != "le").cloned().collect();
            gaps.equal(format_args!("{name}'s labels"), labels, wanted.clone());
            for (label, value) in &sample.labels {
                values.entry(label.clone()).or_default().insert(value.clone());
            }
        }
        for (label, allowed) in metric["label_values"].as_object().into_iter().flatten() {
            let (found, allowed) = (values.remove(label).unwrap_or_default(), strings(allowed));
            // Statuses that no route answers with have no series.
            let complete = found == allowed || name == "http_requests_total" && found.is_subset(&allowed);
            gaps.expect(complete, format_args!("{name}: {label} is {found:?} of {allowed:?}"));
        }
        if family.kind == "histogram" {
            let bounds = &golden["buckets"][metric["buckets"].as_u64().unwrap_or(u64::MAX) as usize];
            let wanted: Vec<f64> = match bounds.as_array() {
                Some(bounds) => bounds.iter().filter_map(Value::as_f64).collect(),
                None => {
                    let spelled = Buckets::OneTwoFive.spelled(CONTEXT_LENGTH);
                    spelled.iter().filter(|le| *le != "+Inf").map(|le| le.parse().unwrap()).collect()
                }
            };
            for histogram in scrape.histograms(name).values() {
                let found: Vec<f64> = histogram.buckets.iter().map(|(le, _)| le.parse().unwrap()).collect();
                gaps.equal(format_args!("{name}'s bounds"), &found[..found.len() - 1], &wanted[..]);
            }
        }
    }
    gaps.assert_none("vLLM 0.33's catalogue");
}

#[tokio::test]
async fn steps_requests_and_the_process_show_in_every_dialect() {
    let server = everything().start().await;
    server.client().post(CHAT, &chat(6)).await;
    // Linux counts processor time in hundredths of a second; the scrapes themselves take it.
    let scrape = scrape_until(server.client(), "the request's count and some processor time", |scrape| {
        scrape.value(SUCCESS, &[]) == 1.0 && scrape.value("process_cpu_seconds_total", &[]) > 0.0
    })
    .await;
    let mut gaps = Gaps::default();
    for name in [
        "vllm:estimated_flops_per_gpu_total",
        "vllm:estimated_read_bytes_per_gpu_total",
        "vllm:estimated_write_bytes_per_gpu_total",
        "sglang:max_total_num_tokens",
        "sglang:startup_time_seconds",
        "limpid_device_info",
        "limpid_engine_max_running_requests_under_slo",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        gaps.expect(scrape.value(name, &[]) > 0.0, format_args!("{name} is 0"));
    }
    gaps.equal("tokens in SGLang's words", scrape.value("sglang:generation_tokens_total", &[]), 6.0);
    let saturation = scrape.value("limpid_engine_saturation_ratio", &[]);
    gaps.expect((0.0..=1.0).contains(&saturation), format_args!("saturation {saturation}"));
    for part in ["plan", "execute", "apply"] {
        let steps = scrape.histograms("limpid_engine_step_duration_seconds");
        let of_part = steps.iter().find(|(labels, _)| labels.get("part").is_some_and(|found| found == part));
        gaps.expect(of_part.is_some_and(|(_, steps)| steps.count >= 6.0), format_args!("steps' {part}"));
    }
    let handler = [("handler", CHAT), ("method", "POST"), ("status", "2xx")];
    gaps.equal("chats", scrape.value("http_requests_total", &handler), 1.0);
    gaps.equal("active requests", scrape.value("http_server_active_requests", &[]), 0.0);
    let probed = scrape.families["http_requests_total"]
        .samples
        .iter()
        .any(|sample| sample.labels["handler"].contains("metrics") || sample.labels["handler"] == "/health");
    gaps.expect(!probed, "scrapes are counted as requests");
    gaps.equal(
        "the hidden name of KV usage",
        scrape.value("vllm:gpu_cache_usage_perc", &[]),
        scrape.value("vllm:kv_cache_usage_perc", &[]),
    );
    gaps.assert_none("one request in all dialects");
}

#[tokio::test]
async fn custom_buckets_are_the_same_on_both_ways_out_and_wrong_ones_end_the_start() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http)
        .arg("--custom-histogram-buckets", "{\"request_latency\":[0.01,0.05,0.1]}")
        .start()
        .await;
    const NAME: &str = "vllm:e2e_request_latency_seconds";
    let scraped = scrape(server.client()).await.histogram(NAME);
    let found: Vec<&str> = scraped.buckets.iter().map(|(le, _)| le.as_str()).collect();
    assert_eq!(found, ["0.01", "0.05", "0.1", "+Inf"]);
    let pushed = receiver
        .wait_for("an export", SOON, |received| {
            received.metrics.last().and_then(|export| streams(&export.message).remove(NAME))
        })
        .await;
    for point in pushed.points.values() {
        let Point::Histogram { bounds, .. } = point else { panic!("{point:?}") };
        assert_eq!(bounds, &[0.01, 0.05, 0.1]);
    }
    for (wrong, named) in [
        ("{\"request_latency\":[0.1,0.05]}", "request_latency"),
        ("{\"no_such_family\":[1]}", "no_such_family"),
    ] {
        let ended = Options::new(&tiny_model()).arg("--custom-histogram-buckets", wrong).run().await;
        assert!(!ended.status.success() && ended.log.contains(named), "{}", ended.log);
    }
}

#[tokio::test]
async fn the_log_says_what_the_engine_does_and_nothing_while_it_is_idle() {
    let server = Options::new(&tiny_model()).arg("--log-stats-interval", "1").start().await;
    server.client().post(CHAT, &chat(20)).await;
    let line = server
        .wait_for_log(Duration::from_secs(20), |line| line.contains("Avg generation throughput: "))
        .await;
    for part in ["Engine 000:", "Running: 0 reqs", "Waiting: 0 reqs", "KV cache usage: 0.0%"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    // The next intervals are idle: a scrape answered two seconds later finds no further line.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(server.log().matches("Avg generation throughput").count(), 1, "{}", server.log());
}

#[tokio::test]
async fn hidden_names_have_the_values_of_what_took_their_place_under_load_and_are_absent_unasked() {
    const RENAMED: [(&str, &str); 4] = [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
        ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
    ];
    let server = everything().start().await;
    let client = server.client();
    let values = |scrape: &Scrape, name: &str| -> Vec<f64> {
        scrape.family(name).samples.iter().map(|sample| sample.value).collect()
    };
    // Two streams are read one after the other, and the server counts on in between: while it works, only the gauge
    // can be expected to be caught at one value.
    let scrapes = async {
        let mut alike = 0;
        for _ in 0..20 {
            let scrape = scrape(client).await;
            let (old, new) = RENAMED[0];
            let busy = scrape.value(new, &[]) > 0.0;
            alike += usize::from(busy && values(&scrape, old) == values(&scrape, new));
        }
        assert!(alike > 0, "no scrape of twenty found blocks in use and both names at the same value");
    };
    let load = async {
        // Goes on for as long as it is looked at.
        let request = chat(200);
        loop {
            futures::future::join_all((0..4).map(|_| client.post(CHAT, &request))).await;
        }
    };
    tokio::select! {
        () = scrapes => {}
        () = load => unreachable!("it never ends"),
    }
    let idle = scrape_until(client, "the abandoned requests ended", |scrape| {
        scrape.value("vllm:num_requests_running", &[]) == 0.0
            && scrape.value("vllm:num_requests_waiting", &[]) == 0.0
    })
    .await;
    for (old, new) in RENAMED {
        assert_eq!(values(&idle, old), values(&idle, new), "{old} and {new}");
    }
    assert!(values(&idle, "vllm:inter_token_latency_seconds").iter().any(|value| *value > 0.0));
    let plain = Options::new(&tiny_model()).start().await;
    let scrape = scrape(plain.client()).await;
    for (old, _) in RENAMED {
        assert!(!scrape.families.contains_key(old), "{old} is shown unasked");
    }
}
