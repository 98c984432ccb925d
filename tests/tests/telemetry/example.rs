//! The program in `examples/traces-to-jaeger`, with the receiver in place of Jaeger.

use std::path::Path;
use std::process::Stdio;

use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{binary, slow_model};
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
