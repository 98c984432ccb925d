//! Whole answers: shapes, limits, log-probabilities, tokenisation.

use limpid_tests::gaps::Gaps;
use limpid_tests::server::MODEL;
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, chat, completion, serve_tiny, with};

#[tokio::test]
async fn models_lists_what_is_served_and_only_that() {
    let server = serve_tiny().await;
    let list = server.client().get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [MODEL]);
    assert_eq!(server.client().get(&format!("/v1/models/{MODEL}")).await.json()["id"], MODEL);
    assert_eq!(server.client().get("/v1/models/other").await.status, 404);
}

#[tokio::test]
async fn a_chat_answer_has_openais_shape_and_its_usage_adds_up() {
    let server = serve_tiny().await;
    let reply = server.client().post(CHAT, &chat(6)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    let mut gaps = Gaps::default();
    gaps.equal("object", answer["object"].clone(), json!("chat.completion"));
    gaps.equal("model", answer["model"].clone(), json!(MODEL));
    gaps.expect(
        answer["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")),
        "id begins with chatcmpl-",
    );
    gaps.expect(
        answer["created"].as_u64().is_some_and(|created| created > 1_700_000_000),
        "created is Unix time",
    );
    gaps.equal("choices", answer["choices"].as_array().map(Vec::len), Some(1));
    let choice = &answer["choices"][0];
    gaps.equal("role", choice["message"]["role"].clone(), json!("assistant"));
    gaps.expect(
        choice["message"]["content"].as_str().is_some_and(|text| !text.is_empty()),
        "content is text",
    );
    gaps.equal("finish_reason", choice["finish_reason"].clone(), json!("length"));
    gaps.equal("logprobs", choice["logprobs"].clone(), Value::Null);
    let usage = &answer["usage"];
    gaps.equal("completion_tokens", usage["completion_tokens"].clone(), json!(6));
    let total = usage["prompt_tokens"].as_u64().zip(usage["completion_tokens"].as_u64()).map(|(a, b)| a + b);
    gaps.equal("total_tokens", usage["total_tokens"].as_u64(), total);
    gaps.assert_none(answer);
}

