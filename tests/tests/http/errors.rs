//! Every refusal has OpenAI's error object and the right status.

use bytes::Bytes;
use http::Method;
use limpid_tests::client::Reply;
use limpid_tests::gaps::Gaps;
use limpid_tests::server::{CONTEXT_LENGTH, MODEL, Options, tiny_model};
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, chat, completion, serve_tiny, with};

/// Notes everything in which a reply differs from OpenAI's error object.
fn expect_error(gaps: &mut Gaps, what: &str, reply: &Reply, status: u16, code: Option<&str>) {
    gaps.equal(format_args!("{what}: status"), reply.status.as_u16(), status);
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else {
        gaps.note(format_args!("{what}: the body is not JSON: {}", reply.text()));
        return;
    };
    let error = &body["error"];
    let message = error["message"].as_str();
    gaps.expect(message.is_some_and(|text| !text.is_empty()), format_args!("{what}: no message: {body}"));
    gaps.expect(error["type"].is_string(), format_args!("{what}: no type: {body}"));
    for field in ["param", "code"] {
        let value = error.get(field);
        gaps.expect(
            value.is_some_and(|value| value.is_null() || value.is_string()),
            format_args!("{what}: {field} is {value:?}"),
        );
    }
    if code.is_some() {
        gaps.equal(format_args!("{what}: code"), error["code"].as_str(), code);
    }
    gaps.expect(
        reply.header("content-type").starts_with("application/json"),
        format_args!("{what}: content-type {}", reply.header("content-type")),
    );
}

#[tokio::test]
async fn every_error_path_has_openais_error_object() {
    let server = serve_tiny().await;
    let client = server.client();
    let json_type = [("content-type", "application/json")];
    let mut gaps = Gaps::default();

    for (what, method, path, body, status) in [
        ("broken JSON", Method::POST, CHAT, &b"{\"messages\": ["[..], 400),
        ("an empty body", Method::POST, CHAT, b"", 400),
        ("a list instead of an object", Method::POST, CHAT, b"[]", 400),
        ("not UTF-8", Method::POST, COMPLETIONS, b"{\"prompt\": \"\xff\"}", 400),
        ("an unknown route", Method::GET, "/v1/nothing", b"", 404),
        ("an unknown route by POST", Method::POST, "/v1/embeddings", b"{}", 404),
        ("the root", Method::GET, "/", b"", 404),
        ("the wrong method", Method::GET, CHAT, b"", 405),
        ("another wrong method", Method::DELETE, "/v1/models", b"", 405),
    ] {
        let reply = client.request(method, path, &json_type, Bytes::from_static(body)).await;
        expect_error(&mut gaps, what, &reply, status, None);
    }
    for (what, path, request, status, code) in [
        ("an unknown model", CHAT, with(chat(4), json!({"model": "gpt-4"})), 404, Some("model_not_found")),
        (
            "an unknown model",
            COMPLETIONS,
            with(completion(4), json!({"model": "x"})),
            404,
            Some("model_not_found"),
        ),
        ("no messages", CHAT, json!({"model": MODEL}), 400, None),
        ("empty messages", CHAT, with(chat(4), json!({"messages": []})), 400, None),
        ("messages of the wrong type", CHAT, with(chat(4), json!({"messages": "hi"})), 400, None),
        ("no prompt", COMPLETIONS, json!({"model": MODEL}), 400, None),
        ("an empty prompt", COMPLETIONS, with(completion(4), json!({"prompt": ""})), 400, None),
        ("a negative limit", CHAT, with(chat(4), json!({"max_tokens": -1})), 400, None),
        ("a limit of 0", CHAT, with(chat(4), json!({"max_tokens": 0})), 400, None),
        ("a text as a number", CHAT, with(chat(4), json!({"temperature": "hot"})), 400, None),
        ("a negative temperature", CHAT, with(chat(4), json!({"temperature": -0.5})), 400, None),
        ("top_p above 1", CHAT, with(chat(4), json!({"top_p": 1.5})), 400, None),
        ("n above 128", CHAT, with(chat(4), json!({"n": 129})), 400, None),
        ("stream as text", CHAT, with(chat(4), json!({"stream": "yes"})), 400, None),
        ("usage without a stream", CHAT, with(chat(4), json!({"stream_options": {}})), 400, None),
        ("tools", CHAT, with(chat(4), json!({"tools": [{"type": "function"}]})), 400, None),
        ("an unknown token id", COMPLETIONS, with(completion(4), json!({"prompt": [999_999]})), 400, None),
    ] {
        let reply = client.post(path, &request).await;
        expect_error(&mut gaps, what, &reply, status, code);
    }
    gaps.assert_none("error.message, type, param, code");
    assert_eq!(client.post(CHAT, &chat(2)).await.status, 200, "the server goes on");
}

