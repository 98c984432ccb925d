//! The API over a scripted engine: routes, shapes, errors, streams, disconnects.

mod engines;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::testing::{ITERATION_TIMEOUT, MAX_MODEL_LEN, MAX_OPEN, ToyApi};

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of the stream's events.
    fn events(&self) -> Vec<&str> {
        let events = self.body.strip_suffix("\n\n").expect("ends with a whole event").split("\n\n");
        events.map(|event| event.strip_prefix("data: ").expect("one line of data")).collect()
    }

    /// The stream's chunks, which `[DONE]` must follow.
    fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.body);
        events.into_iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }

    /// Checks the error object and returns it.
    fn error(&self, status: u16, code: Value) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let body = self.json();
        let error = &body["error"];
        let fields: Vec<&String> = error.as_object().expect("an error object").keys().collect();
        assert_eq!(fields, ["message", "type", "param", "code"]);
        assert!(!error["message"].as_str().expect("a message").is_empty());
        assert_eq!(error["code"], code, "{error}");
        error.clone()
    }
}

impl ToyApi {
    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("text");
        Answer { status: parts.status, headers: parts.headers, body }
    }

    async fn call(&self, method: Method, path: &str) -> Answer {
        self.send(Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path).await
    }

    async fn post_text(&self, path: &str, body: impl Into<String>) -> Answer {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Body::from(body.into())).expect("a request")).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    async fn chat(&self, text: &str, more: Value) -> Answer {
        self.post(
            "/v1/chat/completions",
            with(json!({"messages": [{"role": "user", "content": text}]}), more),
        )
        .await
    }

    async fn complete(&self, prompt: &str, more: Value) -> Answer {
        self.post("/v1/completions", with(json!({"prompt": prompt, "max_tokens": 32}), more)).await
    }
}

/// Adds the fields of one object to another.
fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().expect("an object").extend(more);
    body
}

#[tokio::test]
async fn a_whole_chat_answer_has_openais_shape() {
    let answer = ToyApi::new(&[]).chat("hi", json!({})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let body = answer.json();
    assert!(body["id"].as_str().expect("an id").starts_with("chatcmpl-"));
    assert!(body["created"].as_u64().expect("a time") > 1_600_000_000);
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("toy")));
    let choice = json!({
        "index": 0, "message": {"role": "assistant", "content": "hi>"}, "logprobs": null,
        "finish_reason": "stop", "stop_reason": null,
    });
    assert_eq!(body["choices"], json!([choice]));
    let usage = json!({
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    });
    assert_eq!(body["usage"], usage);
}

#[tokio::test]
async fn a_whole_completion_has_openais_shape() {
    let answer = ToyApi::new(&[]).complete("hello", json!({"max_tokens": 3, "model": "org/toy"})).await;
    let body = answer.json();
    assert!(body["id"].as_str().expect("an id").starts_with("cmpl-"));
    assert_eq!((&body["object"], &body["model"]), (&json!("text_completion"), &json!("org/toy")));
    let choice = json!({
        "index": 0, "text": "hel", "logprobs": null, "finish_reason": "length", "stop_reason": null,
    });
    assert_eq!(body["choices"], json!([choice]));
}

#[tokio::test]
async fn every_chunk_of_a_chat_stream_has_one_head_and_the_last_has_the_reason() {
    let answer = ToyApi::new(&[]).chat("hi", json!({"stream": true})).await;
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/event-stream; charset=utf-8");
    let chunks = answer.chunks();
    for field in ["id", "object", "created", "model"] {
        assert!(chunks.iter().all(|chunk| chunk[field] == chunks[0][field]), "{field}: {}", answer.body);
    }
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (last, others) = chunks.split_last().expect("chunks");
    assert!(others.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "nobody asked for usage");
}

#[tokio::test]
async fn usage_in_a_stream_is_null_until_the_chunk_without_choices() {
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let api = ToyApi::new(&[]);
    for answer in [api.chat("hi", options.clone()).await, api.complete("hi>", options).await] {
        let chunks = answer.chunks();
        let (last, others) = chunks.split_last().expect("chunks");
        assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)), "{}", answer.body);
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 4);
        assert_eq!(last["id"], chunks[0]["id"]);
    }
}

