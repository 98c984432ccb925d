//! Sleeping and waking up.

use http::Method;
use limpid_tests::server::{Options, Server, slow_model, tiny_model};
use serde_json::{Value, json};

use crate::{COMPLETIONS, completion, scrape, with};

async fn tell(server: &Server, path: &str) -> u16 {
    server.client().request(Method::POST, path, &[], Default::default()).await.status.as_u16()
}

async fn is_sleeping(server: &Server) -> Value {
    server.client().get("/is_sleeping").await.json()["is_sleeping"].clone()
}

async fn text(server: &Server) -> String {
    let answer = server.client().post(COMPLETIONS, &completion(20)).await.json();
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn a_server_that_slept_gives_memory_back_and_says_the_same_as_before() {
    let server = Options::new(&slow_model()).start().await;
    let before = text(&server).await;
    for level in [1, 2] {
        let awake = server.resident_bytes();
        assert_eq!(tell(&server, &format!("/sleep?level={level}")).await, 200);
        let asleep = server.resident_bytes();
        // Six layers of 4 matrices of 256 by 256 and 3 of 768 by 256, 4 bytes a weight, are 20 MB.
        assert!(asleep + 10_000_000 < awake, "level {level}: {awake} bytes awake, {asleep} asleep");
        assert_eq!(is_sleeping(&server).await, true);
        assert_eq!(server.client().get("/health").await.status, 200);
        assert_eq!(tell(&server, "/wake_up").await, 200);
        assert_eq!(is_sleeping(&server).await, false);
        assert_eq!(text(&server).await, before, "level {level}");
    }
}

#[tokio::test]
async fn requests_that_come_while_it_sleeps_are_answered_after_it_woke_up() {
    let server = Options::new(&tiny_model()).start().await;
    let before = text(&server).await;
    assert_eq!(tell(&server, "/sleep?level=2&mode=wait").await, 200);
    let request = with(completion(20), json!({"stream": true}));
    let client = server.client();
    let waiting =
        tokio::spawn(async move { client.stream(COMPLETIONS, &[], &request).await.chunks().await.text() });
    crate::scrape_until(client, "one waiting", std::time::Duration::from_secs(10), |scrape| {
        scrape.value("vllm:num_requests_waiting", &[]) == 1.0
    })
    .await;
    assert_eq!(tell(&server, "/wake_up").await, 200);
    assert_eq!(waiting.await.expect("no panic"), before);
}

#[tokio::test]
async fn a_kept_stream_goes_on_after_a_sleep_and_an_aborted_one_ends() {
    let server = Options::new(&slow_model()).start().await;
    let client = server.client();
    let request = with(completion(60), json!({"stream": true}));
    let whole = client.stream(COMPLETIONS, &[], &request).await.chunks().await.text();
    for mode in ["keep", "abort"] {
        let mut stream = client.stream(COMPLETIONS, &[], &request).await;
        let first: Value = serde_json::from_str(&stream.next().await.expect("it runs")).expect("JSON");
        let first = first["choices"][0]["text"].as_str().expect("a text").to_owned();
        assert_eq!(tell(&server, &format!("/sleep?level=1&mode={mode}")).await, 200);
        assert_eq!(tell(&server, "/wake_up").await, 200);
        let rest = stream.chunks().await;
        let reason = if mode == "keep" { "length" } else { "abort" };
        assert_eq!(rest.finish_reasons(), [reason]);
        let text = first + &rest.text();
        assert!(if mode == "keep" { text == whole } else { whole.starts_with(&text) }, "{mode}: {text:?}");
    }
    let scrape = scrape(client).await;
    assert_eq!(scrape.value("vllm:num_preemptions_total", &[]), 1.0, "what was kept is computed again");
    assert_eq!(scrape.value("vllm:request_success_total", &[("finished_reason", "abort")]), 1.0);
}

#[tokio::test]
async fn sleeping_and_waking_up_are_counted_while_they_take_and_timed_failures_included() {
    let server = Options::new(&slow_model()).start().await;
    let client = server.client();
    let counts = |scrape: &limpid_tests::exposition::Scrape, operation: &str| {
        let in_flight = scrape.value("vllm:sleep_mode_operations_in_flight", &[("operation", operation)]);
        let durations = scrape.histograms("vllm:sleep_mode_operation_duration_seconds");
        let of = durations.iter().find(|(labels, _)| labels["operation"] == operation);
        (in_flight, of.expect("a series from the start").1.count)
    };
    let before = scrape(client).await;
    for operation in ["sleep", "release_kv_cache_memory", "wake"] {
        assert_eq!(counts(&before, operation), (0.0, 0.0), "{operation}");
    }
    let mut stream = client.stream(COMPLETIONS, &[], &with(completion(4000), json!({"stream": true}))).await;
    stream.next().await.expect("it runs");
    let falling = tokio::spawn(async move {
        client.request(Method::POST, "/sleep?mode=wait", &[], Default::default()).await.status.as_u16()
    });
    crate::scrape_until(client, "one falling asleep", std::time::Duration::from_secs(10), |scrape| {
        counts(scrape, "sleep") == (1.0, 0.0)
    })
    .await;
    assert_eq!(tell(&server, "/sleep?mode=wait").await, 500, "it is falling asleep already");
    assert_eq!(counts(&scrape(client).await, "sleep"), (1.0, 1.0));
    drop(stream);
    assert_eq!(falling.await.expect("no panic"), 200);
    assert_eq!(tell(&server, "/wake_up").await, 200);
    let after = scrape(client).await;
    assert_eq!((counts(&after, "sleep"), counts(&after, "wake")), ((0.0, 2.0), (0.0, 1.0)));
}

#[tokio::test]
async fn the_sleep_state_follows_every_level_and_waking_up() {
    let server = Options::new(&tiny_model()).start().await;
    let states = async || {
        let scrape = scrape(server.client()).await;
        ["awake", "weights_offloaded", "discard_all"]
            .map(|state| scrape.value("vllm:engine_sleep_state", &[("sleep_state", state)]))
    };
    assert_eq!(states().await, [1.0, 0.0, 0.0]);
    for (path, expected) in [
        ("/sleep?level=0", [0.0, 0.0, 0.0]),
        ("/sleep?level=1", [0.0, 1.0, 0.0]),
        ("/sleep?level=2", [0.0, 0.0, 1.0]),
        ("/sleep?level=1", [0.0, 0.0, 1.0]),
        ("/wake_up", [1.0, 0.0, 0.0]),
        ("/sleep?level=2&mode=wait", [0.0, 0.0, 1.0]),
        ("/wake_up", [1.0, 0.0, 0.0]),
    ] {
        assert_eq!(tell(&server, path).await, 200);
        assert_eq!(states().await, expected, "after {path}");
    }
}
