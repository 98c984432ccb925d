//! A collector inside the test: takes traces, metrics and logs over gRPC and over HTTP/protobuf, and keeps
//! everything, headers included.
//!
//! It does not judge. It can also misbehave on request ([`Behaviour`]), because a server has to live with
//! collectors that do.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{OriginalUri, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::codec::CompressionEncoding;

/// How an export came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// gRPC.
    Grpc,
    /// HTTP with a protobuf body.
    Http,
}

/// One export call.
#[derive(Clone, Debug)]
pub struct Export<T> {
    /// How it came.
    pub transport: Transport,
    /// Its headers (gRPC: its metadata).
    pub headers: HeaderMap,
    /// What was sent.
    pub message: T,
}

/// Everything that arrived, in order of arrival.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Trace exports.
    pub traces: Vec<Export<ExportTraceServiceRequest>>,
    /// Metric exports.
    pub metrics: Vec<Export<ExportMetricsServiceRequest>>,
    /// Log exports.
    pub logs: Vec<Export<ExportLogsServiceRequest>>,
    /// Calls that were turned away because of [`Behaviour::NotFound`].
    pub turned_away: usize,
}

impl Received {
    /// Whether any payload contains these bytes, in any signal.
    pub fn contains(&self, needle: &str) -> bool {
        fn found<T: Message>(exports: &[Export<T>], needle: &[u8]) -> bool {
            exports.iter().any(|export| {
                export.message.encode_to_vec().windows(needle.len()).any(|window| window == needle)
            })
        }
        let needle = needle.as_bytes();
        found(&self.traces, needle) || found(&self.metrics, needle) || found(&self.logs, needle)
    }
}

/// What the receiver does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Takes it and says so.
    Answer,
    /// Takes it after a while.
    Slow(Duration),
    /// Never answers.
    Hang,
    /// Answers 404 (gRPC: unimplemented) and keeps nothing.
    NotFound,
}

struct Shared {
    behaviour: Mutex<Behaviour>,
    received: Mutex<Received>,
    changed: watch::Sender<()>,
}

impl Shared {
    /// Whether the call may go on.
    async fn admit(&self) -> bool {
        let behaviour = *self.behaviour.lock().unwrap();
        match behaviour {
            Behaviour::Answer => true,
            Behaviour::Slow(delay) => {
                tokio::time::sleep(delay).await;
                true
            }
            Behaviour::Hang => std::future::pending().await,
            Behaviour::NotFound => {
                self.keep(|received| received.turned_away += 1);
                false
            }
        }
    }

    fn keep(&self, change: impl FnOnce(&mut Received)) {
        change(&mut self.received.lock().unwrap());
        self.changed.send_replace(());
    }
}