#[tokio::test]
async fn a_whole_answer_is_its_stream_folded() {
    let api = ToyApi::new(&[]);
    for more in [json!({}), json!({"max_tokens": 5}), json!({"stop": "lo"}), json!({"stop": ["x", "é"]})] {
        let streamed = with(more.clone(), json!({"stream": true, "logprobs": 1}));
        let whole = api.complete("hello é wörld", with(more.clone(), json!({"logprobs": 1}))).await.json();
        let chunks = api.complete("hello é wörld", streamed).await.chunks();
        let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(whole["choices"][0]["text"], text, "{more}");
        let last = &chunks.last().expect("chunks")["choices"][0];
        assert_eq!(whole["choices"][0]["finish_reason"], last["finish_reason"], "{more}");
        assert_eq!(whole["choices"][0]["stop_reason"], last["stop_reason"], "{more}");
        for column in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let folded: Vec<&Value> = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["logprobs"][column].as_array())
                .flatten()
                .collect();
            let whole: Vec<&Value> =
                whole["choices"][0]["logprobs"][column].as_array().expect("a list").iter().collect();
            assert_eq!(folded, whole, "{more}: {column}");
        }
    }
}

#[tokio::test]
async fn chat_logprobs_have_their_own_shape() {
    let body = ToyApi::new(&[]).chat("é", json!({"logprobs": true, "top_logprobs": 1})).await.json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    let joined: Vec<u8> = content
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert_eq!(body["choices"][0]["message"]["content"], String::from_utf8(joined).expect("whole"));
    assert_eq!(content[0]["token"], "\u{fffd}", "half a character has no text of its own");
    assert_eq!(content[0]["logprob"], -9999.0, "JSON has no minus infinity");
    assert_eq!(content[0]["top_logprobs"], json!([{"token": "?", "logprob": -0.5, "bytes": [63]}]));
}

#[tokio::test]
async fn a_stop_string_ends_the_text_and_aborts_the_engine() {
    let api = ToyApi::new(&[]);
    let body = api.complete("one END two", json!({"stop": ["END"]})).await.json();
    assert_eq!(body["choices"][0]["text"], "one ");
    assert_eq!(
        (&body["choices"][0]["finish_reason"], &body["choices"][0]["stop_reason"]),
        (&json!("stop"), &json!("END"))
    );
    assert_eq!(*api.engine.aborts.borrow(), 1);
}

#[tokio::test]
async fn a_failure_before_the_first_token_has_an_honest_status_in_both_modes() {
    for stream in [false, true] {
        let answer = ToyApi::new(&[]).chat("fail", json!({"stream": stream})).await;
        let error = answer.error(500, json!("engine_error"));
        assert_eq!(
            (&error["type"], &error["message"]),
            (&json!("server_error"), &json!("the device failed: scripted"))
        );
    }
}

#[tokio::test]
async fn a_failure_after_the_first_token_is_one_event_and_no_done() {
    let answer = ToyApi::new(&[]).chat("break", json!({"stream": true})).await;
    let events = answer.events();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("JSON");
    assert_eq!(last["error"]["code"], "engine_error");
    assert!(!answer.body.contains("[DONE]"));
}

#[tokio::test]
async fn an_engine_that_ends_answers_503_and_health_turns_bad() {
    let api = ToyApi::new(&[]);
    assert_eq!(api.get("/health").await.status, StatusCode::OK);
    api.chat("die", json!({})).await.error(503, json!("engine_unavailable"));
    for answer in [api.get("/health").await, api.get("/ping").await, api.chat("hi", json!({})).await] {
        answer.error(503, json!("engine_unavailable"));
    }
    assert_eq!(api.get("/metrics").await.status, StatusCode::OK);
}

/// A request that is open and gets no more steps.
async fn hanging(api: &ToyApi) -> tokio::task::JoinHandle<Result<Response, std::convert::Infallible>> {
    let pending = tokio::spawn({
        let router = api.router.clone();
        let body = json!({"prompt": "hang"}).to_string();
        let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
        router.oneshot(request.body(Body::from(body)).expect("a request"))
    });
    // The request is open once its first step was taken in.
    while !pending.is_finished() && api.frontend.num_open() == 0 {
        tokio::task::yield_now().await;
    }
    pending
}

#[tokio::test]
async fn an_engine_that_makes_no_step_for_its_open_request_turns_health_bad_until_it_is_idle() {
    let api = ToyApi::new(&[]);
    let pending = hanging(&api).await;
    let mut health = api.get("/health").await;
    while health.status == StatusCode::OK {
        tokio::time::sleep(ITERATION_TIMEOUT).await;
        health = api.get("/health").await;
    }
    let error = health.error(503, json!("engine_stalled"));
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("engine 0 has open requests") && message.contains("--engine-iteration-timeout"),
        "{message}"
    );
    api.get("/ping").await.error(503, json!("engine_stalled"));
    assert_eq!(api.get("/metrics").await.status, StatusCode::OK);
    pending.abort();
    api.frontend.drained().await;
    assert_eq!(api.get("/health").await.status, StatusCode::OK);
}

