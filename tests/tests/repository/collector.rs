//! The files under `otel-collector/` agree with each other: what a pipeline names is declared, what is
//! mounted exists, who scrapes and sends reaches a port that is open.

use std::collections::BTreeSet;

use limpid_tests::gaps::Gaps;
use serde_json::Value;

fn yaml(path: &str) -> Value {
    let text = super::read(path);
    serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().expect("a string").to_owned()).collect()
}

/// The port at the end of `host:port` or of a URL; variables with a default stand for their default.
fn port(endpoint: &str) -> u16 {
    let digits: String = endpoint
        .trim_end_matches(['}', '/'])
        .chars()
        .rev()
        .take_while(char::is_ascii_digit)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    digits.parse().unwrap_or_else(|_| panic!("no port in {endpoint}"))
}

#[test]
fn every_yaml_file_parses() {
    let files: Vec<_> = super::files("otel-collector", &[".yaml", ".yml"]);
    assert!(files.len() >= 5, "found only {files:?}");
    for path in files {
        let text = super::read(&path);
        let value: Result<Value, _> = serde_yaml_ng::from_str(&text);
        assert!(value.is_ok_and(|value| value.is_object()), "{path:?} should be a YAML mapping");
    }
}

#[test]
fn pipelines_use_only_what_is_declared_and_everything_declared_is_used() {
    for file in ["config.yaml", "config-tail-sampling.yaml", "config-agent.yaml", "config-gateway.yaml"] {
        let config = yaml(&format!("otel-collector/{file}"));
        let pipelines = config["service"]["pipelines"].as_object().expect("pipelines");
        let used = |role: &str| -> BTreeSet<String> {
            pipelines.values().flat_map(|pipeline| strings(&pipeline[role])).collect()
        };
        // A connector ends one pipeline and begins another.
        let connectors = keys(&config["connectors"]);
        let mut gaps = Gaps::default();
        for role in ["receivers", "processors", "exporters"] {
            let mut declared = keys(&config[role]);
            if role != "processors" {
                declared.extend(connectors.iter().cloned());
            }
            for name in used(role).symmetric_difference(&declared) {
                gaps.note(format_args!("{role}: {name} is declared or used, but not both"));
            }
        }
        let declared = keys(&config["extensions"]);
        let extensions: BTreeSet<String> = strings(&config["service"]["extensions"]).into_iter().collect();
        gaps.equal("extensions", extensions, declared);
        for (name, pipeline) in pipelines {
            let processors = strings(&pipeline["processors"]);
            let first = processors.first().map(String::as_str);
            gaps.equal(format_args!("first processor of {name}"), first, Some("memory_limiter"));
            let last = processors.last().map(String::as_str);
            gaps.equal(format_args!("last processor of {name}"), last, Some("batch"));
        }
        gaps.assert_none(file);
    }
}

#[test]
fn metrics_and_traces_have_a_way_through() {
    let config = yaml("otel-collector/config.yaml");
    let pipelines = &config["service"]["pipelines"];
    assert_eq!(strings(&pipelines["traces"]["receivers"]), ["otlp"]);
    assert_eq!(strings(&pipelines["metrics"]["receivers"]), ["otlp", "spanmetrics"]);
    assert!(strings(&pipelines["metrics"]["exporters"]).contains(&"prometheus".to_owned()));
    let protocols = &config["receivers"]["otlp"]["protocols"];
    assert_eq!(port(protocols["grpc"]["endpoint"].as_str().unwrap()), 4317);
    assert_eq!(port(protocols["http"]["endpoint"].as_str().unwrap()), 4318);
    assert_eq!(
        config["exporters"]["prometheus"]["enable_open_metrics"], true,
        "exemplars pass only in OpenMetrics"
    );
}

#[test]
fn what_the_compose_file_mounts_exists() {
    let compose = yaml("otel-collector/compose.yaml");
    let mut gaps = Gaps::default();
    let mut mounts = 0;
    for (name, service) in compose["services"].as_object().expect("services") {
        for volume in strings(&service["volumes"]) {
            let Some(source) = volume.split(':').next().filter(|source| source.starts_with('.')) else {
                continue;
            };
            mounts += 1;
            gaps.expect(
                super::root().join("otel-collector").join(source).exists(),
                format_args!("{name} mounts {source}, which does not exist"),
            );
            gaps.expect(volume.ends_with(":ro"), format_args!("{name} may write to {source}"));
        }
        let image = service["image"].as_str();
        gaps.expect(
            image.is_some_and(|image| image.contains(':') && !image.ends_with(":latest")),
            format_args!("{name}'s image has no fixed version: {image:?}"),
        );
        for dependency in keys(&service["depends_on"]).into_iter().chain(strings(&service["depends_on"])) {
            gaps.expect(
                compose["services"].get(&dependency).is_some(),
                format_args!("{name} depends on {dependency}"),
            );
        }
    }
    assert!(mounts >= 3, "the mounts should be found");
    gaps.assert_none("otel-collector/compose.yaml");
}