/// A running receiver. Dropping it closes both ports.
pub struct OtlpReceiver {
    grpc: SocketAddr,
    http: SocketAddr,
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for OtlpReceiver {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl OtlpReceiver {
    /// Starts one on two free ports.
    pub async fn start() -> OtlpReceiver {
        OtlpReceiver::start_on("127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts one on given addresses, so that a collector can come late.
    pub async fn start_on(grpc: SocketAddr, http: SocketAddr) -> OtlpReceiver {
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(Behaviour::Answer),
            received: Mutex::default(),
            changed: watch::Sender::new(()),
        });
        let grpc = TcpListener::bind(grpc).await.expect("a free port");
        let http = TcpListener::bind(http).await.expect("a free port");
        OtlpReceiver {
            grpc: grpc.local_addr().unwrap(),
            http: http.local_addr().unwrap(),
            tasks: [
                tokio::spawn(serve_grpc(grpc, Arc::clone(&shared))),
                tokio::spawn(serve_http(http, Arc::clone(&shared))),
            ],
            shared,
        }
    }

    /// Endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT` and for the flags with gRPC.
    pub fn grpc_endpoint(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT` with HTTP; signals' paths are appended to it.
    pub fn http_endpoint(&self) -> String {
        format!("http://{}", self.http)
    }

    /// The base endpoint for a transport.
    pub fn endpoint(&self, transport: Transport) -> String {
        match transport {
            Transport::Grpc => self.grpc_endpoint(),
            Transport::Http => self.http_endpoint(),
        }
    }

    /// What `--otlp-traces-endpoint` takes for a transport: with HTTP the full URL.
    pub fn traces_endpoint(&self, transport: Transport) -> String {
        match transport {
            Transport::Grpc => self.grpc_endpoint(),
            Transport::Http => format!("{}/v1/traces", self.http_endpoint()),
        }
    }

    /// Changes what happens to calls from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    /// A copy of everything that arrived so far.
    pub fn received(&self) -> Received {
        self.shared.received.lock().unwrap().clone()
    }

    /// Waits until `check` finds what it looks for, and returns it.
    ///
    /// # Panics
    /// If it has not within `timeout`; the message says what was waited for.
    pub async fn wait_for<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut check: impl FnMut(&Received) -> Option<T>,
    ) -> T {
        let mut changed = self.shared.changed.subscribe();
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            if let Some(found) = check(&self.shared.received.lock().unwrap()) {
                return found;
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                let received = self.received();
                let spans: Vec<String> =
                    crate::spans::all(&received).iter().map(crate::spans::Span::line).collect();
                panic!(
                    "{what} did not arrive within {timeout:?}; {} metric and {} log exports, spans:\n{}",
                    received.metrics.len(),
                    received.logs.len(),
                    spans.join("\n")
                );
            }
        }
    }
}

async fn serve_grpc(listener: TcpListener, shared: Arc<Shared>) {
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tonic::transport::Server::builder()
        .add_service(
            TraceServiceServer::from_arc(Arc::clone(&shared)).accept_compressed(CompressionEncoding::Gzip),
        )
        .add_service(
            MetricsServiceServer::from_arc(Arc::clone(&shared)).accept_compressed(CompressionEncoding::Gzip),
        )
        .add_service(LogsServiceServer::from_arc(shared).accept_compressed(CompressionEncoding::Gzip))
        .serve_with_incoming(incoming)
        .await
        .expect("the gRPC receiver should run");
}

fn take<T>(request: tonic::Request<T>) -> Export<T> {
    let (metadata, _, message) = request.into_parts();
    Export { transport: Transport::Grpc, headers: metadata.into_headers(), message }
}

fn turned_away() -> tonic::Status {
    tonic::Status::unimplemented("turned away")
}

#[tonic::async_trait]
impl TraceService for Shared {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.admit().await.then_some(()).ok_or_else(turned_away)?;
        self.keep(|received| received.traces.push(take(request)));
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Shared {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        self.admit().await.then_some(()).ok_or_else(turned_away)?;
        self.keep(|received| received.metrics.push(take(request)));
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Shared {
    async fn export(
        &self,
        request: tonic::Request<ExportLogsServiceRequest>,
    ) -> Result<tonic::Response<ExportLogsServiceResponse>, tonic::Status> {
        self.admit().await.then_some(()).ok_or_else(turned_away)?;
        self.keep(|received| received.logs.push(take(request)));
        Ok(tonic::Response::new(ExportLogsServiceResponse::default()))
    }
}

async fn serve_http(listener: TcpListener, shared: Arc<Shared>) {
    let router = axum::Router::new().fallback(http_export).with_state(shared);
    axum::serve(listener, router).await.expect("the HTTP receiver should run");
}

async fn http_export(
    State(shared): State<Arc<Shared>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !shared.admit().await {
        return StatusCode::NOT_FOUND.into_response();
    }
    let compressed = headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip");
    let mut plain = Vec::new();
    let body = if compressed {
        match flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain) {
            Ok(_) => &plain[..],
            Err(_) => return (StatusCode::BAD_REQUEST, "not gzip").into_response(),
        }
    } else {
        &body[..]
    };
    fn export<T: Message + Default>(headers: HeaderMap, body: &[u8]) -> Result<Export<T>, StatusCode> {
        let protobuf =
            headers.get("content-type").is_some_and(|content_type| content_type == "application/x-protobuf");
        let message = T::decode(body).map_err(|_| StatusCode::BAD_REQUEST)?;
        if !protobuf {
            return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        Ok(Export { transport: Transport::Http, headers, message })
    }
    let kept = match uri.path() {
        "/v1/traces" => {
            export(headers, body).map(|export| shared.keep(|received| received.traces.push(export)))
        }
        "/v1/metrics" => {
            export(headers, body).map(|export| shared.keep(|received| received.metrics.push(export)))
        }
        "/v1/logs" => export(headers, body).map(|export| shared.keep(|received| received.logs.push(export))),
        _ => Err(StatusCode::NOT_FOUND),
    };
    match kept {
        // The three response messages are equally empty.
        Ok(()) => ([("content-type", "application/x-protobuf")], Bytes::new()).into_response(),
        Err(status) => status.into_response(),
    }
}