#[tokio::test]
async fn dropping_a_whole_answer_aborts_its_request() {
    let api = ToyApi::new(&[]);
    let mut aborts = api.engine.aborts.subscribe();
    let pending = hanging(&api).await;
    pending.abort();
    aborts.wait_for(|aborts| *aborts == 1).await.expect("the engine lives");
    api.frontend.drained().await;
}

#[tokio::test]
async fn dropping_a_stream_aborts_its_request() {
    let api = ToyApi::new(&[]);
    let body = json!({"prompt": "hang", "stream": true}).to_string();
    let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body)).expect("a request");
    let response = api.router.clone().oneshot(request).await.expect("infallible");
    let mut stream = response.into_body();
    stream.frame().await.expect("the first piece").expect("no error");
    drop(stream);
    let mut aborts = api.engine.aborts.subscribe();
    aborts.wait_for(|aborts| *aborts == 1).await.expect("the engine lives");
    api.frontend.drained().await;
}

#[tokio::test]
async fn every_error_path_has_the_error_object() {
    let api = ToyApi::new(&[]);
    let chat = "/v1/chat/completions";
    api.get("/nowhere").await.error(404, json!("unknown_url"));
    api.get("/v1/models/other").await.error(404, json!("model_not_found"));
    api.get("/v1/models/%ff").await.error(404, json!("model_not_found"));
    api.post_text(chat, "{").await.error(400, Value::Null);
    api.post_text(chat, "[]").await.error(400, Value::Null);
    api.post_text(chat, "").await.error(400, Value::Null);
    api.post_text(chat, "[".repeat(100_000)).await.error(400, Value::Null);
    api.post_text(chat, " ".repeat(MIN_BODY_BYTES + 1)).await.error(413, json!("request_too_large"));
    let untyped = Request::post(chat).body(Body::from("{}")).expect("a request");
    api.send(untyped).await.error(415, json!("unsupported_media_type"));
    let error = api.chat("hi", json!({"model": "other"})).await.error(404, json!("model_not_found"));
    assert_eq!(error["param"], "model");
    let error = api.chat("hi", json!({"tools": [{}]})).await.error(400, json!("unsupported_parameter"));
    assert_eq!(error["param"], "tools");
    let error = api.post("/v1/completions", json!({})).await.error(400, Value::Null);
    assert_eq!(error["param"], "prompt");
    api.complete("", json!({})).await.error(400, Value::Null);
}

#[tokio::test]
async fn messages_are_checked_one_by_one() {
    let api = ToyApi::new(&[]);
    let table = [
        (json!(null), "messages", Value::Null),
        (json!([]), "messages", Value::Null),
        (json!("hi"), "messages", Value::Null),
        (json!([1]), "messages[0]", Value::Null),
        (json!([{"content": "a"}]), "messages[0].role", Value::Null),
        (json!([{"role": "user", "content": 1}]), "messages[0].content", Value::Null),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content", Value::Null),
        (
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url"}]}]),
            "messages[1].content",
            json!("unsupported_parameter"),
        ),
        (json!([{"role": "refused", "content": "a"}]), "messages", Value::Null),
    ];
    for (messages, param, code) in table {
        let answer = api.post("/v1/chat/completions", json!({"messages": messages})).await;
        assert_eq!(answer.error(400, code)["param"], param, "{messages}");
    }
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = json!([{"role": "user", "content": parts}, {"role": "assistant", "content": null}]);
    let answer = api.post("/v1/chat/completions", json!({"messages": messages})).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "a\nb>");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_before_any_event() {
    let api = ToyApi::new(&[]);
    for stream in [false, true] {
        let answer = api.chat(&"x".repeat(MAX_MODEL_LEN), json!({"stream": stream})).await;
        let error = answer.error(400, json!("context_length_exceeded"));
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("65 tokens") && message.contains("64 tokens"), "{message}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn wrong_methods_say_what_is_allowed() {
    let api = ToyApi::new(&[]);
    let answer = api.get("/v1/chat/completions").await;
    answer.error(405, json!("method_not_allowed"));
    assert_eq!(answer.headers[header::ALLOW], "POST");
    let answer = api.call(Method::DELETE, "/v1/models").await;
    answer.error(405, json!("method_not_allowed"));
    assert_eq!(answer.headers[header::ALLOW], "GET,HEAD");
    let answer = api.call(Method::OPTIONS, "/ping").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.headers[header::ALLOW], "GET,HEAD,POST");
}

