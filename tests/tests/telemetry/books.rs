//! The books balance: every request that ends is counted once in everything that counts requests, and every token in
//! everything that counts tokens, for any mix of ends.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures::future::join_all;
use limpid_tests::client::Client;
use limpid_tests::exposition::Scrape;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_metrics::streams;
use limpid_tests::otlp_receiver::OtlpReceiver;
use limpid_tests::server::{MODEL, Options, slow_model, tiny_model};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::catalogue::SUCCESS;
use crate::push::check_push;
use crate::{CHAT, COMPLETIONS, SOON, chat, completion, quick, scrape, scrape_until, with};

/// Histograms with one value for each request of the engine that ended, whatever it came to.
const PER_REQUEST: [&str; 6] = [
    "vllm:e2e_request_latency_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_num_preemptions",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_params_max_tokens",
];

/// What must hold of any scrape of an idle server.
fn check_books(gaps: &mut Gaps, scrape: &Scrape) {
    let ended = scrape.value(SUCCESS, &[]);
    for name in PER_REQUEST {
        gaps.equal(format_args!("{name}'s count"), scrape.histogram(name).count, ended);
    }
    // One value for each request of a client, which is one or more of the engine.
    let (choices, longest) = (
        scrape.histogram("vllm:request_params_n"),
        scrape.histogram("vllm:request_max_num_generation_tokens"),
    );
    gaps.equal("sum of n", choices.sum, ended);
    gaps.equal("clients' requests", longest.count, choices.count);
    for (counter, histogram) in [
        ("vllm:prompt_tokens_total", "vllm:request_prompt_tokens"),
        ("vllm:generation_tokens_total", "vllm:request_generation_tokens"),
    ] {
        gaps.equal(histogram, scrape.histogram(histogram).sum, scrape.value(counter, &[]));
    }
    for (one, other) in [
        ("vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_total"),
        ("vllm:prompt_tokens_cached_by_source_total", "vllm:prefix_cache_hits_total"),
    ] {
        gaps.equal(format_args!("{one} and {other}"), scrape.value(one, &[]), scrape.value(other, &[]));
    }
    for gauge in ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"] {
        gaps.equal(gauge, scrape.value(gauge, &[]), 0.0);
    }
}

#[tokio::test]
async fn the_books_balance_over_finished_stopped_aborted_queued_and_refused_requests() {
    let server = Options::new(&slow_model()).arg("--max-num-seqs", "3").start().await;
    let client = server.client();
    let requests = (0..24u64).map(|index| async move {
        let prompt = "hello world ".repeat(1 + index as usize % 5);
        // Those who leave ask for so much that the server cannot be done before it learns of it.
        let tokens = if index % 4 == 0 { 2000 } else { 4 + index };
        let request = with(completion(tokens), json!({"prompt": prompt, "stream": true}));
        match index % 4 {
            0 => {
                // Leaves after its first chunk, long before it could end.
                let long = with(request, json!({"max_tokens": 2000}));
                let mut stream = client.stream(COMPLETIONS, &[], &long).await;
                stream.next().await;
                1
            }
            1 => {
                let refused = with(request, json!({"top_p": 7}));
                assert_eq!(client.post(COMPLETIONS, &refused).await.status, 400);
                0
            }
            _ => {
                client.stream(COMPLETIONS, &[], &request).await.chunks().await;
                1
            }
        }
    });
    let ended: i32 = join_all(requests).await.into_iter().sum();
    let idle = scrape_until(client, "all requests ended", |scrape| {
        scrape.value(SUCCESS, &[]) == f64::from(ended)
            && scrape.value("vllm:num_requests_running", &[]) == 0.0
    })
    .await;
    let mut gaps = Gaps::default();
    check_books(&mut gaps, &idle);
    gaps.equal("ended requests", idle.value(SUCCESS, &[]), f64::from(ended));
    gaps.equal("requests that finished", idle.value(SUCCESS, &[("finished_reason", "length")]), 12.0);
    gaps.equal("errors", idle.value(SUCCESS, &[("finished_reason", "error")]), 0.0);
    gaps.assert_none("Σ request_success = Σ histograms; counters = sums");
}

