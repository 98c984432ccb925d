//! Streamed answers, chunk by chunk.

use std::collections::HashSet;

use limpid_tests::gaps::Gaps;
use limpid_tests::server::tiny_model;
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, chat, completion, serve_tiny, with};

#[tokio::test]
async fn usage_comes_once_in_a_last_chunk_without_choices_and_only_if_asked_for() {
    let server = serve_tiny().await;
    let mut gaps = Gaps::default();
    for (path, request) in [(CHAT, chat(5)), (COMPLETIONS, completion(5))] {
        let asked = with(request.clone(), json!({"stream": true, "stream_options": {"include_usage": true}}));
        let chunks = server.client().stream(path, &[], &asked).await.chunks().await.chunks;
        let (last, earlier) = chunks.split_last().expect("chunks");
        gaps.equal(format_args!("{path}: choices of the last chunk"), last["choices"].clone(), json!([]));
        gaps.equal(
            format_args!("{path}: its completion_tokens"),
            last["usage"]["completion_tokens"].clone(),
            json!(5),
        );
        for chunk in earlier {
            let null = chunk.get("usage").is_some_and(Value::is_null);
            gaps.expect(null, format_args!("{path}: an earlier chunk without usage: null: {chunk}"));
            gaps.equal(format_args!("{path}: choices"), chunk["choices"].as_array().map(Vec::len), Some(1));
        }

        let plain = with(request, json!({"stream": true}));
        let chunks = server.client().stream(path, &[], &plain).await.chunks().await.chunks;
        for chunk in &chunks {
            gaps.expect(chunk.get("usage").is_none(), format_args!("{path}: usage unasked: {chunk}"));
            gaps.equal(format_args!("{path}: choices"), chunk["choices"].as_array().map(Vec::len), Some(1));
        }
    }
    gaps.assert_none("stream_options.include_usage");
}

#[tokio::test]
async fn id_model_created_and_object_are_the_same_in_every_chunk() {
    let server = serve_tiny().await;
    for (path, request, object) in
        [(CHAT, chat(5), "chat.completion.chunk"), (COMPLETIONS, completion(5), "text_completion")]
    {
        let request = with(request, json!({"stream": true, "stream_options": {"include_usage": true}}));
        let stream = server.client().stream(path, &[], &request).await;
        let content_type = stream.headers["content-type"].to_str().unwrap().to_owned();
        assert!(content_type.starts_with("text/event-stream"), "{content_type}");
        let chunks = stream.chunks().await.chunks;
        for field in ["id", "model", "created", "object"] {
            let values: HashSet<String> = chunks.iter().map(|chunk| chunk[field].to_string()).collect();
            assert_eq!(values.len(), 1, "{field}: {values:?}");
            assert!(!values.contains("\"\"") && !values.contains("null"), "{field}: {values:?}");
        }
        assert_eq!(chunks[0]["object"], object);
    }
}

#[tokio::test]
async fn the_role_comes_first_and_the_finish_reason_last() {
    let server = serve_tiny().await;
    let chunks =
        server.client().stream(CHAT, &[], &with(chat(5), json!({"stream": true}))).await.chunks().await;
    assert_eq!(chunks.chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, earlier) = chunks.chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    for chunk in earlier {
        assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null, "{chunk}");
    }
}

#[tokio::test]
async fn characters_that_span_tokens_arrive_whole() {
    let server = serve_tiny().await;
    let client = server.client();
    let request = json!({"prompt": "🙂", "add_special_tokens": false});
    let ids = client.post("/tokenize", &request).await.json()["tokens"].clone();
    assert_eq!(ids.as_array().map(Vec::len), Some(4), "the fixture has one token for each byte");
    // Only the four bytes of 🙂 can be sampled, in any order: most of it is broken, some of it is 🙂.
    let ids = ids.as_array().unwrap().iter().map(|id| (id.to_string(), json!(100)));
    let bias: serde_json::Map<String, Value> = ids.collect();
    let mut smiles = 0;
    for seed in 0..8 {
        let request = with(
            chat(1000),
            json!({"stream": true, "temperature": 20, "top_k": 4, "seed": seed, "logit_bias": bias, "logprobs": true}),
        );
        let chunks = client.stream(CHAT, &[], &request).await.chunks().await;
        let entries = chunks.chunks.iter().flat_map(|chunk| {
            chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default()
        });
        let bytes: Vec<u8> = entries
            .flat_map(|entry| entry["bytes"].as_array().cloned().unwrap_or_default())
            .map(|byte| byte.as_u64().unwrap() as u8)
            .collect();
        assert_eq!(bytes.len(), 1000, "each token is a byte");
        let (text, whole) = (chunks.text(), String::from_utf8_lossy(&bytes).into_owned());
        // A character that never became whole is dropped at the end, where decoding all at once marks it.
        assert_eq!(text.trim_end_matches('\u{fffd}'), whole.trim_end_matches('\u{fffd}'), "seed {seed}");
        smiles += text.matches('🙂').count();
    }
    assert!(smiles > 0, "at least one character should have spanned four tokens");
}

#[tokio::test]
async fn eight_streams_at_once_carry_the_texts_they_carry_alone() {
    let server = limpid_tests::server::Options::new(&tiny_model()).arg("--max-num-seqs", "4").start().await;
    let client = server.client();
    let request = |index: u64| {
        let prompt = format!("hello {} world {}", "and the ".repeat(index as usize), index);
        with(completion(20 + index), json!({"prompt": prompt, "stream": true}))
    };
    let mut alone = Vec::new();
    for index in 0..8 {
        alone.push(client.stream(COMPLETIONS, &[], &request(index)).await.chunks().await.text());
    }
    let together = (0..8).map(|index| {
        let request = request(index);
        async move { client.stream(COMPLETIONS, &[], &request).await.chunks().await.text() }
    });
    let together = futures::future::join_all(together).await;
    assert_eq!(together, alone);
}
