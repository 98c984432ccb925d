//! Several choices of one request: one model span for each, side by side below the SERVER span.

use std::collections::BTreeSet;

use limpid_tests::compliance::check_request;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{MODEL, Options, slow_model};
use serde_json::{Value, json};

use crate::{COMPLETIONS, completion, quick, sending_to, trace, with};

/// Tokens of two blocks and some.
fn prompt() -> Vec<u32> {
    (0..40).map(|index| 40 + index % 23).collect()
}

#[tokio::test]
async fn each_choice_has_its_own_usage_and_phases_and_together_they_are_what_is_billed() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport).arg("--block-size", "16").start().await;
        let fields = json!({"n": 3, "temperature": 1, "seed": 7, "prompt": prompt()});
        let answer = server.client().post(COMPLETIONS, &with(completion(5), fields)).await.json();
        let tree = trace(&receiver, "the trace", |trace| trace.models().len() == 3).await;

        let mut gaps = Gaps::default();
        check_request(&mut gaps, "n = 3", &tree, 3);
        gaps.equal("spans", tree.spans.len(), 1 + 3 * 4);
        let (mut output, mut cached, mut ids) = (0, Vec::new(), BTreeSet::new());
        for model in tree.models() {
            gaps.equal("choices asked for", model.int("gen_ai.request.choice.count"), Some(3));
            gaps.equal("input tokens", model.int("gen_ai.usage.input_tokens"), Some(40));
            gaps.equal(
                "finish reasons",
                model.strings("gen_ai.response.finish_reasons"),
                Some(vec!["length".to_owned()]),
            );
            let phases: Vec<&str> = tree.children(model).iter().map(|child| child.name()).collect();
            gaps.equal("phases", &phases[..], &["queue", "prefill", "decode"][..]);
            output += model.int("gen_ai.usage.output_tokens").unwrap_or(0);
            cached.push(model.int("gen_ai.usage.cache_read.input_tokens").unwrap_or(-1));
            ids.insert(model.string("gen_ai.response.id"));
        }
        cached.sort_unstable();
        gaps.equal("cached tokens: the prompt is computed once", cached, vec![0, 32, 32]);
        gaps.equal("output tokens as billed", Some(output), answer["usage"]["completion_tokens"].as_i64());
        gaps.equal("response ids", ids, BTreeSet::from([answer["id"].as_str()]));
        gaps.assert_none(format_args!("{transport:?}\n{}", tree.text()));
    }
}

#[tokio::test]
async fn each_choice_has_the_text_that_its_client_got_if_content_is_captured() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc)
        .env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        .start()
        .await;
    let fields = json!({"n": 3, "temperature": 1, "seed": 7, "prompt": prompt()});
    let answer = server.client().post(COMPLETIONS, &with(completion(12), fields)).await.json();
    let tree = trace(&receiver, "the trace", |trace| trace.models().len() == 3).await;
    let answered = answer["choices"].as_array().expect("choices").iter();
    let answered: BTreeSet<&str> = answered.map(|choice| choice["text"].as_str().expect("a text")).collect();
    let captured: Vec<Value> = tree
        .models()
        .iter()
        .map(|model| model.string("gen_ai.output.messages").expect("captured"))
        .map(|messages| serde_json::from_str(messages).expect("JSON"))
        .collect();
    let captured: BTreeSet<&str> =
        captured.iter().filter_map(|messages| messages[0]["parts"][0]["content"].as_str()).collect();
    assert_eq!(captured, answered);
    assert!(answered.len() > 1, "seeds differ, and so do texts: {answered:?}");
}

#[tokio::test]
async fn a_prompt_of_token_ids_is_captured_as_its_text() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Http)
        .env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        .start()
        .await;
    let client = server.client();
    let text = json!({"model": MODEL, "prompt": "hello, Wörld", "add_special_tokens": true});
    let ids = client.post("/tokenize", &text).await.json()["tokens"].clone();
    let whole = client.post("/detokenize", &json!({"model": MODEL, "tokens": ids})).await.json();
    assert!(whole["prompt"].as_str().is_some_and(|text| text.ends_with("hello, Wörld")), "{whole}");
    assert_eq!(client.post(COMPLETIONS, &with(completion(2), json!({"prompt": ids}))).await.status, 200);
    let tree = trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
    let captured = tree.model().and_then(|model| model.string("gen_ai.input.messages")).expect("captured");
    let captured: Value = serde_json::from_str(captured).expect("JSON");
    let expected = json!([{"role": "user", "parts": [{"type": "text", "content": whole["prompt"]}]}]);
    assert_eq!(captured, expected);
}

#[tokio::test]
async fn a_client_that_leaves_leaves_every_choice_aborted() {
    let receiver = OtlpReceiver::start().await;
    let server = quick(Options::new(&slow_model()))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.grpc_endpoint())
        .start()
        .await;
    let request = with(completion(4000), json!({"stream": true, "n": 3, "temperature": 1}));
    let mut stream = server.client().stream(COMPLETIONS, &[], &request).await;
    stream.next().await.expect("a first chunk");
    drop(stream);
    let tree = trace(&receiver, "the trace", |trace| trace.models().len() == 3).await;
    let mut gaps = Gaps::default();
    check_request(&mut gaps, "n = 3, left", &tree, 3);
    for model in tree.models() {
        let reasons = model.strings("gen_ai.response.finish_reasons");
        gaps.equal("finish reasons", reasons, Some(vec!["abort".to_owned()]));
    }
    gaps.assert_none(tree.text());
}
