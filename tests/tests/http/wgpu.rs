//! What frees and fills the device's memory, on a wgpu adapter.

use http::Method;
use limpid_tests::client::Client;
use limpid_tests::environment::has_wgpu_adapter;
use limpid_tests::server::{Options, Server, slow_model, tiny_model};
use serde_json::{Value, json};

use crate::{COMPLETIONS, completion, scrape, with};

fn on_wgpu(model: &std::path::Path) -> Options {
    Options::new(model).arg("--device", "wgpu")
}

fn request(number: u64, max_tokens: u64) -> Value {
    let prompt: Vec<u64> = (0..20).map(|position| 40 + (7 * number + position * position) % 60).collect();
    with(completion(max_tokens), json!({"prompt": prompt}))
}

async fn text(client: Client, request: &Value) -> String {
    let answer = client.post(COMPLETIONS, request).await.json();
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

async fn together(client: Client, count: u64) -> Vec<String> {
    let requests = (0..count).map(|number| async move { text(client, &request(number, 40)).await });
    futures::future::join_all(requests).await
}

async fn tell(server: &Server, path: &str) {
    let reply = server.client().request(Method::POST, path, &[], Default::default()).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
}

#[tokio::test]
async fn preempted_requests_get_the_texts_they_get_alone() {
    if !has_wgpu_adapter() {
        return;
    }
    // A sequence of the greatest length takes 4 blocks; one more is the null block.
    let options = on_wgpu(&tiny_model()).arg("--max-model-len", "64");
    let roomy = options.clone().arg("--num-gpu-blocks-override", "65").start().await;
    let mut alone = Vec::new();
    for number in 0..12 {
        alone.push(text(roomy.client(), &request(number, 40)).await);
    }
    let tight = options.arg("--num-gpu-blocks-override", "9").start().await;
    assert_eq!(together(tight.client(), 12).await, alone);
    let scrape = scrape(tight.client()).await;
    assert!(scrape.value("vllm:num_preemptions_total", &[]) > 0.0, "the pool was too small");
}

#[tokio::test]
async fn sleep_gives_the_devices_memory_back_and_changes_no_text() {
    if !has_wgpu_adapter() {
        return;
    }
    let server = on_wgpu(&slow_model()).start().await;
    let client = server.client();
    let before = text(client, &request(0, 20)).await;
    let is_software = client.get("/version").await.json()["device"]["type"] == "Cpu";
    for level in [1, 2] {
        let awake = server.resident_bytes();
        tell(&server, &format!("/sleep?level={level}")).await;
        let asleep = server.resident_bytes();
        // A software adapter's memory is the host's. The weights alone are 20 MB.
        assert!(!is_software || asleep + 10_000_000 < awake, "level {level}: {awake} awake, {asleep} asleep");
        tell(&server, "/wake_up").await;
        assert_eq!(text(client, &request(0, 20)).await, before, "level {level}");
    }
    let mut stream = client.stream(COMPLETIONS, &[], &with(request(0, 20), json!({"stream": true}))).await;
    let first: Value = serde_json::from_str(&stream.next().await.expect("it runs")).expect("JSON");
    tell(&server, "/sleep?level=2&mode=keep").await;
    tell(&server, "/wake_up").await;
    let text =
        first["choices"][0]["text"].as_str().expect("a text").to_owned() + &stream.chunks().await.text();
    assert_eq!(text, before, "what was kept is computed again");
}

#[tokio::test]
async fn engines_that_share_an_adapter_say_what_one_says() {
    if !has_wgpu_adapter() {
        return;
    }
    let one = on_wgpu(&tiny_model()).start().await;
    let two = on_wgpu(&tiny_model()).arg("--data-parallel-size", "2").start().await;
    assert_eq!(together(two.client(), 8).await, together(one.client(), 8).await);
    let scrape = scrape(two.client()).await;
    for engine in ["0", "1"] {
        assert!(scrape.value("vllm:request_success_total", &[("engine", engine)]) > 0.0, "engine {engine}");
    }
}
