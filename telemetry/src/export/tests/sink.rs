//! A small OTLP collector: keeps what it gets.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use axum::routing::post;
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
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::{Request, Response, Status};

/// What came with a request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) tenant: Option<String>,
    pub(super) encoding: Option<String>,
}

struct Kept {
    traces: Mutex<Vec<ExportTraceServiceRequest>>,
    metrics: Mutex<Vec<ExportMetricsServiceRequest>>,
    requests: Mutex<Vec<Seen>>,
    status: AtomicU16,
    refused: AtomicI64,
    changes: watch::Sender<u64>,
}

pub(super) struct Sink {
    pub(super) endpoint: String,
    kept: Arc<Kept>,
    server: JoinHandle<()>,
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Sink {
    pub(super) async fn start(protocol: &str) -> Sink {
        Sink::start_at(protocol, TcpListener::bind("127.0.0.1:0").await.unwrap()).await
    }

    pub(super) async fn start_at(protocol: &str, listener: TcpListener) -> Sink {
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::new(Kept {
            traces: Mutex::default(),
            metrics: Mutex::default(),
            requests: Mutex::default(),
            status: AtomicU16::new(200),
            refused: AtomicI64::new(0),
            changes: watch::Sender::new(0),
        });
        let state = Arc::clone(&kept);
        let server = if protocol == "grpc" {
            let traces = TraceServiceServer::from_arc(Arc::clone(&state)).accept_compressed(Gzip);
            let metrics = MetricsServiceServer::from_arc(state).accept_compressed(Gzip);
            tokio::spawn(async move {
                let server = tonic::transport::Server::builder().add_service(traces).add_service(metrics);
                server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
            })
        } else {
            let router = Router::new()
                .route("/v1/traces", post(http_traces))
                .route("/v1/metrics", post(http_metrics))
                .with_state(state);
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() })
        };
        Sink { endpoint, kept, server }
    }

    /// Status of HTTP answers from now on.
    pub(super) fn answer(&self, status: u16) {
        self.kept.status.store(status, Ordering::SeqCst);
    }

    /// How many spans of every request are refused from now on.
    pub(super) fn refuse(&self, spans: i64) {
        self.kept.refused.store(spans, Ordering::SeqCst);
    }

    /// All spans, once there are this many.
    pub(super) async fn spans(&self, at_least: usize) -> Vec<Span> {
        self.wait(|kept| {
            let traces = kept.traces.lock().unwrap();
            let spans: Vec<Span> = traces
                .iter()
                .flat_map(|request| &request.resource_spans)
                .flat_map(|resource| &resource.scope_spans)
                .flat_map(|scope| scope.spans.clone())
                .collect();
            (spans.len() >= at_least).then_some(spans)
        })
        .await
    }

    /// All metrics of all payloads, once there are this many payloads.
    pub(super) async fn metrics(&self, payloads: usize) -> Vec<Metric> {
        self.wait(|kept| {
            let requests = kept.metrics.lock().unwrap();
            (requests.len() >= payloads).then(|| {
                requests
                    .iter()
                    .flat_map(|request| &request.resource_metrics)
                    .flat_map(|resource| &resource.scope_metrics)
                    .flat_map(|scope| scope.metrics.clone())
                    .collect()
            })
        })
        .await
    }

    pub(super) fn requests(&self) -> Vec<Seen> {
        self.kept.requests.lock().unwrap().clone()
    }

    pub(super) fn service_names(&self) -> Vec<String> {
        let traces = self.kept.traces.lock().unwrap();
        let names: BTreeSet<String> = traces
            .iter()
            .flat_map(|request| &request.resource_spans)
            .filter_map(|spans| spans.resource.as_ref())
            .flat_map(|resource| &resource.attributes)
            .filter(|attribute| attribute.key == "service.name")
            .filter_map(|attribute| match attribute.value.as_ref()?.value.as_ref()? {
                Value::StringValue(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        names.into_iter().collect()
    }

    async fn wait<T>(&self, mut ready: impl FnMut(&Kept) -> Option<T>) -> T {
        let mut changes = self.kept.changes.subscribe();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = ready(&self.kept) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the exporter to send")
    }
}

impl Kept {
    fn note(&self, headers: &HeaderMap, encoding: &str) {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        self.requests.lock().unwrap().push(Seen { tenant: text("x-tenant"), encoding: text(encoding) });
    }

    fn keep_traces(&self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse {
        self.traces.lock().unwrap().push(request);
        self.changes.send_modify(|changes| *changes += 1);
        let rejected_spans = self.refused.load(Ordering::SeqCst);
        let partial_success = (rejected_spans > 0)
            .then(|| ExportTracePartialSuccess { rejected_spans, error_message: "no".to_owned() });
        ExportTraceServiceResponse { partial_success }
    }

    fn keep_metrics(&self, request: ExportMetricsServiceRequest) -> ExportMetricsServiceResponse {
        self.metrics.lock().unwrap().push(request);
        self.changes.send_modify(|changes| *changes += 1);
        ExportMetricsServiceResponse::default()
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.note(&request.metadata().clone().into_headers(), "grpc-encoding");
        Ok(Response::new(self.keep_traces(request.into_inner())))
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.note(&request.metadata().clone().into_headers(), "grpc-encoding");
        Ok(Response::new(self.keep_metrics(request.into_inner())))
    }
}

async fn http_traces(State(kept): State<Arc<Kept>>, headers: HeaderMap, body: Bytes) -> HttpResponse {
    answer(&kept, &headers, &body, Kept::keep_traces)
}

async fn http_metrics(State(kept): State<Arc<Kept>>, headers: HeaderMap, body: Bytes) -> HttpResponse {
    answer(&kept, &headers, &body, Kept::keep_metrics)
}

fn answer<Q: prost::Message + Default, A: prost::Message>(
    kept: &Kept,
    headers: &HeaderMap,
    body: &Bytes,
    keep: fn(&Kept, Q) -> A,
) -> HttpResponse {
    let status = StatusCode::from_u16(kept.status.load(Ordering::SeqCst)).unwrap();
    let mut answer = Vec::new();
    if status == StatusCode::OK {
        assert_eq!(headers[header::CONTENT_TYPE], "application/x-protobuf");
        kept.note(headers, "content-encoding");
        let mut plain = body.to_vec();
        if headers.contains_key(header::CONTENT_ENCODING) {
            plain.clear();
            flate2::read::GzDecoder::new(body.as_ref()).read_to_end(&mut plain).unwrap();
        }
        answer = keep(kept, Q::decode(plain.as_slice()).unwrap()).encode_to_vec();
    }
    (status, [(header::CONTENT_TYPE, "application/x-protobuf")], answer).into_response()
}