#[tokio::test]
async fn metrics_are_there_with_and_without_slash_plain_and_compressed() {
    let api = ToyApi::new(&[]);
    let plain = api.get("/metrics").await;
    assert_eq!(plain.status, StatusCode::OK);
    assert_eq!(plain.headers[header::CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    assert!(plain.body.starts_with('#'), "{}", plain.body);
    assert_eq!(api.get("/metrics/").await.status, StatusCode::OK);
    let head = api.call(Method::HEAD, "/metrics").await;
    assert_eq!((head.status, head.body.as_str()), (StatusCode::OK, ""));
    let request = Request::get("/metrics").header(header::ACCEPT_ENCODING, "gzip").body(Body::empty());
    let response = api.router.clone().oneshot(request.expect("a request")).await.expect("infallible");
    assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
}

#[tokio::test]
async fn api_keys_guard_the_models_and_not_the_probes() {
    let api = ToyApi::new(&["secret"]);
    let answer = api.get("/v1/models").await;
    answer.error(401, json!("invalid_api_key"));
    assert_eq!(answer.headers[header::WWW_AUTHENTICATE], "Bearer");
    assert_eq!(api.get("/health").await.status, StatusCode::OK);
    let request = Request::get("/v1/models").header(header::AUTHORIZATION, "Bearer secret");
    let answer = api.send(request.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn models_are_listed_and_found_by_each_name() {
    let api = ToyApi::new(&[]);
    let list = api.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let card = &list["data"][1];
    assert_eq!(
        (&card["id"], &card["root"], &card["max_model_len"]),
        (&json!("org/toy"), &json!("toy"), &json!(64))
    );
    assert_eq!(&api.get("/v1/models/org/toy").await.json(), card);
}

#[tokio::test]
async fn tokenize_and_detokenize_are_each_others_inverse() {
    let api = ToyApi::new(&[]);
    let body = api.post("/tokenize", json!({"prompt": "hé", "return_token_strs": true})).await.json();
    let expected = json!({
        "count": 3, "max_model_len": 64, "tokens": [104, 195, 169], "token_strs": ["h", "\u{fffd}", "\u{fffd}"],
    });
    assert_eq!(body, expected);
    let body = api.post("/detokenize", json!({"tokens": [104, 195, 169, 256]})).await.json();
    assert_eq!(body, json!({"prompt": "hé<end>"}));
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = api.post("/tokenize", json!({"messages": messages})).await.json();
    assert_eq!((&body["tokens"], &body["token_strs"]), (&json!([97, 62]), &Value::Null));
    api.post("/detokenize", json!({"tokens": [257]})).await.error(400, Value::Null);
    api.post("/tokenize", json!({})).await.error(400, Value::Null);
}

#[tokio::test]
async fn a_sane_request_id_becomes_part_of_the_answers_id() {
    let api = ToyApi::new(&[]);
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .header("x-request-id", "mine-1");
    let answer = api.send(request.body(Body::from(r#"{"prompt": "a"}"#)).expect("a request")).await;
    assert_eq!(answer.headers["x-request-id"], "mine-1");
    assert_eq!(answer.json()["id"], "cmpl-mine-1");
}

#[tokio::test]
async fn version_names_the_device() {
    let body = ToyApi::new(&[]).get("/version").await.json();
    assert_eq!((&body["name"], &body["version"]), (&json!("limpid"), &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!(body["device"]["kind"], "cpu");
}

#[tokio::test]
async fn choices_of_a_whole_answer_come_in_order_and_the_prompt_is_billed_once() {
    let api = ToyApi::new(&[]);
    for (answer, text) in [
        (api.chat("hi", json!({"n": 3})).await, "/message/content"),
        (api.complete("hi>", json!({"n": 3})).await, "/text"),
    ] {
        let body = answer.json();
        let choices = body["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), 3, "{body}");
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], index);
            assert_eq!(choice.pointer(text), Some(&json!("hi>")));
            assert_eq!(choice["finish_reason"], "stop");
        }
        let usage = &body["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(3), &json!(12)));
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1);
    }
}

#[tokio::test]
async fn a_stream_opens_every_choice_and_ends_once_after_the_last() {
    let request = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let chunks = ToyApi::new(&[]).chat("hi", request).await.chunks();
    let index = |chunk: &Value| chunk["choices"][0]["index"].as_u64().expect("an index");
    for (position, opening) in chunks[..2].iter().enumerate() {
        assert_eq!(index(opening), position as u64);
        assert_eq!(opening["choices"][0]["delta"]["role"], "assistant");
    }
    let (usage, pieces) = chunks[2..].split_last().expect("chunks");
    for choice in 0..2 {
        let own = || pieces.iter().filter(|chunk| index(chunk) == choice);
        let text: String =
            own().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, "hi>");
        assert_eq!(own().filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop").count(), 1);
    }
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 8);
}

#[tokio::test]
async fn best_of_is_for_whole_completions_and_bills_what_was_left_out() {
    let api = ToyApi::new(&[]);
    let body = api.complete("hi", json!({"n": 2, "best_of": 4})).await.json();
    assert_eq!(body["choices"].as_array().map(Vec::len), Some(2));
    assert!(body["choices"][0]["logprobs"].is_null(), "they were not asked for");
    assert_eq!(body["usage"]["completion_tokens"], 12);
    for (request, param) in [
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"n": 3, "best_of": 2}), "best_of"),
        (json!({"best_of": 129}), "best_of"),
        (json!({"n": 129}), "n"),
    ] {
        let answer = api.complete("hi", request.clone()).await;
        assert_eq!(answer.error(400, Value::Null)["param"], param, "{request}");
    }
    assert_eq!(api.complete("hi", json!({"best_of": 1, "stream": true})).await.status, 200);
    api.chat("hi", json!({"best_of": 2})).await.error(400, json!("unsupported_parameter"));
}

#[tokio::test]
async fn a_failed_choice_fails_the_answer_and_aborts_the_others() {
    let api = ToyApi::new(&[]);
    api.chat("fail", json!({"n": 3})).await.error(500, json!("engine_error"));
    api.frontend.drained().await;
}

#[tokio::test]
async fn a_full_server_answers_503_with_when_to_come_again_and_counts_it() {
    let api = ToyApi::new(&[]);
    let more = MAX_OPEN + 1;
    let answer = api.complete("hi", json!({"n": more})).await;
    let error = answer.error(503, json!("server_overloaded"));
    assert_eq!(error["type"], "server_error");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("7 more") && message.contains("allowed: 6"), "{message}");
    assert_eq!(answer.headers[header::RETRY_AFTER], "1");
    assert_eq!(api.complete("hi", json!({"n": MAX_OPEN})).await.status, 200, "it takes no place");
    let started = api.get("/metrics").await.body;
    let ended: f64 = started
        .lines()
        .filter(|line| line.starts_with("vllm:request_success_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    assert_eq!(ended, MAX_OPEN as f64, "a request that was not let in is none that ended");
}

#[tokio::test]
async fn a_cache_in_use_is_reset_only_by_force() {
    let api = ToyApi::new(&["key"]);
    let reset = async |query: &str, key: &str| {
        let request = Request::post(format!("/reset_prefix_cache{query}"))
            .header(header::AUTHORIZATION, format!("Bearer {key}"));
        api.send(request.body(Body::empty()).expect("a request")).await
    };
    reset("", "key").await.error(409, json!("prefix_cache_in_use"));
    let forced = reset("?reset_running_requests=true", "key").await;
    assert_eq!((forced.status, forced.body.as_str()), (StatusCode::OK, ""));
    reset("?reset_running_requests=perhaps", "key").await.error(400, Value::Null);
    reset("", "wrong").await.error(401, json!("invalid_api_key"));
    let open = ToyApi::new(&[]);
    assert_eq!(open.get("/reset_prefix_cache").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn sleep_routes_check_their_arguments() {
    let api = ToyApi::new(&[]);
    for (path, status) in [
        ("/sleep", 200),
        ("/sleep?level=2&mode=keep", 200),
        ("/sleep?level=3", 400),
        ("/sleep?mode=later", 400),
        ("/sleep?mode=wait", 500),
        ("/wake_up", 200),
        ("/wake_up?tags=weights&tags=kv_cache", 200),
        ("/wake_up?tags=weights", 400),
    ] {
        let answer = api.call(Method::POST, path).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.body);
    }
    assert_eq!(api.get("/sleep").await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(api.get("/is_sleeping").await.json(), json!({"is_sleeping": false}));
}
