//! Wrong inputs end the process before its port opens, and say what is wrong.

use limpid_tests::gaps::Gaps;
use limpid_tests::server::{CONTEXT_LENGTH, Ended, Options, tiny_model};
use tokio::net::TcpListener;

/// Runs a server that cannot start and notes what its message lacks.
async fn expect_refusal(gaps: &mut Gaps, what: &str, options: Options, wanted: &[&str]) -> Ended {
    let ended = options.run().await;
    gaps.expect(!ended.status.success(), format_args!("{what}: the exit status is {}", ended.status));
    gaps.expect(ended.status.code().is_some(), format_args!("{what}: ended by a signal: {}", ended.status));
    for text in wanted {
        gaps.expect(ended.log.contains(text), format_args!("{what}: no {text:?} in:\n{}", ended.log));
    }
    gaps.expect(!ended.log.contains("panicked"), format_args!("{what}: panicked:\n{}", ended.log));
    gaps.expect(!ended.log.contains("listening"), format_args!("{what}: the port was open:\n{}", ended.log));
    ended
}

#[tokio::test]
async fn a_missing_model_is_refused_by_its_path() {
    let mut gaps = Gaps::default();
    let path = tiny_model().with_file_name("absent.gguf");
    let name = path.display().to_string();
    expect_refusal(&mut gaps, "missing model", Options::new(&path), &[&name]).await;
    gaps.assert_none("the message names the file");
}

#[tokio::test]
async fn a_truncated_model_is_refused_with_the_tensor_the_end_needed_and_the_size() {
    let mut gaps = Gaps::default();
    let whole = std::fs::read(tiny_model()).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("truncated.gguf");
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let size = (whole.len() - 1).to_string();
    expect_refusal(
        &mut gaps,
        "last byte missing",
        Options::new(&path),
        &["truncated.gguf", ".weight", &size],
    )
    .await;

    for (what, length) in [("header only", 24), ("half a header", 10), ("nothing", 0)] {
        std::fs::write(&path, &whole[..length]).unwrap();
        expect_refusal(&mut gaps, what, Options::new(&path), &["truncated.gguf"]).await;
    }
    std::fs::write(&path, vec![b'x'; 4096]).unwrap();
    expect_refusal(&mut gaps, "no GGUF at all", Options::new(&path), &["truncated.gguf"]).await;
    gaps.assert_none("the message names the file and what is wrong with it");
}

#[tokio::test]
async fn a_port_in_use_is_refused_by_its_number() {
    let mut gaps = Gaps::default();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let options = Options::new(&tiny_model()).arg("--port", &port);
    expect_refusal(&mut gaps, "port in use", options, &["--port", &port]).await;
    gaps.assert_none("the message names the setting and the port");
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_with_what_is_allowed() {
    let mut gaps = Gaps::default();
    let above = (CONTEXT_LENGTH + 1).to_string();
    let context = CONTEXT_LENGTH.to_string();
    let plain = || Options::new(&tiny_model());
    for (what, options, wanted) in [
        (
            "max-model-len above the model's",
            plain().arg("--max-model-len", &above),
            vec!["--max-model-len", &above, &context],
        ),
        (
            "an endpoint that cannot be parsed",
            plain().arg("--otlp-traces-endpoint", "http://not a host:4317"),
            vec!["--otlp-traces-endpoint", "not a host"],
        ),
        (
            "a metrics endpoint that cannot be parsed",
            plain().arg("--otlp-metrics-endpoint", "::::"),
            vec!["--otlp-metrics-endpoint", "::::"],
        ),
        (
            "an unknown protocol",
            plain()
                .arg("--otlp-traces-endpoint", "http://127.0.0.1:4317")
                .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            vec!["OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf", "grpc"],
        ),
        (
            "detailed traces without a place to send them",
            plain().arg("--collect-detailed-traces", "all"),
            vec!["--collect-detailed-traces", "--otlp-traces-endpoint"],
        ),
        (
            "detailed traces of an unknown kind",
            plain()
                .arg("--otlp-traces-endpoint", "http://127.0.0.1:4317")
                .arg("--collect-detailed-traces", "everything"),
            vec!["--collect-detailed-traces", "everything", "model", "worker", "all"],
        ),
        ("a block size of 0", plain().arg("--block-size", "0"), vec!["--block-size", "0"]),
        ("no sequences", plain().arg("--max-num-seqs", "0"), vec!["--max-num-seqs", "0"]),
        ("no budget", plain().arg("--max-num-batched-tokens", "0"), vec!["--max-num-batched-tokens", "0"]),
        ("an unknown device", plain().arg("--device", "tpu"), vec!["--device", "tpu", "wgpu", "cpu"]),
        ("a CPU where a GPU is required", plain().plain("--require-gpu"), vec!["--require-gpu"]),
        ("a port that is no number", plain().arg("--port", "http"), vec!["--port", "http"]),
        ("an unknown flag", plain().plain("--no-such-flag"), vec!["--no-such-flag"]),
    ] {
        expect_refusal(&mut gaps, what, options, &wanted).await;
    }
    gaps.assert_none("setting, value found, what is allowed");
}

#[tokio::test]
async fn a_model_larger_than_the_memory_is_refused_with_the_bytes_it_needs_and_those_there_are() {
    let mut gaps = Gaps::default();
    // As good as a device with a few kilobytes.
    let options = Options::new(&tiny_model()).without("--num-gpu-blocks-override");
    let options = options.arg("--gpu-memory-utilization", "0.0000001");
    let weights = 4 * (275 * 64 + 2 * 36_864 + 5 * 64);
    let weights = format!("{weights} of weights");
    let wanted = ["--gpu-memory-utilization", "enough for", &weights, "available bytes", "--max-model-len"];
    expect_refusal(&mut gaps, "a large model", options, &wanted).await;
    gaps.assert_none("needed and available bytes, and what to do");
}

#[tokio::test]
async fn the_log_says_what_was_chosen() {
    let server = Options::new(&tiny_model())
        .arg("--otlp-traces-endpoint", "http://127.0.0.1:9")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .start()
        .await;
    let log = server.log();
    for wanted in ["http/protobuf", "127.0.0.1:9", "cpu", limpid_tests::server::MODEL] {
        assert!(log.contains(wanted), "{wanted} in:\n{log}");
    }
}
