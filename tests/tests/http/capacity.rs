//! What happens when there is more to do than fits: refusals, a pool that is too small, memory over time.

use std::time::Duration;

use limpid_tests::client::Client;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{Options, slow_model, tiny_model};
use limpid_tests::spans;
use serde_json::json;

use crate::{COMPLETIONS, completion, scrape, scrape_until, with};

/// `vllm:admission_rejections` by limit: of requests, of tokens.
async fn rejections(client: Client) -> [f64; 2] {
    let scrape = scrape(client).await;
    ["max_num_queued_reqs", "max_num_queued_tokens"]
        .map(|reason| scrape.value("vllm:admission_rejections_total", &[("reason", reason)]))
}

#[tokio::test]
async fn beyond_the_limit_of_requests_there_is_503_and_a_server_span_only() {
    let receiver = OtlpReceiver::start().await;
    let server = Options::new(&slow_model())
        .arg("--max-num-queued-reqs", "2")
        .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(Transport::Grpc))
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start()
        .await;
    let client = server.client();
    let mut first = client.stream(COMPLETIONS, &[], &with(completion(4000), json!({"stream": true}))).await;
    first.next().await.expect("it runs");
    let refused = client.post(COMPLETIONS, &with(completion(4), json!({"n": 2}))).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(
        (refused.header("retry-after"), &refused.json()["error"]["code"]),
        ("1", &json!("server_overloaded"))
    );
    assert_eq!(rejections(client).await, [1.0, 0.0], "once, however many choices were asked for");
    assert_eq!(client.post(COMPLETIONS, &completion(4)).await.status, 200, "one place is left");
    let trace = receiver
        .wait_for("the refused request's trace", Duration::from_secs(30), |received| {
            let spans = spans::all(received);
            let refused = |trace: &spans::Trace| {
                let server = trace.named("POST /v1/completions");
                server.first().is_some_and(|span| span.int("http.response.status_code") == Some(503))
            };
            spans::traces(&spans).into_iter().find(refused)
        })
        .await;
    assert!(trace.children(trace.server()).is_empty(), "{}", trace.text());
    assert_eq!(trace.server().string("error.type"), Some("server_overloaded"));
    drop(first);
    let ended = scrape_until(client, "both ended", Duration::from_secs(2), |scrape| {
        scrape.value("vllm:request_success_total", &[]) == 2.0
    })
    .await;
    assert_eq!(ended.value("vllm:request_success_total", &[("finished_reason", "error")]), 0.0);
    let both = client.post(COMPLETIONS, &with(completion(4), json!({"n": 2}))).await;
    assert_eq!(both.status, 200, "the places are free again");
}

#[tokio::test]
async fn prompts_that_wait_fill_the_limit_of_tokens_and_answers_empty_it() {
    let server = Options::new(&slow_model())
        .arg("--max-num-seqs", "1")
        .arg("--max-num-queued-tokens", "1")
        .start()
        .await;
    let client = server.client();
    let stream = |tokens: u64| with(completion(tokens), json!({"stream": true}));
    let mut first = client.stream(COMPLETIONS, &[], &stream(4000)).await;
    first.next().await.expect("it runs, so its prompt waits no more");
    let second = tokio::spawn(async move { client.post(COMPLETIONS, &completion(3)).await });
    scrape_until(client, "one waiting", Duration::from_secs(20), |scrape| {
        scrape.value("vllm:num_requests_waiting", &[]) == 1.0
    })
    .await;
    assert_eq!(rejections(client).await, [0.0, 0.0]);
    assert_eq!(client.post(COMPLETIONS, &completion(3)).await.status, 503);
    assert_eq!(rejections(client).await, [0.0, 1.0]);
    drop(first);
    assert_eq!(second.await.expect("no panic").status, 200);
    assert_eq!(client.post(COMPLETIONS, &completion(3)).await.status, 200);
}

#[tokio::test]
async fn sixty_four_requests_on_a_pool_for_eight_end_with_the_texts_they_get_alone() {
    // A sequence of the greatest length takes 4 blocks; one more is the null block.
    let options = Options::new(&tiny_model()).arg("--max-model-len", "64").arg("--max-num-seqs", "64");
    let request = |index: u64| {
        let prompt: Vec<u64> = (0..20).map(|position| 40 + (7 * index + position * position) % 60).collect();
        with(completion(40), json!({"prompt": prompt}))
    };
    let roomy = options.clone().arg("--num-gpu-blocks-override", "257").start().await;
    let mut alone = Vec::new();
    for index in 0..64 {
        let answer = roomy.client().post(COMPLETIONS, &request(index)).await.json();
        alone.push(answer["choices"][0]["text"].as_str().expect("a text").to_owned());
    }
    let server = options.arg("--num-gpu-blocks-override", "33").start().await;
    let client = server.client();
    let together = (0..64).map(|index| async move {
        let answer = client.post(COMPLETIONS, &request(index)).await.json();
        answer["choices"][0]["text"].as_str().expect("a text").to_owned()
    });
    let together = futures::future::join_all(together).await;
    for (index, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(together, alone, "request {index}");
    }
    let scrape = scrape(client).await;
    assert!(scrape.value("vllm:num_preemptions_total", &[]) > 0.0, "the pool was too small");
    assert_eq!(
        scrape.value("vllm:prefix_cache_queries_total", &[]),
        64.0 * 20.0,
        "each prompt is looked up once, however often it is resumed"
    );
    assert_eq!(scrape.value("vllm:prompt_tokens_total", &[]), 64.0 * 20.0);
    assert_eq!(scrape.value("vllm:generation_tokens_total", &[]), 64.0 * 40.0);
    assert_eq!(scrape.value("vllm:kv_cache_usage_perc", &[]), 0.0);
}

#[tokio::test]
async fn memory_is_flat_over_ten_thousand_requests_that_nobody_scrapes() {
    let server = Options::new(&tiny_model()).arg("--max-model-len", "256").start().await;
    let client = server.client();
    let batch = |first: u64| async move {
        let requests = (first..first + 20).map(|index| async move {
            let request =
                with(completion(1 + index % 7), json!({"prompt": format!("request number {index}")}));
            assert_eq!(client.post(COMPLETIONS, &request).await.status, 200);
        });
        futures::future::join_all(requests).await;
    };
    let mut early = 0;
    for first in (0..10_000).step_by(20) {
        batch(first).await;
        if first + 20 == 1000 {
            early = server.resident_bytes();
        }
    }
    let late = server.resident_bytes();
    assert!(late as f64 <= early as f64 * 1.05, "{early} bytes after 1,000 requests, {late} after 10,000");
}
