//! The programs in `examples` that need none of the far end's: with the receiver in place of Jaeger, and an engine of
//! another make.

use std::path::Path;
use std::process::Stdio;

use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::otlp_metrics::streams;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{binary, built, slow_model};
use limpid_tests::spans;

#[tokio::test]
async fn the_jaeger_example_sends_the_traces_it_prints() {
    let curl = std::process::Command::new("curl").arg("--version").stdout(Stdio::null()).status();
    if !curl.is_ok_and(|status| status.success()) {
        limpid_tests::environment::skip("curl", "LIMPID_REQUIRE_TOOLS", "apt-get install curl");
        return;
    }
    let receiver = OtlpReceiver::start().await;
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces-to-jaeger/run.sh");
    let output = tokio::process::Command::new(script)
        .env("LIMPID", binary())
        .env("LIMPID_ARGS", format!("{} --device cpu", slow_model().display()))
        .env("PORT", port.to_string())
        .env("OTLP_ENDPOINT", receiver.traces_endpoint(Transport::Grpc))
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{log}");
    let printed: Vec<&str> =
        out.lines().filter_map(|line| line.rsplit_once("/trace/")).map(|(_, id)| id).collect();
    assert_eq!(printed.len(), 2, "{out}");
    let traces = spans::traces(&spans::all(&receiver.received()));
    for id in printed {
        let trace = traces.iter().find(|trace| trace.id() == id).unwrap_or_else(|| panic!("{id} in\n{log}"));
        assert!(trace.model().is_some(), "{}", trace.text());
    }
}

#[tokio::test]
async fn an_engine_of_another_make_has_vllms_metrics_and_its_traces() {
    let source = include_str!("../../../examples/own-engine/main.rs");
    assert!(source.lines().count() < 60, "it is to be short");
    let receiver = OtlpReceiver::start().await;
    let output = tokio::process::Command::new(built("own-engine"))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint(Transport::Grpc))
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    let scrape =
        Scrape::parse(&printed, Format::Text004).unwrap_or_else(|broken| panic!("{broken}\n{printed}"));
    assert_eq!(scrape.value("vllm:request_success_total", &[("finished_reason", "stop")]), 2.0);
    assert_eq!(scrape.value("vllm:prompt_tokens_total", &[]), 8.0);
    assert_eq!(scrape.value("vllm:generation_tokens_total", &[]), 8.0);
    assert_eq!(scrape.histogram("vllm:inter_token_latency_seconds").count, 6.0);
    let received = receiver.received();
    let traces = spans::traces(&spans::all(&received));
    assert_eq!(traces.len(), 2, "one for each request");
    for trace in traces {
        let names: Vec<&str> = trace.spans.iter().map(|span| span.name()).collect();
        assert_eq!(names, ["queue", "prefill", "decode", "text_completion toy"], "{}", trace.text());
    }
    let pushed = received.metrics.last().map(|export| streams(&export.message)).expect("metrics");
    assert!(pushed.contains_key("vllm:generation_tokens_total"));
}