#[tokio::test]
async fn a_completion_answer_has_openais_shape() {
    let server = serve_tiny().await;
    let answer = server.client().post(COMPLETIONS, &completion(5)).await.json();
    assert_eq!(answer["object"], "text_completion");
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(answer["choices"][0]["text"].is_string());
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn greedy_answers_repeat_and_streams_carry_the_same_text() {
    let server = serve_tiny().await;
    let client = server.client();
    for (path, request) in [(CHAT, chat(24)), (COMPLETIONS, completion(24))] {
        let text = |answer: Value| {
            let choice = &answer["choices"][0];
            choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned()
        };
        let first = text(client.post(path, &request).await.json());
        assert_eq!(text(client.post(path, &request).await.json()), first);
        let streamed = client.stream(path, &[], &with(request, json!({"stream": true}))).await.chunks().await;
        assert_eq!(streamed.text(), first);
    }
}

#[tokio::test]
async fn a_seed_makes_sampling_repeatable() {
    let server = serve_tiny().await;
    let sampled = |seed: i64| {
        let request = with(completion(24), json!({"temperature": 1.0, "seed": seed}));
        let client = server.client();
        async move { client.post(COMPLETIONS, &request).await.json()["choices"][0]["text"].to_string() }
    };
    assert_eq!(sampled(1).await, sampled(1).await);
    assert_ne!(sampled(1).await, sampled(2).await);
}

#[tokio::test]
async fn both_names_of_the_token_limit_count_and_the_new_one_wins() {
    let server = serve_tiny().await;
    let mut gaps = Gaps::default();
    for (limits, wanted) in [
        (json!({"max_tokens": 3}), 3),
        (json!({"max_tokens": null, "max_completion_tokens": 5}), 5),
        (json!({"max_tokens": 9, "max_completion_tokens": 5}), 5),
    ] {
        let answer = server.client().post(CHAT, &with(chat(1), limits.clone())).await.json();
        gaps.equal(limits, answer["usage"]["completion_tokens"].clone(), json!(wanted));
    }
    gaps.assert_none("max_completion_tokens wins over max_tokens");
}

#[tokio::test]
async fn null_means_absent_for_every_optional_field() {
    let server = serve_tiny().await;
    let mut gaps = Gaps::default();
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    let plain = server.client().post(CHAT, &chat(8)).await.json();
    for field in [
        "stream",
        "stream_options",
        "max_completion_tokens",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "min_tokens",
        "user",
        "tools",
        "tool_choice",
        "response_format",
        "metadata",
        "priority",
        "model",
    ] {
        let reply = server.client().post(CHAT, &with(chat(8), json!({field: null}))).await;
        gaps.expect(
            reply.status == 200,
            format_args!("{field}: null answers {}: {}", reply.status, reply.text()),
        );
        if reply.status == 200 {
            gaps.equal(format_args!("text with {field}: null"), text(&reply.json()), text(&plain));
        }
    }
    gaps.assert_none("null is the same as leaving the field out");
}

#[tokio::test]
async fn chat_logprobs_have_the_chat_shape_and_spell_the_text() {
    let server = serve_tiny().await;
    let answer = server.client().post(CHAT, &with(chat(12), json!({"logprobs": true}))).await.json();
    let choice = &answer["choices"][0];
    let entries = choice["logprobs"]["content"].as_array().expect("logprobs.content");
    assert_eq!(entries.len(), 12);
    let mut bytes = Vec::new();
    for entry in entries {
        assert!(entry["token"].is_string() && entry["logprob"].as_f64().unwrap() <= 0.0, "{entry}");
        assert_eq!(entry["top_logprobs"], json!([]), "top_logprobs was not asked for");
        bytes.extend(entry["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8));
    }
    // A text that ends within a character lacks that character's bytes; the log-probabilities have them.
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(
        String::from_utf8_lossy(&bytes).starts_with(text.trim_end_matches('\u{fffd}')),
        "{text:?} {bytes:?}"
    );

    let asked = with(chat(4), json!({"logprobs": true, "top_logprobs": 3}));
    let answer = server.client().post(CHAT, &asked).await.json();
    for entry in answer["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(top.is_sorted_by(|a, b| a["logprob"].as_f64() >= b["logprob"].as_f64()), "{entry}");
        assert_eq!(top[0]["logprob"], entry["logprob"], "a greedy token is the most probable one");
    }
}

#[tokio::test]
async fn completion_logprobs_are_columns_of_one_length() {
    let server = serve_tiny().await;
    let answer = server.client().post(COMPLETIONS, &with(completion(7), json!({"logprobs": 0}))).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    for column in ["tokens", "token_logprobs", "text_offset"] {
        assert_eq!(logprobs[column].as_array().map(Vec::len), Some(7), "{column} in {logprobs}");
    }
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it_across_token_borders() {
    let server = serve_tiny().await;
    let whole = server.client().post(COMPLETIONS, &completion(40)).await.json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    // Characters 10 to 13 of the text: with single bytes as tokens they come from several tokens.
    let characters: Vec<char> = text.chars().filter(|c| *c != '\u{fffd}').collect();
    let stop: String = characters[10..13].iter().collect();
    let wanted = &text[..text.find(&stop).expect("the stop string is in the text")];

    for stream in [false, true] {
        let request = with(completion(40), json!({"stop": [stop], "stream": stream}));
        let (found, reason) = if stream {
            let chunks = server.client().stream(COMPLETIONS, &[], &request).await.chunks().await;
            (chunks.text(), chunks.finish_reasons().join(","))
        } else {
            let answer = server.client().post(COMPLETIONS, &request).await.json();
            let choice = &answer["choices"][0];
            (
                choice["text"].as_str().unwrap().to_owned(),
                choice["finish_reason"].as_str().unwrap().to_owned(),
            )
        };
        assert_eq!(found, wanted, "stream {stream}");
        assert_eq!(reason, "stop");
    }
}

#[tokio::test]
async fn tokenize_and_detokenize_are_each_others_inverse() {
    let server = serve_tiny().await;
    let client = server.client();
    for text in ["hello world", "", "naïve 🙂 日本語\n\ttabs", "<|im_start|>user\nhi<|im_end|>"] {
        let request = json!({"model": MODEL, "prompt": text, "add_special_tokens": false});
        let tokens = client.post("/tokenize", &request).await.json();
        assert_eq!(tokens["count"].as_u64(), tokens["tokens"].as_array().map(|tokens| tokens.len() as u64));
        assert!(tokens["max_model_len"].is_u64(), "{tokens}");
        let back =
            client.post("/detokenize", &json!({"model": MODEL, "tokens": tokens["tokens"]})).await.json();
        assert_eq!(back["prompt"], text);
    }
}

#[tokio::test]
async fn tokenize_counts_what_chat_is_billed() {
    let server = serve_tiny().await;
    let messages = chat(1)["messages"].clone();
    let tokens =
        server.client().post("/tokenize", &json!({"model": MODEL, "messages": messages})).await.json();
    let answer = server.client().post(CHAT, &chat(1)).await.json();
    assert_eq!(tokens["count"], answer["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn a_prompt_of_token_ids_is_the_prompt_of_its_text() {
    let server = serve_tiny().await;
    let client = server.client();
    let request = json!({"model": MODEL, "prompt": "hello world"});
    let tokens = client.post("/tokenize", &request).await.json()["tokens"].clone();
    let by_text = client.post(COMPLETIONS, &completion(8)).await.json();
    let by_ids = client.post(COMPLETIONS, &with(completion(8), json!({"prompt": tokens}))).await.json();
    assert_eq!(by_ids["choices"][0]["text"], by_text["choices"][0]["text"]);
    assert_eq!(by_ids["usage"]["prompt_tokens"], by_text["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn probes_answer_and_the_version_names_the_device() {
    let server = serve_tiny().await;
    assert_eq!(server.client().get("/health").await.status, 200);
    assert_eq!(server.client().get("/ping").await.status, 200);
    let version = server.client().get("/version").await.json();
    assert!(version["version"].is_string(), "{version}");
    assert_eq!(version["device"]["kind"], "cpu", "{version}");
}
