//! The prefix cache as clients and operators see it.

use http::Method;
use limpid_tests::exposition::Scrape;
use limpid_tests::server::{Options, Server, slow_model, tiny_model};
use serde_json::{Value, json};

use crate::{COMPLETIONS, completion, scrape, with};

const BLOCK: u64 = 16;

fn request(max_tokens: u64) -> Value {
    let prompt: Vec<u64> = (0..4 * BLOCK + 3).map(|position| 40 + position % 50).collect();
    with(completion(max_tokens), json!({"prompt": prompt}))
}

async fn cached_tokens(server: &Server) -> u64 {
    let answer = server.client().post(COMPLETIONS, &request(2)).await.json();
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("cached_tokens")
}

async fn reset(server: &Server, query: &str) -> u16 {
    let path = format!("/reset_prefix_cache{query}");
    server.client().request(Method::POST, &path, &[], Default::default()).await.status.as_u16()
}

#[tokio::test]
async fn a_prompt_of_four_blocks_and_three_computes_three_tokens_the_second_time() {
    let server = Options::new(&tiny_model()).start().await;
    assert_eq!(cached_tokens(&server).await, 0);
    assert_eq!(cached_tokens(&server).await, 4 * BLOCK);
    let scrape = scrape(server.client()).await;
    let source = |source| scrape.value("vllm:prompt_tokens_by_source_total", &[("source", source)]);
    let whole = 4.0 * BLOCK as f64;
    assert_eq!((source("local_compute"), source("local_cache_hit")), (whole + 3.0 + 3.0, whole));
    assert_eq!(scrape.value("vllm:prefix_cache_hits_total", &[]), whole);
    assert_eq!(scrape.histogram("vllm:request_prefill_kv_computed_tokens").sum, whole + 6.0);
}

#[tokio::test]
async fn after_a_reset_nothing_is_cached() {
    let server = Options::new(&tiny_model()).start().await;
    cached_tokens(&server).await;
    assert_eq!(reset(&server, "").await, 200);
    assert_eq!(cached_tokens(&server).await, 0);
    assert_eq!(cached_tokens(&server).await, 4 * BLOCK);
}

#[tokio::test]
async fn a_forced_reset_lets_running_requests_go_on_as_if_nothing_had_been() {
    let server = Options::new(&slow_model()).start().await;
    let client = server.client();
    let wanted = client.post(COMPLETIONS, &request(60)).await.json()["choices"][0]["text"].clone();
    let mut stream = client.stream(COMPLETIONS, &[], &with(request(60), json!({"stream": true}))).await;
    let mut text = String::new();
    let mut chunks = 0;
    while let Some(data) = stream.next().await.filter(|data| data != "[DONE]") {
        let chunk: Value = serde_json::from_str(&data).expect("JSON");
        text.push_str(chunk["choices"][0]["text"].as_str().expect("a text"));
        chunks += 1;
        if chunks == 3 {
            assert_eq!(reset(&server, "").await, 409, "a request runs");
            assert_eq!(reset(&server, "?reset_running_requests=true").await, 200);
        }
    }
    assert_eq!(json!(text), wanted);
    let scrape = scrape(client).await;
    assert_eq!(scrape.value("vllm:num_preemptions_total", &[]), 1.0);
    assert_eq!(scrape.value("vllm:prefix_cache_queries_total", &[]), 2.0 * 67.0);
    assert_eq!(scrape.histogram("vllm:request_num_preemptions").sum, 1.0);
}

