//! Traces of engine steps: op by op, linked to the requests of their batch, and only where asked for.

use std::collections::HashSet;

use limpid_tests::compliance::check_tree;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::spans::{self, Trace};
use serde_json::json;

use crate::{COMPLETIONS, completion, sending_to, with};

fn steps(receiver: &OtlpReceiver) -> Vec<Trace> {
    let traces = spans::traces(&spans::all(&receiver.received()));
    traces.into_iter().filter(|trace| !trace.named("engine.step").is_empty()).collect()
}

#[tokio::test]
async fn every_step_has_its_ops_and_links_to_its_requests_when_all_are_sampled() {
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport)
            .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(transport))
            .arg("--collect-detailed-traces", "all")
            .arg("--detailed-trace-step-ratio", "1")
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "100000")
            .start()
            .await;
        let client = server.client();
        let request = with(completion(6), json!({"stream": true}));
        let ask = || async { client.stream(COMPLETIONS, &[], &request).await.chunks().await.text() };
        let (first, second) = tokio::join!(ask(), ask());
        assert_eq!(first, second, "a look inside changes no text");
        let ended = server.stop().await;

        let mut gaps = Gaps::default();
        let requests: HashSet<Vec<u8>> = spans::request_traces(&spans::all(&receiver.received()))
            .iter()
            .filter_map(|trace| trace.model().map(|model| model.inner.span_id.clone()))
            .collect();
        gaps.equal("requests", requests.len(), 2);
        let steps = steps(&receiver);
        // One step of prefill and five of decode, for each or for both together.
        gaps.expect((6..=12).contains(&steps.len()), format_args!("{} steps", steps.len()));
        let mut linked = HashSet::new();
        for trace in &steps {
            let step = trace.named("engine.step")[0];
            check_tree(&mut gaps, "step", trace, Some(step));
            let parts: Vec<&str> = trace.children(step).iter().map(|child| child.name()).collect();
            gaps.equal("parts", &parts[..], &["plan", "upload", "forward", "read_back", "sample"][..]);
            let Some(forward) = trace.named("forward").first().copied() else { continue };
            let ops = trace.children(forward);
            gaps.expect(ops.len() > 20, format_args!("{} ops", ops.len()));
            let sum: i64 = ops.iter().filter_map(|op| op.int("limpid.flops")).sum();
            gaps.equal("FLOPs", forward.int("limpid.flops"), Some(sum));
            gaps.expect(forward.double("limpid.bytes_per_second") > Some(0.0), "no rate");
            for name in ["layer.0.attention", "layer.1.attention"] {
                gaps.expect(ops.iter().any(|op| op.name() == name), format_args!("no {name}"));
            }
            let num_requests = step.int("limpid.step.num_requests").unwrap_or(0);
            gaps.equal("links", step.inner.links.len() as i64, num_requests);
            for link in &step.inner.links {
                gaps.expect(requests.contains(&link.span_id), "a link to no request");
                linked.insert(link.span_id.clone());
            }
        }
        gaps.equal("requests that steps link to", linked, requests);
        gaps.assert_none(format_args!("{transport:?}\n{}", ended.log));
    }
}

#[tokio::test]
async fn without_all_or_with_a_ratio_of_nothing_no_step_is_traced() {
    for (detail, ratio) in [("model,worker", "1"), ("all", "0")] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, Transport::Grpc)
            .arg("--collect-detailed-traces", detail)
            .arg("--detailed-trace-step-ratio", ratio)
            .start()
            .await;
        server.client().post(COMPLETIONS, &completion(4)).await;
        server.stop().await;
        assert!(steps(&receiver).is_empty(), "{detail} at {ratio}");
    }
}

#[tokio::test]
async fn a_ratio_that_is_none_is_refused() {
    let ended = limpid_tests::server::Options::new(&limpid_tests::server::tiny_model())
        .arg("--detailed-trace-step-ratio", "1.5")
        .run()
        .await;
    assert!(!ended.status.success());
    assert!(
        ended.log.contains("--detailed-trace-step-ratio is 1.5; allowed: a number from 0 to 1"),
        "{}",
        ended.log
    );
}
