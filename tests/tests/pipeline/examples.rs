//! The examples that need programs at the far end, as they are written.

use std::path::Path;
use std::process::Stdio;

use limpid_tests::environment::python_with;
use limpid_tests::programs::collector::{Collector, Ports};
use limpid_tests::programs::jaeger::Jaeger;
use limpid_tests::programs::prometheus::Prometheus;
use limpid_tests::programs::{free_addresses, missing};
use limpid_tests::server::{binary, slow_model};
use xtask::programs::Program;

use crate::{EXPORTER, OWN, alone, root};

/// Runs an example's script with a limpid of a small model and returns what it printed.
async fn run(script: &str, environment: &[(&str, String)]) -> String {
    let [address] = free_addresses();
    let output = tokio::process::Command::new(root().join(script))
        .env("LIMPID", binary())
        .env("LIMPID_ARGS", format!("{} --device cpu --num-gpu-blocks-override 1025", slow_model().display()))
        .env("PORT", address.port().to_string())
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()
        .await
        .expect("the script should start");
    let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{log}");
    out.into_owned()
}

#[tokio::test]
async fn the_detailed_traces_example_draws_the_request_and_prints_two_steps_op_by_op() {
    if missing(&[(Program::Jaeger, "jaeger")]) || python_with("json").is_none() {
        return;
    }
    let _alone = alone().await;
    let jaeger = Jaeger::start().await;
    let environment = [
        ("OTLP_ENDPOINT", format!("http://{}", jaeger.otlp)),
        ("JAEGER", format!("http://{}", jaeger.query)),
    ];
    let printed = run("examples/detailed-traces/run.sh", &environment).await;
    for line in ["POST /v1/chat/completions", "└─ chat ", "   ├─ queue", "   ├─ prefill", "   └─ decode"]
    {
        assert!(printed.lines().any(|found| found.starts_with(line)), "{line:?} in\n{printed}");
    }
    assert!(printed.contains("gen_ai.latency.time_in_model_forward"), "{printed}");
    let steps: Vec<&str> = printed.split("A step of ").skip(1).collect();
    let [prefill, decode] = steps[..] else { panic!("two steps in\n{printed}") };
    assert!(decode.starts_with("1 token of 1 request: "), "{printed}");
    for step in [prefill, decode] {
        for part in ["plan", "upload", "forward", "read_back", "sample", "op "] {
            assert!(step.lines().any(|line| line.trim_start().starts_with(part)), "{part} in\n{printed}");
        }
        // Each of the six layers has one; behind its time come the two rates.
        let down = step.lines().find(|line| line.trim_start().starts_with("down "));
        let down: Vec<&str> = down.map(|line| line.split_whitespace().collect()).unwrap_or_default();
        assert_eq!((down.get(1), down.len()), (Some(&"6"), 5), "{printed}");
    }
}

#[tokio::test]
async fn the_prometheus_example_pushes_three_requests_and_prints_what_prometheus_says() {
    let needed = [(Program::Collector, "collector"), (Program::Prometheus, "prometheus")];
    if missing(&needed) || python_with("json").is_none() {
        return;
    }
    let _alone = alone().await;
    // It gets no traces, so nobody has to take them.
    let [nobody] = free_addresses();
    let collector = Collector::start("config.yaml", Ports::free(), nobody).await;
    let targets = [(EXPORTER, vec![collector.ports.exporter]), (OWN, vec![collector.ports.own])];
    let prometheus = Prometheus::start(&targets.into(), false).await;
    let environment =
        [("OTLP_ENDPOINT", collector.endpoint()), ("PROMETHEUS", format!("http://{}", prometheus.address))];
    let printed = run("examples/collector-to-prometheus/run.sh", &environment).await;
    let value = |title: &str| -> f64 {
        let line = printed.lines().find(|line| line.starts_with(title));
        let rest = line.unwrap_or_else(|| panic!("{title} in\n{printed}")).trim_start_matches(title);
        rest.split_whitespace().next().expect("a value").parse().expect("a number")
    };
    assert_eq!(value("requests that ended "), 3.0);
    assert_eq!(value("tokens out "), 96.0);
    assert!(value("time to first token, 95th percentile in s ") > 0.0, "{printed}");
}

#[test]
fn every_script_of_an_example_is_one_that_a_test_runs() {
    let run: Vec<&str> = vec![
        "examples/collector-to-prometheus/run.sh",
        "examples/detailed-traces/run.sh",
        "examples/traces-to-jaeger/run.sh",
    ];
    let mut found = Vec::new();
    for folder in std::fs::read_dir(root().join("examples")).expect("examples") {
        let script = folder.expect("an entry").path().join("run.sh");
        if script.is_file() {
            found.push(script.strip_prefix(root()).map(Path::to_path_buf).expect("below the root"));
        }
    }
    found.sort();
    assert_eq!(found, run.iter().map(Path::new).collect::<Vec<_>>());
}
