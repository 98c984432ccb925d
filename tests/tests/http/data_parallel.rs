//! Several engines in one server.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use limpid_tests::client::Client;
use limpid_tests::exposition::Scrape;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{Options, Server, slow_model, tiny_model};
use limpid_tests::spans;
use serde_json::{Value, json};

use crate::{COMPLETIONS, completion, scrape, scrape_until, with};

const ENGINES: [&str; 2] = ["0", "1"];

fn two_engines(model: &std::path::Path) -> Options {
    Options::new(model).arg("--data-parallel-size", "2")
}

/// A prompt of four blocks and three tokens, different from number to number in its first token.
fn request(number: u64, max_tokens: u64) -> Value {
    let prompt: Vec<u64> = (0..67).map(|position| 40 + (number + position) % 50).collect();
    with(completion(max_tokens), json!({"prompt": prompt}))
}

async fn answer(client: Client, request: &Value) -> Value {
    let reply = client.post(COMPLETIONS, request).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("cached_tokens")
}

fn by_engine(scrape: &Scrape, family: &str) -> [f64; 2] {
    ENGINES.map(|engine| scrape.value(family, &[("engine", engine)]))
}

/// Every series with an engine, without the engine, by engine. Info metrics have values of their own.
fn series_by_engine(scrape: &Scrape, label: &str) -> BTreeMap<String, Vec<(String, f64)>> {
    let mut engines: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for sample in scrape.families.values().flat_map(|family| &family.samples) {
        let mut labels = sample.labels.clone();
        let Some(engine) = labels.remove(label) else { continue };
        engines.entry(engine).or_default().push((format!("{}{labels:?}", sample.name), sample.value));
    }
    engines
}

#[tokio::test]
async fn every_series_of_every_engine_is_there_before_the_first_request() {
    let server = two_engines(&tiny_model())
        .arg("--metrics-dialects", "vllm,genai,limpid,sglang")
        .plain("--kv-cache-metrics")
        .start()
        .await;
    let scrape = scrape(server.client()).await;
    for (label, least) in [("engine", 300), ("dp_rank", 30)] {
        let engines = series_by_engine(&scrape, label);
        assert_eq!(engines.keys().collect::<Vec<_>>(), ENGINES.iter().collect::<Vec<_>>(), "{label}");
        let names = |engine: &str| engines[engine].iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names("0"), names("1"));
        assert!(engines["0"].len() > least, "{} series with {label}", engines["0"].len());
        for (name, value) in engines.values().flatten() {
            let constant =
                ["_info", "sleep_state", "kv_available", "page", "context_len", "total_num", "_gb", "time"];
            assert!(*value == 0.0 || constant.iter().any(|part| name.contains(part)), "{name} is {value}");
        }
    }
    assert_eq!(by_engine(&scrape, "vllm:cache_config_info"), [1.0, 1.0]);
}

#[tokio::test]
async fn under_load_both_engines_work_and_what_they_count_adds_up() {
    let alone = Options::new(&tiny_model()).start().await;
    let server = two_engines(&tiny_model()).arg("--log-stats-interval", "1").start().await;
    let client = server.client();
    let together = (0..24).map(|number| async move { answer(client, &request(number, 20)).await });
    let together = futures::future::join_all(together).await;
    for (number, together) in (0..).zip(&together) {
        assert_eq!(text(together), text(&answer(alone.client(), &request(number, 20)).await), "{number}");
    }
    let scrape = scrape(client).await;
    let served = by_engine(&scrape, "vllm:request_success_total");
    assert!(served.iter().all(|served| *served >= 8.0), "{served:?}");
    let sum = |family: &str| by_engine(&scrape, family).iter().sum::<f64>();
    assert_eq!(served.iter().sum::<f64>(), 24.0);
    assert_eq!(sum("vllm:generation_tokens_total"), 24.0 * 20.0);
    assert_eq!(sum("vllm:prompt_tokens_total"), 24.0 * 67.0);
    assert_eq!(sum("vllm:prefix_cache_queries_total"), 24.0 * 67.0);
    assert_eq!(sum("vllm:num_requests_running") + sum("vllm:num_requests_waiting"), 0.0);
    for (labels, e2e) in scrape.histograms("vllm:e2e_request_latency_seconds") {
        let engine = labels["engine"].as_str();
        assert_eq!(e2e.count, scrape.value("vllm:request_success_total", &[("engine", engine)]));
    }
    // What knows no engine has one series for what both did.
    let durations = scrape.histograms("gen_ai_server_request_duration_seconds");
    assert_eq!(durations.values().map(|series| series.count).sum::<f64>(), 24.0);
    for engine in ["Engine 000: ", "Engine 001: "] {
        server.wait_for_log(Duration::from_secs(20), |line| line.contains(engine)).await;
    }
}

