//! The arrows between crates point one way: `server → engine → telemetry`. Each test is one absence.

use std::collections::BTreeSet;

use limpid_tests::gaps::Gaps;

/// Names of every package that `package` needs to run.
fn dependencies(package: &str, more: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let tree = super::cargo(&[&tree, more].concat());
    let names: BTreeSet<String> =
        tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert!(names.contains(package), "{package} should be in its own tree");
    names
}

#[track_caller]
fn assert_absent(package: &str, more: &[&str], absent: &[&str]) {
    let found = dependencies(package, more);
    let mut gaps = Gaps::default();
    for pattern in absent {
        for name in &found {
            let matches =
                pattern.strip_suffix('*').map_or(name == pattern, |prefix| name.starts_with(prefix));
            gaps.expect(!matches, format_args!("{package} depends on {name}"));
        }
    }
    gaps.assert_none("see the invariants in docs/architecture.md");
}

#[test]
fn engine_does_not_depend_on_http_or_rpc() {
    assert_absent("limpid-engine", &[], &["axum*", "hyper*", "tonic*", "tower*", "http", "reqwest", "h2"]);
}

#[test]
fn engine_does_not_depend_on_opentelemetry() {
    assert_absent("limpid-engine", &[], &["opentelemetry*", "tracing-opentelemetry", "prost*"]);
}

#[test]
fn engine_does_not_depend_on_an_async_runtime() {
    assert_absent("limpid-engine", &[], &["tokio*", "mio", "async-std"]);
}

#[test]
fn engine_does_not_depend_on_the_command_line() {
    assert_absent("limpid-engine", &[], &["clap*", "limpid"]);
}

#[test]
fn telemetry_does_not_depend_on_the_engine_or_the_server() {
    assert_absent("limpid-telemetry", &["--all-features"], &["limpid", "limpid-engine", "wgpu*", "naga"]);
}

#[test]
fn telemetry_does_not_depend_on_an_http_server_of_its_own() {
    // tonic brings axum in only with its server side, which an exporter has no use for.
    assert_absent("limpid-telemetry", &["--all-features"], &["axum*", "clap*"]);
}

#[test]
fn telemetry_without_the_sdk_has_no_dependencies() {
    let found = dependencies("limpid-telemetry", &["--no-default-features"]);
    assert_eq!(found, BTreeSet::from(["limpid-telemetry".to_owned()]));
}

#[test]
fn nothing_depends_on_a_second_tls_or_crypto_library() {
    assert_absent("limpid", &[], &["openssl", "openssl-sys", "native-tls", "aws-lc*", "boring*"]);
}

#[test]
fn only_server_and_tests_start_the_opentelemetry_sdk() {
    let mut gaps = Gaps::default();
    for path in super::files("engine/src", &[".rs"]).iter().chain(&super::files("xtask/src", &[".rs"])) {
        gaps.expect(
            !super::read(path).contains("opentelemetry_"),
            format_args!("{path:?} names a crate of OpenTelemetry"),
        );
    }
    for path in super::files("telemetry/src", &[".rs"]) {
        // A provider made global would reach into the process of whoever uses the crate for more than metrics
        // and spans; starting the pipeline itself is `Telemetry::start`, which only the server calls.
        let source = super::read(&path);
        gaps.expect(
            !source.contains("set_tracer_provider"),
            format_args!("{path:?} sets a global tracer provider"),
        );
    }
    gaps.assert_none("see the invariants in docs/architecture.md");
}

#[test]
fn scheduler_and_kv_cache_know_no_device() {
    let mut gaps = Gaps::default();
    let mut sources = super::files("engine/src/scheduler", &[".rs"]);
    sources.extend(super::files("engine/src/kv_cache", &[".rs"]));
    assert!(sources.len() >= 2, "the modules should be where they were");
    for path in sources {
        for (number, line) in super::read(&path).lines().enumerate() {
            let line = line.trim();
            let import = line.starts_with("use ") || line.starts_with("pub use ");
            for banned in ["wgpu", "crate::kernels", "crate::device", "crate::model", "crate::program"] {
                gaps.expect(
                    !(import && line.contains(banned)),
                    format_args!("{}:{}: {line}", path.display(), number + 1),
                );
            }
        }
    }
    gaps.assert_none("scheduling decides over tokens and blocks; device::Batch is built elsewhere");
}

#[test]
fn scheduler_owns_no_clock_thread_or_randomness() {
    let mut gaps = Gaps::default();
    for path in super::files("engine/src/scheduler", &[".rs"]) {
        if path.ends_with("tests.rs") {
            continue;
        }
        let source = super::read(&path);
        let code = source.split("#[cfg(test)]").next().unwrap();
        for banned in ["Instant::now", "SystemTime", "std::thread", "thread::spawn", "rand::"] {
            gaps.expect(!code.contains(banned), format_args!("{path:?} uses {banned}"));
        }
    }
    gaps.assert_none("plan(now) and apply(plan, output, now) take the time as an argument");
}

#[test]
fn engine_reads_no_environment() {
    let mut gaps = Gaps::default();
    for path in super::files("engine/src", &[".rs"]) {
        let source = super::read(&path);
        let code = source.split("#[cfg(test)]").next().unwrap();
        // Modules that exist in tests only.
        let test = ["tests.rs", "test_support.rs", "testing.rs"].iter().any(|name| path.ends_with(name));
        gaps.expect(test || !code.contains("env::var"), format_args!("{path:?} reads environment variables"));
    }
    gaps.assert_none("flags and variables are the server's business");
}
