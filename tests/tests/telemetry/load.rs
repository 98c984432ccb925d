//! A thousand requests at once, many of whose clients leave, some with several choices: every one has its trace with
//! one model span per choice, and no span is too many.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use limpid_tests::compliance::check_request;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::spans::{self, Trace};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::{COMPLETIONS, completion, sending_to, with};

const REQUESTS: u64 = 1000;
const CONCURRENCY: usize = 64;

/// Choices that a request asks for: most for one, every seventh for two or three.
fn choices(index: usize) -> usize {
    if index.is_multiple_of(7) { 2 + index % 2 } else { 1 }
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Client {
    ReadsAll,
    /// Leaves after the first event.
    LeavesStream,
    /// Leaves at a moment of its own, perhaps before the server has read a word.
    LeavesAfter(Duration),
}

#[tokio::test]
async fn a_thousand_requests_with_leavers_have_one_trace_each_and_the_books_balance() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc)
        .arg("--max-num-seqs", "16")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "100000")
        .start()
        .await;
    let client = server.client();
    let mut random = ChaCha8Rng::seed_from_u64(20);
    let clients: Vec<Client> = (0..REQUESTS)
        .map(|_| match random.random_range(0..4) {
            0 => Client::LeavesStream,
            1 => Client::LeavesAfter(Duration::from_micros(random.random_range(0..30_000))),
            _ => Client::ReadsAll,
        })
        .collect();
    let requests = clients.iter().enumerate().map(|(index, behaviour)| async move {
        let traceparent = format!("00-{:032x}-00000000000000aa-01", index + 1);
        let headers = [("traceparent", traceparent.as_str())];
        let fields = json!({"stream": true, "n": choices(index), "temperature": 1});
        let request = with(completion(1 + index as u64 % 32), fields);
        let read = async {
            let mut stream = client.stream(COMPLETIONS, &headers, &request).await;
            while stream.next().await.is_some() && *behaviour != Client::LeavesStream {}
        };
        match behaviour {
            Client::LeavesAfter(delay) => drop(tokio::time::timeout(*delay, read).await),
            _ => read.await,
        }
    });
    futures::stream::iter(requests).buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    let idle = crate::scrape_until(client, "nothing running", |scrape| {
        scrape.value("vllm:num_requests_running", &[]) + scrape.value("vllm:num_requests_waiting", &[]) == 0.0
    })
    .await;
    drop(idle);
    let counted = crate::scrape(client).await.value("vllm:request_success_total", &[]);
    let ended = server.stop().await;
    assert!(ended.status.success(), "{}", ended.log);

    let traces: HashMap<String, Trace> = spans::request_traces(&spans::all(&receiver.received()))
        .into_iter()
        .map(|trace| (trace.id(), trace))
        .collect();
    let mut gaps = Gaps::default();
    let mut models = 0;
    for (index, behaviour) in clients.iter().enumerate() {
        let what = format!("request {index}, {behaviour:?}");
        let trace = traces.get(&format!("{:032x}", index + 1));
        if matches!(behaviour, Client::LeavesAfter(_)) && trace.is_none_or(|trace| trace.model().is_none()) {
            // It left before the engine, or even the server, knew of it.
            if let Some(trace) = trace {
                check_request(&mut gaps, &what, trace, 0);
            }
            continue;
        }
        models += choices(index);
        match trace {
            Some(trace) => check_request(&mut gaps, &what, trace, choices(index)),
            None => gaps.note(format_args!("{what}: no trace")),
        }
    }
    gaps.expect(traces.len() <= clients.len(), format_args!("{} traces", traces.len()));
    gaps.equal("requests counted by metrics and by model spans", counted, models as f64);
    gaps.assert_none("1000 requests, half of them left");
}