#[tokio::test]
async fn a_prompt_that_comes_again_goes_where_its_blocks_are() {
    let server = two_engines(&tiny_model()).start().await;
    let client = server.client();
    // One after the other: the engines take turns for what is new.
    for number in 0..4 {
        assert_eq!(cached(&answer(client, &request(number, 2)).await), 0);
    }
    let scrape_then = scrape(client).await;
    assert_eq!(by_engine(&scrape_then, "vllm:request_success_total"), [2.0, 2.0]);
    for number in [3, 0, 2, 1, 1, 1, 1] {
        assert_eq!(cached(&answer(client, &request(number, 2)).await), 64, "prompt {number}");
    }
    let scrape = scrape(client).await;
    assert_eq!(by_engine(&scrape, "vllm:prefix_cache_hits_total"), [2.0 * 64.0, 5.0 * 64.0]);
    // A header overrides it, and is checked.
    let ranked = |rank: &'static str| async move {
        client.post_with(COMPLETIONS, &[("x-data-parallel-rank", rank)], &request(1, 2)).await
    };
    assert_eq!(cached(&ranked("0").await.json()), 0);
    let refused = ranked("2").await;
    assert_eq!((refused.status.as_u16(), refused.text().contains("allowed: 0 to 1")), (400, true));
}

#[tokio::test]
async fn all_choices_of_a_request_are_of_one_engine() {
    let server = two_engines(&tiny_model()).start().await;
    let client = server.client();
    for number in 0..2 {
        answer(client, &with(request(number, 3), json!({"n": 4}))).await;
    }
    let scrape = scrape(client).await;
    assert_eq!(by_engine(&scrape, "vllm:request_success_total"), [4.0, 4.0]);
    // Three of four find what the first one computed.
    assert_eq!(by_engine(&scrape, "vllm:prefix_cache_hits_total"), [3.0 * 64.0, 3.0 * 64.0]);
}

async fn tell(server: &Server, path: &str) -> u16 {
    server.client().request(Method::POST, path, &[], Default::default()).await.status.as_u16()
}