/// Tags cannot be looked up where tests run, but two that differ cannot both be the one that was meant.
#[test]
fn images_have_the_tag_of_the_compose_file_wherever_they_are_named() {
    let compose = yaml("otel-collector/compose.yaml");
    let mut gaps = Gaps::default();
    let mut seen = 0;
    for service in compose["services"].as_object().expect("services").values() {
        let image = service["image"].as_str().expect("an image");
        let (name, tag) = image.rsplit_once(':').expect("a tag");
        for path in super::files(".", &[".md", ".yaml", ".sh"]) {
            for found in super::read(&path).split(&format!("{name}:")).skip(1) {
                let end = found.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
                let found = &found[..end.unwrap_or(found.len())];
                gaps.equal(format_args!("{}: tag of {name}", path.display()), found, tag);
                seen += 1;
            }
        }
    }
    assert!(seen >= 9, "{seen} images");
    gaps.assert_none("otel-collector/compose.yaml");
}

#[test]
fn every_published_port_stays_on_this_machine() {
    let compose = yaml("otel-collector/compose.yaml");
    for (name, service) in compose["services"].as_object().unwrap() {
        for published in strings(&service["ports"]) {
            assert!(published.starts_with("127.0.0.1:"), "{name} publishes {published}");
        }
    }
}

#[test]
fn ports_agree_between_the_collector_prometheus_and_compose() {
    let config = yaml("otel-collector/config.yaml");
    let compose = yaml("otel-collector/compose.yaml");
    let prometheus = yaml("otel-collector/prometheus/prometheus.yaml");
    let exporter = port(config["exporters"]["prometheus"]["endpoint"].as_str().unwrap());

    let jobs = prometheus["scrape_configs"].as_array().unwrap();
    let targets = |job: &Value| strings(&job["static_configs"][0]["targets"]);
    let job = jobs.iter().find(|job| {
        targets(job).iter().any(|target| target.starts_with("collector:") && port(target) == exporter)
    });
    let job = job.expect("a job that scrapes the collector's Prometheus exporter");
    assert_eq!(job["honor_labels"], true, "job and instance come from the resource");
    for target in jobs.iter().flat_map(targets) {
        let host = target.split(':').next().unwrap();
        assert!(compose["services"].get(host).is_some(), "{target} is no service of the compose file");
    }

    let published: Vec<String> = strings(&compose["services"]["collector"]["ports"]);
    for wanted in [4317, 4318] {
        assert!(published.iter().any(|port| port.ends_with(&format!(":{wanted}"))), "{published:?}");
    }
    let traces = config["exporters"]
        .as_object()
        .unwrap()
        .iter()
        .find(|(name, _)| name.starts_with("otlp"))
        .expect("an OTLP exporter for traces");
    let backend = traces.1["endpoint"].as_str().unwrap();
    assert!(backend.contains("jaeger:4317"), "traces go to {backend}");
}

#[test]
fn grafana_leads_from_an_exemplar_to_its_trace() {
    let sources = yaml("otel-collector/grafana/provisioning/datasources/datasources.yaml");
    let sources = sources["datasources"].as_array().unwrap();
    let of_type = |kind: &str| {
        sources.iter().find(|source| source["type"] == kind).unwrap_or_else(|| panic!("no {kind} source"))
    };
    let destinations = &of_type("prometheus")["jsonData"]["exemplarTraceIdDestinations"];
    for (index, kind) in ["jaeger", "tempo"].into_iter().enumerate() {
        assert_eq!(destinations[index]["name"], "trace_id", "the exemplar's label");
        assert_eq!(destinations[index]["datasourceUid"], of_type(kind)["uid"]);
        let back = &of_type(kind)["jsonData"]["tracesToMetrics"];
        assert_eq!(back["datasourceUid"], of_type("prometheus")["uid"]);
        assert!(!back["queries"].as_array().expect("queries").is_empty());
    }
    let compose = yaml("otel-collector/compose.yaml");
    for source in sources {
        let url = source["url"].as_str().unwrap();
        let host = url.trim_start_matches("http://").split(':').next().unwrap();
        assert!(compose["services"].get(host).is_some(), "{url} is no service of the compose file");
    }
}
