//! The collector's configurations: the real program takes them, and so does an older release of the same components.

use limpid_tests::gaps::Gaps;
use limpid_tests::programs::{missing, run};
use xtask::programs::Program;

const CONFIGS: [&str; 4] =
    ["config.yaml", "config-tail-sampling.yaml", "config-agent.yaml", "config-gateway.yaml"];

#[test]
fn the_collector_takes_every_configuration() {
    if missing(&[(Program::Collector, "collector")]) {
        return;
    }
    let mut gaps = Gaps::default();
    for config in CONFIGS {
        let path = format!("--config=otel-collector/{config}");
        if let Err(text) = run(Program::Collector, "collector", crate::root(), &["validate", &path]) {
            gaps.note(format_args!("{config}: {text}"));
        }
    }
    gaps.assert_none("collector validate");
}

/// Jaeger is a collector of release 0.140, the one of the image in the compose file. It lacks two of the contrib
/// distribution's components that are used, which have nothing to do with the rest.
#[test]
fn the_release_of_the_compose_file_takes_the_same_names_and_options() {
    if missing(&[(Program::Jaeger, "jaeger")]) {
        return;
    }
    let mut gaps = Gaps::default();
    for config in CONFIGS {
        let text = crate::read(&format!("otel-collector/{config}"));
        let text = text.replace("health_check", "healthcheckv2").replace("  resource:", "  attributes:");
        let text = text.replace("[memory_limiter, resource,", "[memory_limiter, attributes,");
        let text = text.replace("    attributes:\n", "    actions:\n");
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("config.yaml"), text).unwrap();
        if let Err(text) =
            run(Program::Jaeger, "jaeger", folder.path(), &["validate", "--config=config.yaml"])
        {
            gaps.note(format_args!("{config}: {text}"));
        }
    }
    gaps.assert_none("jaeger validate");
}
