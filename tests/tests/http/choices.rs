//! Several choices of one request: `n` and `best_of`.

use std::time::Duration;

use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{Options, slow_model, tiny_model};
use limpid_tests::spans;
use serde_json::{Value, json};

use crate::{COMPLETIONS, completion, scrape, scrape_until, serve_tiny, with};

/// Tokens of two blocks and some.
fn prompt() -> Vec<u32> {
    (0..40).map(|index| 40 + index % 23).collect()
}

fn sampled(max_tokens: u64, fields: Value) -> Value {
    with(with(completion(max_tokens), json!({"prompt": prompt(), "temperature": 1, "seed": 7})), fields)
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("no choices: {answer}"));
    choices.iter().map(|choice| choice["text"].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn each_choice_is_the_answer_to_the_seed_behind_the_one_before() {
    // So many that the answer is sent in several writes.
    const TOKENS: u64 = 200;
    let server = serve_tiny().await;
    let client = server.client();
    let answer = client.post(COMPLETIONS, &sampled(TOKENS, json!({"n": 3}))).await.json();
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(40), &json!(3 * TOKENS)));
    let mut alone = Vec::new();
    for seed in [7, 8, 9] {
        let answer = client.post(COMPLETIONS, &sampled(TOKENS, json!({"seed": seed}))).await.json();
        alone.extend(texts(&answer));
    }
    assert_eq!(texts(&answer), alone);
    assert!(alone[0] != alone[1] && alone[1] != alone[2], "{alone:?}");

    let chunks = client
        .stream(COMPLETIONS, &[], &sampled(TOKENS, json!({"n": 3, "stream": true})))
        .await
        .chunks()
        .await;
    let mut streamed = vec![String::new(); 3];
    let mut reasons = vec![0; 3];
    let mut order = Vec::new();
    for chunk in &chunks.chunks {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("an index") as usize;
        streamed[index].push_str(choice["text"].as_str().expect("a text"));
        reasons[index] += usize::from(choice["finish_reason"] == "length");
        order.push(index);
    }
    assert_eq!((streamed, reasons), (alone, vec![1; 3]));
    assert!(!order.is_sorted(), "the choices come side by side: {order:?}");
}

#[tokio::test]
async fn the_prompt_is_computed_once_whether_prefixes_are_cached_or_not() {
    for flags in [&[][..], &["--no-enable-prefix-caching"][..]] {
        let mut options = Options::new(&tiny_model());
        for flag in flags {
            options = options.plain(flag);
        }
        let server = options.start().await;
        let client = server.client();
        let answer = client.post(COMPLETIONS, &sampled(5, json!({"n": 4}))).await.json();
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "nobody was there before");
        let scrape = scrape(client).await;
        let source = |source| scrape.value("vllm:prompt_tokens_by_source_total", &[("source", source)]);
        assert_eq!((source("local_compute"), source("local_cache_hit")), (40.0 + 3.0 * 8.0, 3.0 * 32.0));
        let queries = scrape.value("vllm:prefix_cache_queries_total", &[]);
        assert_eq!(queries, if flags.is_empty() { 160.0 } else { 0.0 });
        let value = |family: &str| scrape.histogram(family);
        assert_eq!((value("vllm:request_params_n").count, value("vllm:request_params_n").sum), (1.0, 4.0));
        let longest = value("vllm:request_max_num_generation_tokens");
        assert_eq!((longest.count, longest.sum), (1.0, 5.0));
        let generated = value("vllm:request_generation_tokens");
        assert_eq!((generated.count, generated.sum), (4.0, 20.0));
        assert_eq!(scrape.value("vllm:request_success_total", &[("finished_reason", "length")]), 4.0);
    }
}

#[tokio::test]
async fn best_of_answers_with_the_choice_that_is_most_probable_per_token() {
    let server = serve_tiny().await;
    let client = server.client();
    let mut candidates = Vec::new();
    for seed in 7..11 {
        let asked = sampled(6, json!({"seed": seed, "logprobs": 0}));
        let answer = client.post(COMPLETIONS, &asked).await.json();
        let logprobs =
            answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("logprobs").clone();
        let sum: f64 = logprobs.iter().map(|logprob| logprob.as_f64().expect("a number")).sum();
        candidates.push((sum / logprobs.len() as f64, texts(&answer).remove(0)));
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let answer = client.post(COMPLETIONS, &sampled(6, json!({"n": 2, "best_of": 4}))).await.json();
    assert_eq!(texts(&answer), [candidates[0].1.clone(), candidates[1].1.clone()], "{candidates:?}");
    assert_eq!(answer["usage"]["completion_tokens"], 24, "those that were left out were computed too");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_every_choice() {
    let server = Options::new(&slow_model()).start().await;
    let request = with(completion(4000), json!({"stream": true, "n": 3, "temperature": 1}));
    let mut stream = server.client().stream(COMPLETIONS, &[], &request).await;
    stream.next().await.expect("a first chunk");
    drop(stream);
    let idle = scrape_until(server.client(), "nothing running", Duration::from_secs(2), |scrape| {
        scrape.value("vllm:num_requests_running", &[]) == 0.0
            && scrape.value("vllm:request_success_total", &[("finished_reason", "abort")]) == 3.0
    })
    .await;
    assert_eq!(idle.value("vllm:kv_cache_usage_perc", &[]), 0.0);
    assert_eq!(idle.histogram("vllm:request_params_n").count, 1.0);
}

#[tokio::test]
async fn the_trace_has_one_model_span_for_each_choice() {
    let receiver = OtlpReceiver::start().await;
    let server = Options::new(&tiny_model())
        .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(Transport::Grpc))
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start()
        .await;
    server.client().post(COMPLETIONS, &sampled(4, json!({"n": 3}))).await;
    let trace = receiver
        .wait_for("the trace", Duration::from_secs(30), |received| {
            let spans = spans::all(received);
            let trace = spans::traces(&spans).pop()?;
            // The SERVER span is the last to end.
            (trace.named("POST /v1/completions").len() == 1).then_some(trace)
        })
        .await;
    let children = trace.children(trace.server());
    assert_eq!(children.len(), 3, "{}", trace.text());
    let ids: Vec<_> = children.iter().map(|span| span.string("gen_ai.request.id")).collect();
    assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    for span in children {
        assert_eq!(span.int("gen_ai.request.choice.count"), Some(3));
        assert_eq!(span.int("gen_ai.usage.output_tokens"), Some(4));
    }
}
