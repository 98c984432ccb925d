//! The OpenAI contract, as clients see it: answers, streams, errors, disconnects, too much at once, and how the
//! process starts and ends.
//!
//! Everything runs against the real binary with a tiny random model, on the CPU device but for [`wgpu`].

#![allow(missing_docs)]

mod answers;
mod capacity;
mod choices;
mod data_parallel;
mod directory;
mod disconnects;
mod errors;
mod official_client;
mod prefix_cache;
mod shutdown;
mod sleep;
mod startup;
mod streams;
mod wgpu;

use std::time::Duration;

use limpid_tests::client::Client;
use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::server::{MODEL, Options, Server, tiny_model};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

async fn serve_tiny() -> Server {
    Options::new(&tiny_model()).start().await
}

/// A greedy chat request for this many tokens.
fn chat(max_tokens: u64) -> Value {
    json!({
        "model": MODEL, "messages": [{"role": "user", "content": "hello world"}],
        "max_tokens": max_tokens, "temperature": 0
    })
}

/// A greedy completion request for this many tokens.
fn completion(max_tokens: u64) -> Value {
    json!({"model": MODEL, "prompt": "hello world", "max_tokens": max_tokens, "temperature": 0})
}

/// The request with more fields.
fn with(mut request: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

async fn scrape(client: Client) -> Scrape {
    let reply = client.get("/metrics").await;
    assert_eq!(reply.status, 200);
    Scrape::parse(reply.text(), Format::Text004).unwrap_or_else(|broken| panic!("{broken}\n{}", reply.text()))
}

/// Scrapes until `check` holds. A scrape is answered from memory at any time, so this asks again at once and
/// only yields in between.
async fn scrape_until(
    client: Client,
    what: &str,
    timeout: Duration,
    check: impl Fn(&Scrape) -> bool,
) -> Scrape {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let scrape = scrape(client).await;
        if check(&scrape) {
            return scrape;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what} did not hold within {timeout:?}");
    }
}
