//! Jaeger with its storage in memory, and its query API.

use std::net::SocketAddr;

use serde_json::{Value, json};
use xtask::programs::Program;

use super::{Process, encode, free_addresses, ok};
use crate::client::Client;

/// A Jaeger that is ready.
pub struct Jaeger {
    _process: Process,
    /// Where it takes OTLP over gRPC.
    pub otlp: SocketAddr,
    /// Where it answers questions.
    pub query: SocketAddr,
}

impl Jaeger {
    /// Starts it.
    pub async fn start() -> Jaeger {
        let [otlp, query, query_grpc] = free_addresses();
        let config = json!({
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 20000}}}},
                "jaeger_query": {
                    "storage": {"traces": "memory"},
                    "http": {"endpoint": query.to_string()},
                    "grpc": {"endpoint": query_grpc.to_string()}
                }
            },
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": otlp.to_string()}}}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}}
            }
        });
        let files = [("config.json", config.to_string())];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let mut process =
            Process::start(Program::Jaeger, "jaeger", &files, &["--config=config.json".to_owned()]);
        process.wait_for(query, "/api/services").await;
        Jaeger { _process: process, otlp, query }
    }

    /// A trace by its id in hex, as Jaeger's user interface gets it; `None` while there is none.
    pub async fn trace(&self, id: &str) -> Option<Value> {
        let reply = Client::new(self.query).get(&format!("/api/traces/{id}")).await;
        match reply.status.as_u16() {
            404 => None,
            _ => Some(ok("a trace", reply).json()["data"][0].clone()),
        }
    }

    /// The traces of a service that carry a tag, at most 20000.
    pub async fn traces(&self, service: &str, tag: Option<(&str, &str)>) -> Vec<Value> {
        let mut path = format!("/api/traces?service={}&limit=20000&lookback=1h", encode(service));
        if let Some((key, value)) = tag {
            path += &format!("&tags={}", encode(&json!({key: value}).to_string()));
        }
        let reply = ok("traces", Client::new(self.query).get(&path).await);
        reply.json()["data"].as_array().cloned().unwrap_or_default()
    }

    /// The names of the services that sent traces.
    pub async fn services(&self) -> Vec<String> {
        let reply = ok("services", Client::new(self.query).get("/api/services").await).json();
        let names = reply["data"].as_array().cloned().unwrap_or_default();
        names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }
}

/// The value of a span's tag.
pub fn tag<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    span["tags"].as_array()?.iter().find(|tag| tag["key"] == key).map(|tag| &tag["value"])
}

/// The id of a span's parent, if it has one.
pub fn parent(span: &Value) -> Option<&str> {
    let references = span["references"].as_array()?;
    references.iter().find(|reference| reference["refType"] == "CHILD_OF")?["spanID"].as_str()
}
