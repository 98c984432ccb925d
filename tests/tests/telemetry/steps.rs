//! Traces of engine steps: op by op, linked to the requests of their batch, and only where asked for.

use std::collections::HashSet;

use limpid_tests::compliance::check_tree;
use limpid_tests::environment::has_wgpu_adapter;
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::spans::{self, Span, Trace};
use serde_json::json;

use crate::catalogue::SUCCESS;
use crate::{COMPLETIONS, completion, scrape_until, sending_to, with};

/// The devices that the machine has, each with the way its traces are sent.
fn devices() -> Vec<(&'static str, Transport)> {
    let mut devices = vec![("cpu", Transport::Grpc), ("cpu", Transport::Http)];
    if has_wgpu_adapter() {
        devices.push(("wgpu", Transport::Grpc));
    }
    devices
}

/// What a span says it had to do: FLOPs, bytes read, bytes written.
const WORK: [&str; 3] = ["limpid.flops", "limpid.bytes_read", "limpid.bytes_written"];

/// The work is stated, and the rates are the work by the time that the span lasts.
fn check_work(gaps: &mut Gaps, span: &Span) {
    let what = span.name();
    let [flops, read, written] = WORK.map(|key| {
        let value = gaps.some(format_args!("{what}: {key}"), span.int(key)).unwrap_or(-1);
        gaps.expect(value >= 0, format_args!("{what}: {key} is {value}"));
        value as f64
    });
    gaps.expect(flops + read > 0.0 && written > 0.0, format_args!("{what}: nothing to do"));
    let seconds = span.duration().as_secs_f64();
    for (key, work) in [("limpid.flops_per_second", flops), ("limpid.bytes_per_second", read + written)] {
        match span.double(key) {
            // A span is drawn in whole nanoseconds.
            Some(rate) => gaps.expect(
                (rate * seconds - work).abs() <= work * 1e-3 + rate * 2e-9,
                format_args!("{what}: {key} is {rate}, with {work} in {seconds} s"),
            ),
            // A device's clock may be too coarse to see a short op.
            None => gaps.equal(format_args!("{what}: {key} is absent, duration"), seconds, 0.0),
        }
    }
}

fn steps(receiver: &OtlpReceiver) -> Vec<Trace> {
    let traces = spans::traces(&spans::all(&receiver.received()));
    traces.into_iter().filter(|trace| !trace.named("engine.step").is_empty()).collect()
}

#[tokio::test]
async fn every_step_has_its_ops_and_links_to_its_requests_when_all_are_sampled() {
    for (device, transport) in devices() {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport)
            .arg("--device", device)
            .arg("--otlp-traces-endpoint", &receiver.traces_endpoint(transport))
            .arg("--collect-detailed-traces", "all")
            .arg("--detailed-trace-step-ratio", "1")
            .plain("--enable-mfu-metrics")
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "100000")
            .start()
            .await;
        let client = server.client();
        let request = with(completion(6), json!({"stream": true}));
        let ask = || async { client.stream(COMPLETIONS, &[], &request).await.chunks().await.text() };
        let (first, second) = tokio::join!(ask(), ask());
        assert_eq!(first, second, "a look inside changes no text");
        let counted = scrape_until(client, "both ended", |scrape| scrape.value(SUCCESS, &[]) == 2.0).await;
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
        let mut work = [0; WORK.len()];
        for trace in &steps {
            let step = trace.named("engine.step")[0];
            check_tree(&mut gaps, "step", trace, Some(step));
            let parts: Vec<&str> = trace.children(step).iter().map(|child| child.name()).collect();
            gaps.equal("parts", &parts[..], &["plan", "upload", "forward", "read_back", "sample"][..]);
            let Some(forward) = trace.named("forward").first().copied() else { continue };
            let ops = trace.children(forward);
            // Two layers, each of 6 dispatches at least, whose ops share a span.
            gaps.expect(ops.len() > 12, format_args!("{} ops", ops.len()));
            ops.iter().for_each(|op| check_work(&mut gaps, op));
            gaps.expect(
                ops.iter().any(|op| op.double("limpid.flops_per_second") > Some(0.0)),
                "no op has a rate",
            );
            check_work(&mut gaps, forward);
            for (key, total) in WORK.iter().zip(&mut work) {
                let sum: i64 = ops.iter().filter_map(|op| op.int(key)).sum();
                gaps.equal(format_args!("{key} of the forward pass"), forward.int(key), Some(sum));
                *total += sum;
            }
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
        let counters = ["flops", "read_bytes", "write_bytes"];
        for (counter, total) in counters.iter().zip(work) {
            let name = format!("vllm:estimated_{counter}_per_gpu_total");
            gaps.equal(
                format_args!("{name} and the ops of all steps"),
                counted.value(&name, &[]),
                total as f64,
            );
        }
        gaps.assert_none(format_args!("{device}, {transport:?}\n{}", ended.log));
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

#[tokio::test]
async fn a_start_on_a_gpu_has_its_pipelines_and_its_warm_up() {
    if !has_wgpu_adapter() {
        return;
    }
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = sending_to(&receiver, transport).arg("--device", "wgpu").start().await;
        let ended = server.stop().await;
        let traces = spans::traces(&spans::all(&receiver.received()));
        let mut gaps = Gaps::default();
        gaps.equal("traces", traces.len(), 1);
        for trace in &traces {
            let root = trace.named("startup").first().copied();
            check_tree(&mut gaps, "start", trace, root);
            let Some(root) = gaps.some("the root", root) else { continue };
            let phases = trace.children(root);
            let names: Vec<&str> = phases.iter().map(|phase| phase.name()).collect();
            let expected = [
                "open_model",
                "load_tokenizer",
                "build_program",
                "find_device",
                "upload_weights",
                "build_pipelines",
                "warm_up",
            ];
            gaps.equal("phases", &names[..], &expected[..]);
            for (one, next) in phases.iter().zip(&phases[1..]) {
                gaps.expect(
                    one.inner.end_time_unix_nano <= next.inner.start_time_unix_nano,
                    format_args!("{} and {} overlap", one.name(), next.name()),
                );
                gaps.expect(!one.duration().is_zero(), format_args!("{} took no time", one.name()));
            }
        }
        gaps.assert_none(format_args!("{transport:?}\n{}", ended.log));
    }
}
