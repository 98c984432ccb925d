//! Real models' greedy texts, on every device: the default model's, alone and in company, and in [`gemma`] those of
//! a model with windows.
//!
//! `tests/data/greedy.json` was computed in f32 on the dequantised weights. A token is compared as long as the
//! two best logits at its position, and at all before it, differ by more than [`MARGIN`].

#![allow(missing_docs)]

mod gemma;

use std::path::PathBuf;

use limpid_tests::environment::{default_model, has_wgpu_adapter};
use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::gaps::Gaps;
use limpid_tests::server::{MODEL, Options, Server};
use serde_json::{Value, json};

/// Logits closer than this may be ordered otherwise by another order of summation.
const MARGIN: f64 = 0.05;

/// What the golden continuations end with, where they end before their limit.
const END_TOKEN: &str = "<|im_end|>";

/// A golden continuation.
struct Golden {
    prompt: String,
    prompt_ids: Vec<u64>,
    output_ids: Vec<u64>,
    /// Outputs up to the first close call.
    comparable: usize,
}

fn golden() -> Vec<Golden> {
    let text = include_str!("../../data/greedy.json");
    let entries: Value = serde_json::from_str(text).expect("greedy.json should be JSON");
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
    };
    let ids = |value: &Value| numbers(value).into_iter().map(|id| id as u64).collect();
    let golden: Vec<Golden> = entries
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| Golden {
            prompt: entry["prompt"].as_str().expect("a prompt").to_owned(),
            prompt_ids: ids(&entry["prompt_ids"]),
            output_ids: ids(&entry["output_ids"]),
            comparable: numbers(&entry["margins"]).iter().take_while(|margin| **margin > MARGIN).count(),
        })
        .collect();
    assert!(golden.iter().map(|golden| golden.comparable).sum::<usize>() >= 50, "something to compare");
    golden
}

async fn serve(device: &str, model: PathBuf) -> Server {
    Options::new(&model).arg("--device", device).start().await
}

async fn detokenize(server: &Server, ids: &[u64]) -> String {
    let answer = server.client().post("/detokenize", &json!({"model": MODEL, "tokens": ids})).await.json();
    answer["prompt"].as_str().expect("a text").to_owned()
}

/// The answer's text to a golden prompt.
async fn complete(server: &Server, golden: &Golden) -> String {
    let request = json!({
        "model": MODEL, "prompt": golden.prompt, "max_tokens": golden.output_ids.len(), "temperature": 0,
        "skip_special_tokens": false
    });
    let reply = server.client().post("/v1/completions", &request).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned()
}

async fn check_device(device: &str, model: PathBuf) {
    let server = serve(device, model).await;
    let version = server.client().get("/version").await.json();
    assert_eq!(version["device"]["kind"], device, "{version}");
    let mut gaps = Gaps::default();
    for golden in golden() {
        let prompt = json!({"model": MODEL, "prompt": golden.prompt});
        let tokens = server.client().post("/tokenize", &prompt).await.json();
        gaps.equal(
            format_args!("ids of {:?}", golden.prompt),
            tokens["tokens"].clone(),
            json!(golden.prompt_ids),
        );

        let wanted = detokenize(&server, &golden.output_ids[..golden.comparable]).await;
        // A cut within a character leaves a mark where the text goes on; the end token itself is no text.
        let (wanted, ends) = match wanted.split_once(END_TOKEN) {
            Some((wanted, _)) => (wanted, true),
            None => (wanted.trim_end_matches('\u{fffd}'), false),
        };
        let found = complete(&server, &golden).await;
        gaps.expect(
            if ends { found == wanted } else { found.starts_with(wanted) },
            format_args!("{:?} continues with\n    {found:?}, wanted\n    {wanted:?}", golden.prompt),
        );
    }
    gaps.assert_none(version);
}

#[tokio::test]
async fn greedy_text_on_the_cpu_device_is_the_exact_one() {
    let Some(model) = default_model() else { return };
    check_device("cpu", model).await;
}

#[tokio::test]
async fn greedy_text_on_wgpu_is_the_exact_one() {
    let Some(model) = default_model() else { return };
    if !has_wgpu_adapter() {
        return;
    }
    check_device("wgpu", model).await;
}

