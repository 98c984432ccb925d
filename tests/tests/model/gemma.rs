//! Gemma 3 270M against llama.cpp: `tests/data/gemma.json`, made by `scripts/gemma-golden.py`.
//!
//! A continuation is compared piece by piece: where llama.cpp's two best logits are close, the next piece begins
//! behind its choice. One prompt is longer than the window of the model's local layers.

use std::path::PathBuf;

use limpid_tests::environment::{has_wgpu_adapter, known_model};
use limpid_tests::gaps::Gaps;
use limpid_tests::server::{MODEL, Options, Server};
use serde::Deserialize;
use serde_json::{Value, json};

use super::detokenize;

const GEMMA: &str = "gemma-3-270m";

/// llama.cpp rounds activations to 8 bits; logits closer than this may come out in another order.
const MARGIN: f64 = 0.5;

#[derive(Deserialize)]
struct Golden {
    greedy: Vec<Continuation>,
    tokens: Vec<Tokens>,
}

#[derive(Deserialize)]
struct Continuation {
    prompt_ids: Vec<u64>,
    output_ids: Vec<u64>,
    margins: Vec<f64>,
}

#[derive(Deserialize)]
struct Tokens {
    text: String,
    prompt: Vec<u64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../data/gemma.json"))
        .expect("gemma.json should be as the script says")
}

impl Continuation {
    /// Runs of outputs that are clear choices, each with all ids before it.
    fn pieces(&self) -> Vec<(Vec<u64>, &[u64])> {
        let (mut pieces, mut first) = (Vec::new(), 0);
        for run in self.margins.split(|margin| *margin <= MARGIN) {
            if !run.is_empty() {
                let before = [&self.prompt_ids[..], &self.output_ids[..first]].concat();
                pieces.push((before, &self.output_ids[first..first + run.len()]));
            }
            first += run.len() + 1;
        }
        pieces
    }
}

/// Prompts longer than the window are computed in chunks, so that it slides within a prompt.
async fn serve(device: &str, model: PathBuf) -> Server {
    let limits = ["--max-model-len", "1024", "--max-num-batched-tokens", "128"];
    let options = Options::new(&model).arg("--device", device);
    limits.chunks(2).fold(options, |options, pair| options.arg(pair[0], pair[1])).start().await
}

async fn complete(server: &Server, ids: &[u64], count: usize) -> String {
    let request = json!({
        "model": MODEL, "prompt": ids, "max_tokens": count, "temperature": 0, "skip_special_tokens": false
    });
    let reply = server.client().post("/v1/completions", &request).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned()
}

async fn check_device(device: &str, model: PathBuf) {
    let server = serve(device, model).await;
    let mut gaps = Gaps::default();
    let (mut compared, golden) = (0, golden());
    for (before, wanted) in golden.greedy.iter().flat_map(Continuation::pieces) {
        let found = complete(&server, &before, wanted.len()).await;
        gaps.equal(format_args!("after {} ids", before.len()), found, detokenize(&server, wanted).await);
        compared += wanted.len();
    }
    assert!(compared >= 120, "{compared} tokens to compare are few");
    assert!(golden.greedy.iter().any(|entry| entry.prompt_ids.len() > 512), "no prompt outgrows the window");
    gaps.assert_none(device);
}

#[tokio::test]
async fn gemma_continues_as_llama_cpp_does_on_the_cpu_device() {
    let Some(model) = known_model(GEMMA) else { return };
    check_device("cpu", model).await;
}

#[tokio::test]
async fn gemma_continues_as_llama_cpp_does_on_wgpu() {
    let Some(model) = known_model(GEMMA) else { return };
    if !has_wgpu_adapter() {
        return;
    }
    check_device("wgpu", model).await;
}

#[tokio::test]
async fn gemmas_ids_of_texts_are_llama_cpps() {
    let Some(model) = known_model(GEMMA) else { return };
    let server = serve("cpu", model).await;
    let mut gaps = Gaps::default();
    for Tokens { text, prompt } in golden().tokens.iter().filter(|tokens| !tokens.text.is_empty()) {
        let request = json!({"model": MODEL, "prompt": text});
        let answer: Value = server.client().post("/tokenize", &request).await.json();
        gaps.equal(format_args!("ids of {text:?}"), answer["tokens"].clone(), json!(prompt));
    }
    gaps.assert_none("gemma's tokenizer");
}