#[tokio::test]
async fn a_parameter_that_cannot_be_used_is_named_with_what_is_allowed() {
    let server = serve_tiny().await;
    let error = server.client().post(CHAT, &with(chat(4), json!({"n": 300}))).await.json()["error"].clone();
    assert_eq!(error["param"], "n");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains('n') && message.contains("300") && message.contains("1 to 128"), "{message}");
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_refused_with_both_numbers_before_any_data() {
    let server = serve_tiny().await;
    let client = server.client();
    let prompt: Vec<u32> = vec![100; CONTEXT_LENGTH + 1];
    let mut gaps = Gaps::default();
    for stream in [false, true] {
        let request = json!({"model": MODEL, "prompt": prompt, "max_tokens": 1, "stream": stream});
        let reply = client.post(COMPLETIONS, &request).await;
        expect_error(&mut gaps, "the prompt", &reply, 400, Some("context_length_exceeded"));
        let error = &reply.json()["error"];
        gaps.equal("type", error["type"].as_str(), Some("invalid_request_error"));
        let message = error["message"].as_str().unwrap_or_default();
        for number in [CONTEXT_LENGTH, CONTEXT_LENGTH + 1] {
            gaps.expect(message.contains(&number.to_string()), format_args!("{number} in {message:?}"));
        }
    }
    gaps.assert_none("stream on and off");
}

#[tokio::test]
async fn a_body_that_is_not_declared_as_json_is_refused_in_the_same_shape() {
    let server = serve_tiny().await;
    let body = Bytes::from(chat(2).to_string());
    let reply = server.client().request(Method::POST, CHAT, &[("content-type", "text/plain")], body).await;
    let mut gaps = Gaps::default();
    expect_error(&mut gaps, "text/plain", &reply, 415, None);
    gaps.assert_none(reply.text());
}

#[tokio::test]
async fn a_body_larger_than_any_request_is_refused_in_the_same_shape() {
    let server = serve_tiny().await;
    let body = Bytes::from(with(chat(2), json!({"user": "x".repeat(16 << 20)})).to_string());
    let reply =
        server.client().request(Method::POST, CHAT, &[("content-type", "application/json")], body).await;
    let mut gaps = Gaps::default();
    expect_error(&mut gaps, "16 MiB", &reply, 413, None);
    gaps.assert_none(reply.text());
}

#[tokio::test]
async fn without_its_key_a_guarded_server_answers_401_and_probes_stay_open() {
    let server = Options::new(&tiny_model()).arg("--api-key", "s3cret").start().await;
    let client = server.client();
    let mut gaps = Gaps::default();
    expect_error(&mut gaps, "no key", &client.post(CHAT, &chat(2)).await, 401, None);
    let wrong = client.post_with(CHAT, &[("authorization", "Bearer other")], &chat(2)).await;
    expect_error(&mut gaps, "a wrong key", &wrong, 401, None);
    let right = client.post_with(CHAT, &[("authorization", "Bearer s3cret")], &chat(2)).await;
    gaps.equal("the right key", right.status.as_u16(), 200);
    for path in ["/health", "/metrics"] {
        gaps.equal(path, client.get(path).await.status.as_u16(), 200);
    }
    gaps.expect(!server.log().contains("s3cret"), "the key is in the log");
    gaps.assert_none("--api-key");
}