async fn check_company(device: &str, model: PathBuf) {
    let server = serve(device, model).await;
    let client = server.client();
    let request = |index: usize| {
        let question = [
            "What is a lighthouse for?",
            "Name three rivers.",
            "Write one sentence about rain.",
            "What is two plus two?",
            "Describe a cat in five words.",
            "Why is the sky blue?",
            "Give me a rhyme for blue.",
            "How do bees make honey?",
        ][index];
        json!({
            "model": MODEL, "messages": [{"role": "user", "content": question}],
            "max_tokens": 12 + 2 * index, "temperature": 0, "stream": true
        })
    };
    let mut alone = Vec::new();
    for index in 0..8 {
        alone.push(client.stream("/v1/chat/completions", &[], &request(index)).await.chunks().await.text());
    }
    let together = (0..8).map(|index| async move {
        client.stream("/v1/chat/completions", &[], &request(index)).await.chunks().await.text()
    });
    let together = futures::future::join_all(together).await;
    let mut gaps = Gaps::default();
    for (index, (alone, together)) in alone.iter().zip(&together).enumerate() {
        gaps.expect(!alone.is_empty(), format_args!("answer {index} is empty"));
        gaps.equal(format_args!("answer {index}"), together, alone);
    }
    gaps.assert_none("eight clients at once get the texts they get alone");
}

#[tokio::test]
async fn eight_clients_get_the_texts_they_get_alone_on_the_cpu_device() {
    let Some(model) = default_model() else { return };
    check_company("cpu", model).await;
}

#[tokio::test]
async fn eight_clients_get_the_texts_they_get_alone_on_wgpu() {
    let Some(model) = default_model() else { return };
    if !has_wgpu_adapter() {
        return;
    }
    check_company("wgpu", model).await;
}

/// On a pool for two of four sequences: texts as in a pool for all of them.
async fn check_preemption(device: &str, model: PathBuf) {
    let options = Options::new(&model).arg("--device", device).arg("--max-model-len", "128");
    let request = |index: usize| {
        let question =
            ["Tell me about rivers.", "Tell me about bees.", "Tell me about ships.", "Tell me a story."];
        json!({
            "model": MODEL, "prompt": question[index], "max_tokens": 80, "temperature": 0, "ignore_eos": true
        })
    };
    let text = |answer: Value| answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    let mut texts = Vec::new();
    for blocks in ["65", "17"] {
        let server = options.clone().arg("--num-gpu-blocks-override", blocks).start().await;
        let client = server.client();
        let answers =
            (0..4).map(|index| async move { client.post("/v1/completions", &request(index)).await.json() });
        let answers = futures::future::join_all(answers).await;
        let queries: u64 =
            answers.iter().filter_map(|answer| answer["usage"]["prompt_tokens"].as_u64()).sum();
        texts.push(answers.into_iter().map(text).collect::<Vec<_>>());
        let metrics = client.get("/metrics").await;
        let metrics = Scrape::parse(metrics.text(), Format::Text004).expect("well-formed");
        let preempted = metrics.value("vllm:num_preemptions_total", &[]) > 0.0;
        assert_eq!(preempted, blocks == "17", "preemptions with {blocks} blocks");
        assert_eq!(metrics.value("vllm:prefix_cache_queries_total", &[]), queries as f64);
        assert_eq!(metrics.value("vllm:prefix_cache_hits_total", &[]), 0.0, "resumed requests hit unseen");
    }
    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn preempted_requests_say_what_unhurried_ones_say_on_the_cpu_device() {
    let Some(model) = default_model() else { return };
    check_preemption("cpu", model).await;
}

#[tokio::test]
async fn the_wgpu_trace_has_the_devices_own_forward_time() {
    use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
    use limpid_tests::spans;

    let Some(model) = default_model() else { return };
    if !has_wgpu_adapter() {
        return;
    }
    let receiver = OtlpReceiver::start().await;
    let server = Options::new(&model)
        .arg("--device", "wgpu")
        .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(Transport::Grpc))
        .arg("--collect-detailed-traces", "all")
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start()
        .await;
    let request = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "What is a lighthouse for?"}],
        "max_tokens": 8, "temperature": 0, "stream": true
    });
    server.client().stream("/v1/chat/completions", &[], &request).await.chunks().await;
    let span = receiver
        .wait_for("the model span", std::time::Duration::from_secs(30), |received| {
            let spans = spans::all(received);
            spans.into_iter().find(|span| span.attribute("gen_ai.operation.name").is_some())
        })
        .await;
    let latency = |name: &str| span.double(&format!("gen_ai.latency.{name}"));
    let forward = latency("time_in_model_forward").expect("lavapipe and GPUs have timestamps");
    let execute = latency("time_in_model_execute").expect("asked for");
    let inference = latency("time_in_model_inference").expect("it made tokens");
    assert!(0.0 < forward && forward <= execute && execute <= inference, "{forward} {execute} {inference}");
}