#[tokio::test]
async fn ten_tokens_are_one_first_token_nine_gaps_and_ten_counts() {
    let server = Options::new(&tiny_model()).start().await;
    let asked = Instant::now();
    let answer = server.client().post(CHAT, &chat(10)).await.json();
    let took = asked.elapsed().as_secs_f64();
    let scrape =
        scrape_until(server.client(), "the request's count", |scrape| scrape.value(SUCCESS, &[]) == 1.0)
            .await;
    let mut gaps = Gaps::default();
    let prompt_tokens = answer["usage"]["prompt_tokens"].as_f64().unwrap();
    for (name, count) in [
        ("vllm:time_to_first_token_seconds", 1.0),
        ("vllm:inter_token_latency_seconds", 9.0),
        ("vllm:e2e_request_latency_seconds", 1.0),
        ("vllm:request_queue_time_seconds", 1.0),
        ("vllm:request_prefill_time_seconds", 1.0),
        ("vllm:request_decode_time_seconds", 1.0),
        ("vllm:request_prompt_tokens", 1.0),
        ("vllm:request_generation_tokens", 1.0),
        ("vllm:request_time_per_output_token_seconds", 1.0),
    ] {
        gaps.equal(format_args!("{name}'s count"), scrape.histogram(name).count, count);
    }
    gaps.equal("prompt tokens", scrape.value("vllm:prompt_tokens_total", &[]), prompt_tokens);
    gaps.equal("sum of prompts", scrape.histogram("vllm:request_prompt_tokens").sum, prompt_tokens);
    gaps.equal("generated tokens", scrape.value("vllm:generation_tokens_total", &[]), 10.0);
    gaps.equal("sum of outputs", scrape.histogram("vllm:request_generation_tokens").sum, 10.0);
    gaps.equal("ended by length", scrape.value(SUCCESS, &[("finished_reason", "length")]), 1.0);
    let sum = |name: &str| scrape.histogram(name).sum;
    let e2e = sum("vllm:e2e_request_latency_seconds");
    gaps.expect(e2e > 0.0 && e2e <= took, format_args!("e2e is {e2e}, the client waited {took}"));
    let first = sum("vllm:time_to_first_token_seconds");
    gaps.expect(first > 0.0 && first <= e2e, format_args!("first token after {first}, e2e {e2e}"));
    let decode = sum("vllm:request_decode_time_seconds");
    let between = sum("vllm:inter_token_latency_seconds");
    gaps.expect((decode - between).abs() < 2e-3, format_args!("decode {decode}, sum of gaps {between}"));
    let per_token = sum("vllm:request_time_per_output_token_seconds");
    gaps.expect(
        (per_token - decode / 9.0).abs() < 2e-3,
        format_args!("{per_token} a token, decode {decode}"),
    );
    let parts = sum("vllm:request_queue_time_seconds") + sum("vllm:request_prefill_time_seconds") + decode;
    gaps.expect(parts <= e2e, format_args!("queue + prefill + decode {parts}, e2e {e2e}"));
    gaps.assert_none(answer);
}

#[tokio::test]
async fn a_single_token_has_no_gap_and_no_nan() {
    let server = Options::new(&tiny_model()).start().await;
    server.client().post(CHAT, &chat(1)).await;
    let scrape =
        scrape_until(server.client(), "the request's count", |scrape| scrape.value(SUCCESS, &[]) == 1.0)
            .await;
    for name in ["vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"] {
        assert_eq!(scrape.histogram(name).count, 0.0, "{name}");
    }
    assert_eq!(scrape.histogram("vllm:time_to_first_token_seconds").count, 1.0);
}

/// What a client does with its request.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    ReadsStream,
    ReadsWhole,
    /// Leaves after its first chunk.
    LeavesStream,
    /// Leaves this many microseconds after it sent the request, perhaps before the server has read a word.
    LeavesAfter(u64),
    Invalid,
    UnknownModel,
    TooLong,
}

/// One request of a mix.
#[derive(Clone, Debug)]
struct Asked {
    behaviour: Behaviour,
    num_prompt_tokens: usize,
    max_tokens: u64,
    n: u64,
    /// Ends early if the text happens to have it.
    stop: Option<char>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let behaviour = prop_oneof![
        4 => Just(Behaviour::ReadsStream),
        2 => Just(Behaviour::ReadsWhole),
        2 => Just(Behaviour::LeavesStream),
        2 => (0..30_000u64).prop_map(Behaviour::LeavesAfter),
        1 => Just(Behaviour::Invalid),
        1 => Just(Behaviour::UnknownModel),
        1 => Just(Behaviour::TooLong),
    ];
    let stop = proptest::option::of(proptest::char::range('a', 'z'));
    (behaviour, 1..120usize, 1..60u64, 1..4u64, stop).prop_map(
        |(behaviour, num_prompt_tokens, max_tokens, n, stop)| Asked {
            behaviour,
            num_prompt_tokens,
            max_tokens,
            n,
            stop,
        },
    )
}

/// What clients know of what the server should have counted: at least `.0`, at most `.1`.
type Bounds = (f64, f64);

