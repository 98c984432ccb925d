//! Prometheus and its query API.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use xtask::programs::Program;

use super::{PATIENCE, Process, encode, free_addresses, ok, poll};
use crate::client::Client;
use crate::exposition::Labels;

/// How often it scrapes and evaluates its rules in tests, in seconds.
pub const INTERVAL: u32 = 1;

/// A Prometheus that is ready.
pub struct Prometheus {
    _process: Process,
    client: Client,
    /// Where it listens.
    pub address: SocketAddr,
}

/// One series of an instant query: its labels, `__name__` included, and its value.
pub type Series = (Labels, f64);

impl Prometheus {
    /// Starts it with `otel-collector/prometheus/prometheus.yaml`, in which targets are replaced and intervals
    /// shortened. `targets` gives each job's addresses; jobs that are not in it are left out, and jobs that only
    /// `targets` has are plain ones. `rules` says whether the rules beside the file are evaluated. Each target has
    /// been scraped once when this returns.
    pub async fn start(targets: &BTreeMap<&str, Vec<SocketAddr>>, rules: bool) -> Prometheus {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../otel-collector/prometheus");
        let text =
            std::fs::read_to_string(folder.join("prometheus.yaml")).expect("Prometheus' configuration");
        let mut config: Value = serde_yaml_ng::from_str(&text).expect("YAML");
        let interval = format!("{INTERVAL}s");
        config["global"] = json!({"scrape_interval": interval, "evaluation_interval": interval});
        let shipped = config["scrape_configs"].as_array().cloned().unwrap_or_default();
        let jobs = targets.iter().map(|(name, addresses)| {
            let known = shipped.iter().find(|job| job["job_name"] == *name).cloned();
            let mut job = known.unwrap_or_else(|| json!({"job_name": name}));
            let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
            job["static_configs"] = json!([{"targets": addresses}]);
            job
        });
        config["scrape_configs"] = jobs.collect();
        config["rule_files"] = match rules {
            true => json!([folder.join("rules/*.yaml").display().to_string()]),
            false => json!([]),
        };
        let [address] = free_addresses();
        let arguments = [
            "--config.file=prometheus.json".to_owned(),
            "--storage.tsdb.path=data".to_owned(),
            format!("--web.listen-address={address}"),
            "--enable-feature=exemplar-storage".to_owned(),
        ];
        let files = [("prometheus.json", config.to_string())];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let mut process = Process::start(Program::Prometheus, "prometheus", &files, &arguments);
        process.wait_for(address, "/-/ready").await;
        let prometheus = Prometheus { _process: process, client: Client::new(address), address };
        // Prometheus begins to scrape some seconds after it is ready; what is gone by then it would never see.
        let up = targets.values().map(Vec::len).sum::<usize>();
        poll("the first scrape of every target", PATIENCE, async || {
            (prometheus.query("up == 1").await.len() == up).then_some(())
        })
        .await;
        prometheus
    }

    async fn api(&self, path: &str) -> Value {
        let reply = ok(path, self.client.get(path).await);
        reply.json()["data"].clone()
    }

    /// Evaluates an expression now.
    ///
    /// # Panics
    /// If Prometheus refuses it.
    pub async fn query(&self, expression: &str) -> Vec<Series> {
        let data = self.api(&format!("/api/v1/query?query={}", encode(expression))).await;
        let Some(result) = data["result"].as_array() else { return Vec::new() };
        if data["resultType"] == "scalar" {
            return vec![(Labels::new(), number(&data["result"][1]))];
        }
        result.iter().map(|series| (labels(&series["metric"]), number(&series["value"][1]))).collect()
    }

    /// The exemplars behind an expression, in the last hour: labels of the series with those of the exemplar
    /// and its value.
    pub async fn exemplars(&self, expression: &str) -> Vec<(Labels, Labels, f64)> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let (start, end) = (now.as_secs() - 3600, now.as_secs() + 60);
        let path = format!("/api/v1/query_exemplars?query={}&start={start}&end={end}", encode(expression));
        let data = self.api(&path).await;
        let series = data.as_array().cloned().unwrap_or_default();
        let mut found = Vec::new();
        for series in &series {
            for exemplar in series["exemplars"].as_array().into_iter().flatten() {
                let value = number(&exemplar["value"]);
                found.push((labels(&series["seriesLabels"]), labels(&exemplar["labels"]), value));
            }
        }
        found
    }

    /// Type and help of every family that a job's targets expose.
    pub async fn metadata(&self, job: &str) -> BTreeMap<String, (String, String)> {
        let selector = encode(&format!("{{job=\"{job}\"}}"));
        let data = self.api(&format!("/api/v1/targets/metadata?match_target={selector}")).await;
        let entries = data.as_array().cloned().unwrap_or_default();
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        entries
            .iter()
            .map(|entry| (text(entry, "metric"), (text(entry, "type"), text(entry, "help"))))
            .collect()
    }

    /// Names of the alerts that are pending or firing.
    pub async fn alerts(&self) -> Vec<String> {
        let data = self.api("/api/v1/alerts").await;
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        alerts.iter().filter_map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned)).collect()
    }
}

fn labels(value: &Value) -> Labels {
    let object = value.as_object().cloned().unwrap_or_default();
    object.into_iter().map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect()
}

fn number(value: &Value) -> f64 {
    match value.as_str().expect("Prometheus writes numbers as strings") {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        text => text.parse().unwrap_or_else(|_| panic!("{text:?} is no number")),
    }
}