#[tokio::test]
async fn sleep_waking_up_and_a_reset_are_for_both_engines() {
    let server = two_engines(&slow_model()).start().await;
    let client = server.client();
    let before = [answer(client, &request(0, 8)).await, answer(client, &request(1, 8)).await];
    assert_eq!(tell(&server, "/reset_prefix_cache").await, 200);
    for number in 0..2 {
        assert_eq!(cached(&answer(client, &request(number, 8)).await), 0, "both caches are empty");
    }
    let state = |scrape: &Scrape, state| {
        let value =
            |engine| scrape.value("vllm:engine_sleep_state", &[("engine", engine), ("sleep_state", state)]);
        ENGINES.map(value)
    };
    let awake = server.resident_bytes();
    assert_eq!(tell(&server, "/sleep?level=1").await, 200);
    let asleep = server.resident_bytes();
    // The weights are 20 MB, and there once. What the KV caches have not used yet was never taken.
    assert!(asleep + 15_000_000 < awake, "{awake} bytes awake, {asleep} asleep");
    let scraped = scrape(client).await;
    assert_eq!((state(&scraped, "awake"), state(&scraped, "weights_offloaded")), ([0.0; 2], [1.0; 2]));
    assert_eq!(client.get("/is_sleeping").await.json()["is_sleeping"], true);
    assert_eq!(client.get("/health").await.status, 200);
    // What comes meanwhile waits on both.
    let waiting: Vec<_> =
        (0..2).map(|number| tokio::spawn(async move { answer(client, &request(number, 8)).await })).collect();
    scrape_until(client, "two waiting", Duration::from_secs(10), |scrape| {
        by_engine(scrape, "vllm:num_requests_waiting").iter().sum::<f64>() == 2.0
    })
    .await;
    assert_eq!(tell(&server, "/wake_up").await, 200);
    for (waited, before) in waiting.into_iter().zip(&before) {
        assert_eq!(text(&waited.await.expect("no panic")), text(before));
    }
    let scraped = scrape(client).await;
    assert_eq!((state(&scraped, "awake"), state(&scraped, "weights_offloaded")), ([1.0; 2], [0.0; 2]));
}

#[tokio::test]
async fn a_drain_waits_for_the_requests_of_both_engines() {
    let server = two_engines(&slow_model()).start().await;
    let client = server.client();
    let mut streams = Vec::new();
    for number in 0..2 {
        let request = with(request(number, 30), json!({"stream": true}));
        let mut stream = client.stream(COMPLETIONS, &[], &request).await;
        stream.next().await.expect("it runs");
        streams.push(stream);
    }
    let running = scrape(client).await;
    assert_eq!(by_engine(&running, "vllm:num_requests_running"), [1.0, 1.0]);
    server.terminate();
    for stream in streams {
        assert_eq!(stream.chunks().await.finish_reasons(), ["length"]);
    }
    let ended = server.ended().await;
    assert!(ended.status.success(), "{}", ended.log);
}

#[tokio::test]
async fn spans_of_requests_and_of_steps_name_their_engine() {
    let receiver = OtlpReceiver::start().await;
    let server = two_engines(&tiny_model())
        .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(Transport::Grpc))
        .arg("--collect-detailed-traces", "all")
        .arg("--detailed-trace-step-ratio", "1")
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start()
        .await;
    for number in 0..2 {
        answer(server.client(), &request(number, 3)).await;
    }
    let engines = |received: &_, is_named: fn(&str) -> bool| {
        let spans = spans::all(received);
        let mut engines: Vec<i64> = spans
            .iter()
            .filter(|span| is_named(span.name()))
            .map(|span| span.int("limpid.engine.index").expect("always there"))
            .collect();
        engines.sort_unstable();
        engines.dedup();
        (engines == [0, 1]).then_some(())
    };
    for is_named in [|name: &str| name.starts_with("text_completion"), |name: &str| name == "engine.step"] {
        receiver
            .wait_for("spans of both engines", Duration::from_secs(30), |received| {
                engines(received, is_named)
            })
            .await;
    }
}

#[tokio::test]
async fn a_number_of_engines_that_cannot_be_is_refused_at_the_start() {
    for wrong in ["0", "17"] {
        let ended = Options::new(&tiny_model()).arg("--data-parallel-size", wrong).run().await;
        assert!(!ended.status.success());
        let expected = format!("--data-parallel-size is {wrong}; allowed: 1 to 16 engines");
        assert!(ended.log.contains(&expected), "{}", ended.log);
    }
    let ended = Options::command("serve")
        .plain(&tiny_model().display().to_string())
        .arg("--port", "0")
        .arg("--device", "cpu")
        .arg("--data-parallel-size", "4")
        .arg("--gpu-memory-utilization", "0.0001")
        .run()
        .await;
    assert!(!ended.status.success());
    assert!(ended.log.contains("available bytes may be used for each of 4 engines"), "{}", ended.log);
}
