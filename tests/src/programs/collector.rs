//! The collector with a configuration of `otel-collector/`, on ports of the test's choice.

use std::net::SocketAddr;
use std::path::Path;

use xtask::programs::Program;

use super::{Process, free_addresses};

/// The ports that a collector listens on; a restarted one takes its predecessor's.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// OTLP over gRPC.
    pub grpc: SocketAddr,
    /// OTLP over HTTP.
    pub http: SocketAddr,
    /// What it exposes for Prometheus.
    pub exporter: SocketAddr,
    /// Its own metrics.
    pub own: SocketAddr,
    /// Its health page.
    health: SocketAddr,
}

impl Ports {
    /// Ports that are free now.
    pub fn free() -> Ports {
        let [grpc, http, exporter, own, health] = free_addresses();
        Ports { grpc, http, exporter, own, health }
    }
}

/// A collector that is ready.
pub struct Collector {
    process: Process,
    /// Where it listens.
    pub ports: Ports,
}

impl Collector {
    /// Starts it with a file of `otel-collector/` as it is; addresses and waiting times, which tests need
    /// otherwise, come in a second configuration on top. `backend` is where traces go by OTLP over gRPC.
    pub async fn start(config: &str, ports: Ports, backend: SocketAddr) -> Collector {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../otel-collector").join(config);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut settings = vec![
            format!("receivers::otlp::protocols::grpc::endpoint: {}", ports.grpc),
            format!("receivers::otlp::protocols::http::endpoint: {}", ports.http),
            format!("extensions::health_check::endpoint: {}", ports.health),
            format!("exporters::otlp::endpoint: {backend}"),
            "processors::batch::timeout: 100ms".to_owned(),
            format!(
                "service::telemetry::metrics::readers: [{{pull: {{exporter: {{prometheus: \
                 {{host: {}, port: {}}}}}}}}}]",
                ports.own.ip(),
                ports.own.port()
            ),
        ];
        // The agent has neither.
        if text.contains("spanmetrics:") {
            // No shorter than Prometheus' interval: an exemplar lives from one flush to the next.
            settings.push("connectors::spanmetrics::metrics_flush_interval: 2s".to_owned());
            settings.push(format!("exporters::prometheus::endpoint: {}", ports.exporter));
        }
        if text.contains("tail_sampling:") {
            settings.push("processors::tail_sampling::decision_wait: 1s".to_owned());
        }
        let mut arguments = vec![format!("--config={}", path.display())];
        arguments.extend(settings.iter().map(|setting| format!("--config=yaml:{setting}")));
        let mut process = Process::start(Program::Collector, "collector", &[], &arguments);
        process.wait_for(ports.health, "/").await;
        Collector { process, ports }
    }

    /// Where limpid sends by gRPC.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.ports.grpc)
    }

    /// Ends it; what it accepted is handed on first.
    pub async fn stop(self) {
        self.process.stop().await;
    }
}