/// Choices that ended in the engine, and requests that were not admitted.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    ended: Bounds,
    rejected: Bounds,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        for (sum, more) in [(&mut self.ended, other.ended), (&mut self.rejected, other.rejected)] {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
    }
}

impl Asked {
    async fn take(&self, client: Client) -> Seen {
        let prompt: Vec<usize> = (0..self.num_prompt_tokens).map(|index| 40 + index * index % 60).collect();
        let mut request = json!({
            "model": MODEL, "prompt": prompt, "max_tokens": self.max_tokens, "n": self.n, "temperature": 1,
        });
        if let Some(stop) = self.stop {
            request["stop"] = stop.to_string().into();
        }
        let stream = async || {
            let request = with(request.clone(), json!({"stream": true}));
            let mut stream = client.stream(COMPLETIONS, &[], &request).await;
            if stream.status == 503 {
                return false;
            }
            assert_eq!(stream.status, 200);
            let leaves = matches!(self.behaviour, Behaviour::LeavesStream);
            while stream.next().await.is_some() && !leaves {}
            true
        };
        let refused = async |fields: Value, status: u16| {
            assert_eq!(client.post(COMPLETIONS, &with(request.clone(), fields)).await.status, status);
            Seen::default()
        };
        let choices = self.n as f64;
        let admitted = match self.behaviour {
            Behaviour::ReadsStream | Behaviour::LeavesStream => stream().await,
            Behaviour::ReadsWhole => {
                let status = client.post(COMPLETIONS, &request).await.status;
                assert!(status == 200 || status == 503, "{status}");
                status == 200
            }
            Behaviour::LeavesAfter(micros) => {
                let answered = tokio::time::timeout(Duration::from_micros(micros), stream()).await;
                match answered {
                    Ok(admitted) => admitted,
                    Err(_) => return Seen { ended: (0.0, choices), rejected: (0.0, 1.0) },
                }
            }
            Behaviour::Invalid => return refused(json!({"temperature": -1}), 400).await,
            Behaviour::UnknownModel => return refused(json!({"model": "unknown"}), 404).await,
            Behaviour::TooLong => return refused(json!({"prompt": vec![50; 300]}), 400).await,
        };
        match admitted {
            true => Seen { ended: (choices, choices), rejected: (0.0, 0.0) },
            false => Seen { ended: (0.0, 0.0), rejected: (1.0, 1.0) },
        }
    }
}

/// Waits until the server is idle, its books balance, agree with its clients, and are what it pushed last.
async fn balanced(client: Client, receiver: &OtlpReceiver, seen: Seen) {
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let scraped = scrape(client).await;
        let mut gaps = Gaps::default();
        check_books(&mut gaps, &scraped);
        for (name, (least, most)) in
            [(SUCCESS, seen.ended), ("vllm:admission_rejections_total", seen.rejected)]
        {
            let found = scraped.value(name, &[]);
            let agrees = (least..=most).contains(&found);
            gaps.expect(agrees, format_args!("{name} is {found}; clients saw {least} to {most}"));
        }
        match receiver.received().metrics.last() {
            Some(export) => check_push(&mut gaps, &streams(&export.message), &scraped),
            None => gaps.note("nothing was pushed"),
        }
        if gaps.is_empty() {
            return;
        }
        if tokio::time::Instant::now() > deadline {
            gaps.assert_none("the books of an idle server");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One server for all mixes, because what balances is the sum of all that ever was.
#[test]
fn the_books_balance_over_random_mixes_on_both_ways_out() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (receiver, server) = runtime.block_on(async {
        let receiver = OtlpReceiver::start().await;
        let server = quick(Options::new(&slow_model()))
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.grpc_endpoint())
            .env("OTEL_TRACES_EXPORTER", "none")
            // So little that requests wait, are preempted and are refused.
            .arg("--max-model-len", "256")
            .arg("--num-gpu-blocks-override", "33")
            .arg("--max-num-seqs", "8")
            .arg("--max-num-queued-reqs", "14")
            .start()
            .await;
        (receiver, server)
    });
    let client = server.client();
    let seen = Cell::new(Seen::default());
    let config = Config { cases: 16, max_shrink_iters: 64, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&vec(asked(), 1..14), |mix| {
        runtime.block_on(async {
            let mut total = seen.get();
            join_all(mix.iter().map(|asked| asked.take(client)))
                .await
                .into_iter()
                .for_each(|more| total.add(more));
            seen.set(total);
            balanced(client, &receiver, total).await;
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}\n{}", server.log());
    }
    let _inside = runtime.enter();
    drop(server);
}
