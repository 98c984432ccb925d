//! Scrapers in crowds, and impatient ones: they starve no probe, see no counter fall, and change no answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use http::Method;
use limpid_tests::client::Client;
use limpid_tests::exposition::Labels;
use limpid_tests::server::{Options, Server, slow_model, tiny_model};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, chat, completion, scrape, with};

/// Scrapes for as long as `work` takes, `crowd` at once and each again as soon as it has its answer.
async fn crowded<T>(client: Client, crowd: usize, work: impl Future<Output = T>) -> T {
    let scraper = |_| async move {
        loop {
            assert_eq!(client.get("/metrics").await.status, 200);
        }
    };
    tokio::select! {
        done = work => done,
        _ = join_all((0..crowd).map(scraper)) => unreachable!("they never stop"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_scrapers_at_once_starve_no_probe() {
    let server = crate::parity::everything().start().await;
    let client = server.client();
    client.post(CHAT, &chat(4)).await;
    // A busy test machine may hold up a round, but not each of three.
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let probes = async {
            let mut times = Vec::new();
            let mut interval = tokio::time::interval(Duration::from_millis(20));
            for _ in 0..100 {
                interval.tick().await;
                let asked = Instant::now();
                assert_eq!(client.get("/health").await.status, 200);
                times.push(asked.elapsed());
            }
            times.sort();
            times[98]
        };
        let p99 = crowded(client, 50, probes).await;
        if p99 < Duration::from_millis(100) {
            return;
        }
        rounds.push(p99);
    }
    panic!("99 of 100 probes took up to {rounds:?}");
}

#[tokio::test]
async fn two_hundred_scrapes_of_four_scrapers_see_no_counter_fall() {
    let server = Options::new(&tiny_model()).start().await;
    let client = server.client();
    let scraper = |_| async move {
        let mut before: BTreeMap<(String, Labels), f64> = BTreeMap::new();
        for _ in 0..50 {
            for family in scrape(client).await.families.values().filter(|family| family.kind != "gauge") {
                for sample in &family.samples {
                    let key = (sample.name.clone(), sample.labels.clone());
                    let last = before.insert(key, sample.value).unwrap_or(0.0);
                    assert!(sample.value >= last, "{} fell from {last} to {}", sample.name, sample.value);
                }
            }
        }
    };
    let load = join_all((0..40u64).map(|index| async move {
        client.post(CHAT, &chat(1 + index % 20)).await;
    }));
    tokio::join!(join_all((0..4).map(scraper)), load);
}

/// Tokens of the answers that are scraped while they are made.
const LONG: u64 = 600;

async fn long_answer(server: &Server) -> (String, Duration) {
    let request = with(completion(LONG), json!({"stream": true}));
    let asked = Instant::now();
    let chunks = server.client().stream(COMPLETIONS, &[], &request).await.chunks().await;
    (chunks.text(), asked.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_scrapes_every_100_ms_change_no_answer_and_slow_none() {
    let server = Options::new(&slow_model()).start().await;
    let client = server.client();
    let scrapes = async || -> Infallible {
        let mut interval = tokio::time::interval(Duration::from_millis(100));
        loop {
            interval.tick().await;
            let gzip = [("accept-encoding", "gzip")];
            let reply = client.request(Method::GET, "/metrics", &gzip, Bytes::new()).await;
            assert_eq!(reply.header("content-encoding"), "gzip");
        }
    };
    let scraped = async || {
        tokio::select! {
            answer = long_answer(&server) => answer,
            never = scrapes() => match never {},
        }
    };
    long_answer(&server).await;
    // One after the other, so that what else the machine does falls on both; the best pair counts.
    let mut slowdowns = Vec::new();
    for _ in 0..8 {
        let (plain, alone) = long_answer(&server).await;
        let (text, watched) = scraped().await;
        assert_eq!(text, plain);
        slowdowns.push(watched.as_secs_f64() / alone.as_secs_f64());
        if slowdowns.last().is_some_and(|slowdown| *slowdown < 1.05) {
            return;
        }
    }
    panic!("scrapes slow the answer by {slowdowns:?}");
}
