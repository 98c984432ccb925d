//! The Kubernetes manifests: their parts fit each other, and every series that their readers read is there.

use std::collections::{BTreeMap, BTreeSet};

use limpid_tests::exposition::{Format, Scrape};
use limpid_tests::gaps::Gaps;
use limpid_tests::programs::prometheus::Prometheus;
use limpid_tests::programs::{missing, poll};
use limpid_tests::server::{Options, tiny_model};
use serde::Deserialize;
use serde_json::Value;
use xtask::programs::Program;

use crate::{CHAT, SOON, alone, chat, read, root};

/// Every document of every manifest.
fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    let folder = root().join("examples/kubernetes");
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).expect("a manifest");
            for document in serde_yaml_ng::Deserializer::from_str(&text) {
                let object = Value::deserialize(document);
                objects.push(object.unwrap_or_else(|error| panic!("{path:?}: {error}")));
            }
        }
    }
    objects
}

fn of_kind(kind: &str) -> Vec<Value> {
    let found: Vec<Value> = objects().into_iter().filter(|object| object["kind"] == kind).collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(value: &Value) -> Vec<&str> {
    list(value).map(|text| text.as_str().expect("text")).collect()
}

/// Whether a selector's labels are all among the object's.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().expect("labels to select by");
    !selector.is_empty() && selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

fn pods() -> Vec<Value> {
    of_kind("Deployment").iter().map(|deployment| deployment["spec"]["template"].clone()).collect()
}

#[test]
fn every_object_says_what_it_is_in_an_api_that_exists() {
    let known = BTreeSet::from([
        ("apps/v1", "Deployment"),
        ("v1", "Service"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
        ("keda.sh/v1alpha1", "ScaledObject"),
        ("inference.networking.k8s.io/v1", "InferencePool"),
    ]);
    let mut names = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for object in objects() {
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        assert!(known.contains(&(version.as_str(), kind.as_str())), "{version} {kind}");
        assert!(names.insert((kind.clone(), name.clone())), "{kind} {name} comes twice");
        seen.insert(kind);
    }
    assert_eq!(seen.len(), known.len(), "kinds: {seen:?}");
}

#[test]
fn selectors_and_ports_lead_somewhere() {
    let mut gaps = Gaps::default();
    for deployment in of_kind("Deployment") {
        let (spec, name) = (&deployment["spec"], &deployment["metadata"]["name"]);
        let fits = selects(&spec["selector"]["matchLabels"], &spec["template"]["metadata"]["labels"]);
        gaps.expect(fits, format_args!("{name} does not select its own pods"));
        let pod = &spec["template"]["spec"];
        let volumes: BTreeSet<&str> =
            list(&pod["volumes"]).filter_map(|volume| volume["name"].as_str()).collect();
        for container in list(&pod["containers"]).chain(list(&pod["initContainers"])) {
            let image = container["image"].as_str().unwrap_or_default();
            gaps.expect(image.contains(':') && !image.ends_with(":latest"), format_args!("image {image:?}"));
            for mount in list(&container["volumeMounts"]) {
                let volume = mount["name"].as_str().unwrap_or_default();
                gaps.expect(volumes.contains(volume), format_args!("{name} mounts {volume}"));
            }
        }
    }
    for service in of_kind("Service") {
        let name = &service["metadata"]["name"];
        let pods = pods();
        let pod = pods.iter().find(|pod| selects(&service["spec"]["selector"], &pod["metadata"]["labels"]));
        let Some(pod) = gaps.some(format_args!("pods of {name}"), pod) else { continue };
        let open: BTreeSet<&str> = list(&pod["spec"]["containers"])
            .flat_map(|container| list(&container["ports"]))
            .filter_map(|port| port["name"].as_str())
            .collect();
        for port in list(&service["spec"]["ports"]) {
            let target = port["targetPort"].as_str().unwrap_or_default();
            gaps.expect(open.contains(target), format_args!("{name} leads to port {target}"));
        }
    }
    let services = of_kind("Service");
    for monitor in of_kind("ServiceMonitor") {
        let name = &monitor["metadata"]["name"];
        let selector = &monitor["spec"]["selector"]["matchLabels"];
        let service = services.iter().find(|service| selects(selector, &service["metadata"]["labels"]));
        let Some(service) = gaps.some(format_args!("service of monitor {name}"), service) else { continue };
        for endpoint in list(&monitor["spec"]["endpoints"]) {
            let open = list(&service["spec"]["ports"]).any(|port| port["name"] == endpoint["port"]);
            gaps.expect(open, format_args!("{name} scrapes port {}", endpoint["port"]));
        }
    }
    for object in of_kind("ScaledObject") {
        let target = &object["spec"]["scaleTargetRef"]["name"];
        let exists = of_kind("Deployment").iter().any(|deployment| deployment["metadata"]["name"] == *target);
        gaps.expect(exists, format_args!("{target} is to be scaled"));
    }
    for pool in of_kind("InferencePool") {
        let spec = &pool["spec"];
        let pods = pods();
        let pod =
            pods.iter().find(|pod| selects(&spec["selector"]["matchLabels"], &pod["metadata"]["labels"]));
        let open = list(&pod.expect("pods of the pool")["spec"]["containers"])
            .flat_map(|container| list(&container["ports"]))
            .any(|port| port["containerPort"] == spec["targetPorts"][0]["number"]);
        gaps.expect(open, "the pool's port is closed");
        let picker = &spec["endpointPickerRef"];
        let service = services.iter().find(|service| service["metadata"]["name"] == picker["name"]);
        let open = service.is_some_and(|service| {
            list(&service["spec"]["ports"]).any(|port| port["port"] == picker["port"]["number"])
        });
        gaps.expect(open, "the picker's port is closed");
    }
    gaps.assert_none("examples/kubernetes");
}

#[tokio::test]
async fn limpid_knows_every_flag_in_the_manifest() {
    let help = Options::command("serve").plain("--help").run().await.log;
    for pod in pods() {
        for container in list(&pod["spec"]["containers"]).filter(|container| container["name"] == "limpid") {
            for argument in texts(&container["args"]).iter().filter(|argument| argument.starts_with("--")) {
                let flag = argument.split('=').next().unwrap();
                assert!(help.contains(flag), "{flag} is not among:\n{help}");
            }
        }
    }
}

#[test]
fn the_configurations_that_pods_mount_are_those_of_this_repository() {
    let readme = read("examples/kubernetes/README.md");
    for pod in pods() {
        for volume in list(&pod["spec"]["volumes"]) {
            let Some(map) = volume["configMap"]["name"].as_str() else { continue };
            let file = map.replace("limpid-collector-", "otel-collector/config-") + ".yaml";
            assert!(root().join(&file).is_file(), "{file}");
            assert!(readme.contains(map) && readme.contains(&file), "README.md makes {map} from {file}");
        }
    }
}

#[tokio::test]
async fn the_endpoint_picker_finds_its_gauges_on_limpids_own_page() {
    let server = Options::new(&tiny_model()).start().await;
    let scrape = Scrape::parse(server.client().get("/metrics").await.text(), Format::Text004).unwrap();
    let mut read = BTreeMap::new();
    for deployment in of_kind("Deployment") {
        for container in list(&deployment["spec"]["template"]["spec"]["containers"]) {
            for argument in texts(&container["args"]) {
                if let Some((flag, metric)) =
                    argument.split_once("-metric=").filter(|(_, name)| !name.is_empty())
                {
                    read.insert(flag.to_owned(), metric.to_owned());
                }
            }
        }
    }
    assert_eq!(read.len(), 4, "{read:?}");
    for metric in read.values() {
        let family = scrape.family(metric);
        assert_eq!(family.kind, "gauge", "{metric}");
        assert_eq!(family.samples.len(), 1, "{metric}");
    }
    let cache = &scrape.family("vllm:cache_config_info").samples[0].labels;
    for label in ["block_size", "num_gpu_blocks"] {
        let value: u32 = cache[label].parse().unwrap_or_else(|_| panic!("{label} is {}", cache[label]));
        assert!(value > 0, "{label}");
    }
}

#[tokio::test]
async fn each_trigger_of_the_scaled_object_returns_one_number() {
    if missing(&[(Program::Prometheus, "prometheus")]) {
        return;
    }
    let _alone = alone().await;
    let server = Options::new(&tiny_model()).start().await;
    server.client().post(CHAT, &chat(3)).await;
    // Under the Operator, a ServiceMonitor's job is the Service's name.
    let prometheus = Prometheus::start(&BTreeMap::from([("limpid", vec![server.address()])]), false).await;
    for object in of_kind("ScaledObject") {
        for trigger in list(&object["spec"]["triggers"]) {
            let query = trigger["metadata"]["query"].as_str().expect("a query");
            let threshold: f64 = trigger["metadata"]["threshold"].as_str().expect("text").parse().unwrap();
            assert!(threshold > 0.0);
            poll(query, SOON, async || {
                let found = prometheus.query(query).await;
                (found.len() == 1 && found[0].1.is_finite()).then_some(())
            })
            .await;
        }
    }
}