#[tokio::test]
async fn prompts_that_share_less_than_a_block_hit_nothing() {
    let server = Options::new(&tiny_model()).arg("--block-size", "32").start().await;
    let client = server.client();
    let shared = 40..40 + 31;
    for last in [90, 91] {
        let prompt: Vec<u64> = shared.clone().chain([last]).collect();
        let answer = client.post(COMPLETIONS, &with(completion(2), json!({"prompt": prompt}))).await.json();
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    let scrape = scrape(client).await;
    assert_eq!(scrape.value("vllm:prefix_cache_hits_total", &[]), 0.0);
    assert_eq!(scrape.value("vllm:prefix_cache_queries_total", &[]), 64.0);
    let labels = &scrape.family("vllm:cache_config_info").samples[0].labels;
    assert_eq!(labels["block_size"], "32", "the block size in use says why");
    let num_blocks: u64 = labels["num_gpu_blocks"].parse().expect("a number");
    let tokens = format!("{num_blocks} blocks of 32 tokens = {} tokens", num_blocks * 32);
    assert!(server.log().contains(&tokens), "{tokens} in\n{}", server.log());
}

#[tokio::test]
async fn what_is_computed_again_after_a_preemption_is_no_hit() {
    // Room for three or four of fifty sequences.
    let server = Options::new(&tiny_model())
        .arg("--max-model-len", "128")
        .arg("--num-gpu-blocks-override", "17")
        .start()
        .await;
    let client = server.client();
    // Different in the first token, so that no two share a block.
    let requests = (0..50u64).map(|index| async move {
        let prompt: Vec<u64> =
            [40 + index].into_iter().chain((0..30).map(|n| 40 + (index + n * n) % 60)).collect();
        let request = with(completion(60), json!({"prompt": prompt}));
        assert_eq!(client.post(COMPLETIONS, &request).await.status, 200);
    });
    futures::future::join_all(requests).await;
    let scrape = scrape(client).await;
    assert!(scrape.value("vllm:num_preemptions_total", &[]) > 0.0, "the pool was too small");
    assert_eq!(scrape.value("vllm:prefix_cache_hits_total", &[]), 0.0);
    assert_eq!(scrape.value("vllm:prefix_cache_queries_total", &[]), 50.0 * 31.0);
}

#[tokio::test]
async fn cache_usage_is_the_share_of_blocks_that_a_running_request_holds() {
    let server = Options::new(&slow_model()).arg("--num-gpu-blocks-override", "513").start().await;
    let client = server.client();
    let request = with(request(4000), json!({"stream": true}));
    let mut stream = client.stream(COMPLETIONS, &[], &request).await;
    let mut seen = 0;
    for _ in 0..150 {
        stream.next().await.expect("it runs on");
        let scrape = scrape(client).await;
        let known = 4 * BLOCK + 3 + scrape.value("vllm:generation_tokens_total", &[]) as u64;
        let held = (scrape.value("vllm:kv_cache_usage_perc", &[]) * 512.0).round() as u64;
        assert!(held.abs_diff(known.div_ceil(BLOCK)) <= 1, "{held} blocks held by {known} tokens");
        seen = seen.max(held);
    }
    assert!(seen >= 8, "{seen} blocks");
}

#[tokio::test]
async fn blocks_tell_how_long_they_kept_their_contents() {
    // Eight blocks, of which a request takes four at the most.
    let options =
        Options::new(&tiny_model()).arg("--max-model-len", "64").arg("--num-gpu-blocks-override", "9");
    let families = ["vllm:kv_block_lifetime_seconds", "vllm:kv_block_idle_before_evict_seconds"];
    let gaps = "vllm:kv_block_reuse_gap_seconds";
    let unwatched = options.clone().start().await;
    let names = scrape(unwatched.client()).await.families;
    assert!(!names.contains_key(gaps) && families.iter().all(|family| !names.contains_key(*family)));

    let server = options.plain("--kv-cache-metrics").arg("--kv-cache-metrics-sample", "1").start().await;
    let client = server.client();
    let ask = |first: u64| async move {
        let prompt: Vec<u64> = (0..2 * BLOCK + 3).map(|position| 40 + (first + position) % 60).collect();
        let answer = client.post(COMPLETIONS, &with(completion(2), json!({"prompt": prompt}))).await.json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("cached_tokens")
    };
    assert_eq!([ask(0).await, ask(0).await, ask(0).await], [0, 2 * BLOCK, 2 * BLOCK]);
    let scraped = scrape(client).await;
    let count = |scrape: &Scrape, family| scrape.histogram(family).count;
    // Only the block behind the prompt's full ones was handed out again, twice.
    assert_eq!((count(&scraped, families[0]), count(&scraped, gaps)), (2.0, 0.0));
    // Each takes three blocks and leaves two with contents, so the last two overwrite those of the first.
    for first in [1, 2, 3, 4] {
        assert_eq!(ask(first).await, 0);
    }
    let scraped = scrape(client).await;
    let [lifetime, idle] = families.map(|family| scraped.histogram(family));
    assert_eq!(lifetime.count, idle.count);
    assert!(lifetime.count >= 4.0, "{lifetime:?}");
    assert!(0.0 < idle.sum && idle.sum < lifetime.sum, "{idle:?} {lifetime:?}");
    // Two blocks were hit twice: one gap each.
    assert_eq!(count(&scraped, gaps), 2.0);
}
