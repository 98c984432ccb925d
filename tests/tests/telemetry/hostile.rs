//! What scrapers and clients can do to the metrics: nothing.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::server::{Options, tiny_model};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, chat, completion, scrape, scrape_until, with};

#[tokio::test]
async fn no_client_adds_series_without_bound_or_breaks_a_line() {
    let server = Options::new(&tiny_model()).start().await;
    let client = server.client();
    let assault = async |from: usize, to: usize| {
        for index in from..to {
            let odd = format!("m{index}\"\\n}} 1 # EOF \\ \u{1F600}");
            client.post(CHAT, &with(chat(1), json!({"model": odd}))).await;
            client.post(CHAT, &with(chat(1), json!({"user": odd, "unknown_field": odd}))).await;
            client.post(COMPLETIONS, &with(completion(1), json!({"prompt": odd}))).await;
            let method = Method::from_bytes(format!("BREW{index}").as_bytes()).unwrap();
            let path = format!("/v1/unknown/{index}?x={index}");
            client.request(method.clone(), &path, &[], Bytes::new()).await;
            client.request(method, CHAT, &[], Bytes::new()).await;
            let agent = format!("agent-{index}");
            let trace = format!("00-{:032x}-{:016x}-01", index + 1, index + 1);
            let headers = [
                ("user-agent", agent.as_str()),
                ("traceparent", trace.as_str()),
                ("tracestate", "a=b"),
                ("x-request-id", agent.as_str()),
                ("host", "evil.example"),
            ];
            client.request(Method::DELETE, &format!("/v1/models/x{index}"), &headers, Bytes::new()).await;
            client.post_with(CHAT, &headers, &chat(1)).await;
        }
    };
    assault(0, 5).await;
    let before = scrape(client).await.series();
    assault(5, 60).await;
    let after = scrape(client).await.series();
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "{} new series, such as {:?}", new.len(), new.first());
    for accept in ["text/plain", "application/openmetrics-text"] {
        let reply = client.request(Method::GET, "/metrics", &[("accept", accept)], Bytes::new()).await;
        let format = if accept == "text/plain" { Format::Text004 } else { Format::OpenMetrics };
        Scrape::parse(reply.text(), format).unwrap_or_else(|broken| panic!("{accept}: {broken}"));
        assert!(reply.body.len() < 256 << 10, "{} bytes", reply.body.len());
    }
}

#[tokio::test]
async fn scrapes_are_quick_and_leave_memory_flat() {
    let server = crate::parity::everything().start().await;
    let client = server.client();
    client.post(CHAT, &chat(4)).await;
    let many = async |count: usize| {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let asked = Instant::now();
            assert_eq!(client.get("/metrics").await.status, 200);
            times.push(asked.elapsed());
        }
        times.sort();
        times[count * 99 / 100]
    };
    // Until every buffer on the way has had its turn.
    many(1000).await;
    let before = server.resident_bytes();
    let p99 = many(1500).await;
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < before / 20, "1,500 scrapes took {grown} bytes on top of {before}");
    // A build without optimisation on a shared machine; what is to be noticed is a scrape that waits.
    assert!(p99 < Duration::from_millis(250), "p99 is {p99:?}");
    scrape_until(client, "an idle server", |scrape| scrape.value("vllm:num_requests_running", &[]) == 0.0)
        .await;
}
