//! Clients that go away.

use std::time::Duration;

use limpid_tests::server::{Options, Server, slow_model};
use serde_json::json;

use crate::{COMPLETIONS, completion, scrape, scrape_until, with};

/// How many tokens the request that is interrupted asks for.
const ASKED: u64 = 4000;

async fn serve_slow() -> Server {
    Options::new(&slow_model()).start().await
}

/// The engine runs nothing and made fewer tokens than were asked for.
async fn assert_cancelled(server: &Server, expected_aborts: f64) {
    let idle = scrape_until(server.client(), "nothing running", Duration::from_secs(1), |scrape| {
        scrape.value("vllm:num_requests_running", &[]) == 0.0
            && scrape.value("vllm:request_success_total", &[("finished_reason", "abort")]) == expected_aborts
    })
    .await;
    let generated = idle.value("vllm:generation_tokens_total", &[]);
    assert!(generated < ASKED as f64, "{generated} tokens were made");
    assert_eq!(idle.value("vllm:kv_cache_usage_perc", &[]), 0.0, "all blocks are free again");
    for reason in ["stop", "length", "error", "repetition"] {
        assert_eq!(idle.value("vllm:request_success_total", &[("finished_reason", reason)]), 0.0, "{reason}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_request() {
    let server = serve_slow().await;
    let request = with(completion(ASKED), json!({"stream": true}));
    let mut stream = server.client().stream(COMPLETIONS, &[], &request).await;
    stream.next().await.expect("a first chunk");
    drop(stream);
    assert_cancelled(&server, 1.0).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_whole_answer_cancels_its_request() {
    let server = serve_slow().await;
    let running = scrape_until(server.client(), "one running", Duration::from_secs(20), |scrape| {
        scrape.value("vllm:num_requests_running", &[]) == 1.0
            && scrape.value("vllm:generation_tokens_total", &[]) > 0.0
    });
    let leave = async {
        running.await;
    };
    server.client().post_and_leave(COMPLETIONS, &completion(ASKED), leave).await;
    assert_cancelled(&server, 1.0).await;
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_never_runs() {
    let server = Options::new(&slow_model()).arg("--max-num-seqs", "1").start().await;
    let client = server.client();
    let request = with(completion(ASKED), json!({"stream": true}));
    let mut first = client.stream(COMPLETIONS, &[], &request).await;
    first.next().await.expect("the first request runs");
    let queued = async {
        scrape_until(client, "one waiting", Duration::from_secs(20), |scrape| {
            scrape.value("vllm:num_requests_waiting", &[]) == 1.0
        })
        .await;
    };
    client.post_and_leave(COMPLETIONS, &completion(ASKED), queued).await;
    scrape_until(client, "nothing waiting", Duration::from_secs(1), |scrape| {
        scrape.value("vllm:num_requests_waiting", &[]) == 0.0
    })
    .await;
    drop(first);
    assert_cancelled(&server, 2.0).await;
}

#[tokio::test]
async fn a_cancelled_neighbour_changes_nobody_elses_text() {
    let server = serve_slow().await;
    let client = server.client();
    let request = with(completion(48), json!({"stream": true}));
    let alone = client.stream(COMPLETIONS, &[], &request).await.chunks().await.text();
    let mut leaver = client
        .stream(COMPLETIONS, &[], &with(completion(ASKED), json!({"stream": true, "prompt": "leaving"})))
        .await;
    let mut stayer = client.stream(COMPLETIONS, &[], &request).await;
    let mut text = String::new();
    let mut chunks = 0;
    while let Some(data) = stayer.next().await {
        if data == "[DONE]" {
            break;
        }
        let chunk: serde_json::Value = serde_json::from_str(&data).unwrap();
        text.push_str(chunk["choices"][0]["text"].as_str().unwrap());
        chunks += 1;
        if chunks == 5 {
            leaver.next().await.expect("the neighbour runs");
            break;
        }
    }
    drop(leaver);
    while let Some(data) = stayer.next().await {
        if data != "[DONE]" {
            let chunk: serde_json::Value = serde_json::from_str(&data).unwrap();
            text.push_str(chunk["choices"][0]["text"].as_str().unwrap());
        }
    }
    assert_eq!(text, alone);
}

#[tokio::test]
async fn random_leavers_leave_a_server_that_still_answers() {
    let server = Options::new(&slow_model()).arg("--max-num-seqs", "4").start().await;
    let client = server.client();
    let clients = (0..20u64).map(|index| async move {
        let leaves = index % 3 == 0;
        // An answer that nobody will have finished by the time its client has left.
        let tokens = if leaves { 2000 } else { 10 + index };
        let request = with(completion(tokens), json!({"stream": true, "prompt": format!("client {index}")}));
        let mut stream = client.stream(COMPLETIONS, &[], &request).await;
        if leaves {
            stream.next().await;
            return 0;
        }
        stream.chunks().await;
        1
    });
    let finished: usize = futures::future::join_all(clients).await.into_iter().sum();
    let idle = scrape_until(client, "all ended", Duration::from_secs(2), |scrape| {
        scrape.value("vllm:request_success_total", &[]) == 20.0
    })
    .await;
    assert_eq!(idle.value("vllm:request_success_total", &[("finished_reason", "length")]), finished as f64);
    assert_eq!(idle.value("vllm:num_requests_running", &[]), 0.0);
    assert_eq!(idle.value("vllm:num_requests_waiting", &[]), 0.0);
    let answer = client.post(COMPLETIONS, &completion(3)).await;
    assert_eq!(answer.status, 200, "one request ends normally");
    assert_eq!(scrape(client).await.value("vllm:kv_cache_usage_perc", &[]), 0.0);
}

#[tokio::test]
async fn whoever_leaves_at_random_leaves_nobody_waiting_while_nothing_runs() {
    let server = Options::new(&slow_model()).arg("--max-num-seqs", "4").start().await;
    let client = server.client();
    let clients = (0..20u64).map(|index| async move {
        for round in 0..8 {
            let prompt = format!("client {index}, round {round}");
            let request =
                with(completion(4 + (index + round) % 30), json!({"stream": true, "prompt": prompt}));
            let mut stream = client.stream(COMPLETIONS, &[], &request).await;
            let leaves = (7 * index + 3 * round) % 3 == 0;
            while stream.next().await.is_some() && !leaves {}
        }
    });
    let mut done = std::pin::pin!(futures::future::join_all(clients));
    let mut stuck_since = None;
    let mut interval = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            _ = &mut done => break,
            _ = interval.tick() => {}
        }
        let scrape = scrape(client).await;
        let gauge = |name| scrape.value(name, &[]);
        if gauge("vllm:num_requests_waiting") > 0.0 && gauge("vllm:num_requests_running") == 0.0 {
            let since = *stuck_since.get_or_insert_with(tokio::time::Instant::now);
            assert!(since.elapsed() < Duration::from_secs(2), "requests wait and none runs");
        } else {
            stuck_since = None;
        }
        assert_eq!(client.get("/health").await.status, 200);
    }
    assert_eq!(client.post(COMPLETIONS, &completion(3)).await.status, 200, "one request ends normally");
}
