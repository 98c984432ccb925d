//! The outermost layer: stamps a request's arrival, names it, opens its SERVER span, begins its measurement, and
//! keeps both open until the response's last byte is out or the client is gone.
//!
//! Probes and scrapes get a request id but no span, no measurement and no line in the log.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};
use limpid_telemetry::{HttpRequestGuard, HttpRequestHead, HttpRequestStarted, HttpSpan};

use super::App;
use super::access::AccessLine;
use super::error::ErrorKind;
use super::route::Route;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// vLLM's header that names an engine by its index.
pub(super) const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
const TRACERESPONSE: HeaderName = HeaderName::from_static("traceresponse");
/// What is spoken here; TLS ends before.
pub(super) const SCHEME: &str = "http";
/// Longest request id that is taken over from a client.
const MAX_REQUEST_ID_BYTES: usize = 64;

/// What the handlers get to know about their request, as an extension.
#[derive(Clone)]
pub(super) struct RequestContext {
    /// When the request's head was read.
    pub(super) arrival: Instant,
    /// The client's `X-Request-Id` if it is a sane one, else a random one.
    pub(super) request_id: Arc<str>,
    /// The SERVER span, on routes that have one.
    pub(super) span: Option<Arc<HttpSpan>>,
    /// The engine that the client wants, as it says it.
    pub(super) data_parallel_rank: Option<HeaderValue>,
}

pub(super) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let arrival = Instant::now();
    let route = request.extensions().get::<MatchedPath>().and_then(|path| Route::of(path.as_str()));
    let span = route.is_none_or(Route::has_span).then(|| open_span(&app, &request, route, arrival));
    let mut measured = span.as_ref().map(|span| {
        app.http_metrics.request(HttpRequestHead {
            at: arrival,
            method: request.method().as_str(),
            route: route.map(Route::template),
            num_bytes: content_length(request.headers()).unwrap_or(0),
            span: Some(span),
        })
    });
    let request_id = request_id(request.headers());
    let mut line = span.as_ref().map(|span| AccessLine::begin(&request, span, &request_id, arrival));
    let data_parallel_rank = request.headers().get(DATA_PARALLEL_RANK).cloned();
    request.extensions_mut().insert(RequestContext {
        arrival,
        request_id: Arc::clone(&request_id),
        span: span.clone(),
        data_parallel_rank,
    });

    let mut response = next.run(request).await;
    // Both come from visible ASCII, so they are header values.
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let (Some(span), Some(mut line)) = (span, line.take()) else { return response };
    line.status = Some(response.status().as_u16());
    let error_type = response.extensions().get::<ErrorKind>().and_then(|kind| kind.error_type());
    span.responded(response.status().as_u16(), error_type);
    if let Some(measured) = &mut measured {
        let known = content_length(response.headers()).or_else(|| response.body().size_hint().exact());
        measured.responded(response.status().as_u16(), known.unwrap_or(0), error_type);
    }
    if let Some(value) = span.traceresponse().and_then(|value| HeaderValue::from_str(&value).ok()) {
        response.headers_mut().insert(TRACERESPONSE, value);
    }
    response.map(|body| Body::new(ObservedBody { body, line, _measured: measured, _span: span }))
}

fn open_span(app: &App, request: &Request, route: Option<Route>, at: Instant) -> Arc<HttpSpan> {
    app.telemetry.http_request(HttpRequestStarted {
        at,
        version: request.version(),
        method: request.method(),
        route: route.map(Route::template),
        path: request.uri().path(),
        scheme: SCHEME,
        headers: request.headers(),
        peer: request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0),
        server: app.address,
    })
}

/// The header's number, if it is one.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Only short ids of harmless characters are taken over, because they end up in ids, headers and logs.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let is_sane = |id: &&str| {
        (1..=MAX_REQUEST_ID_BYTES).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    match headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(is_sane) {
        Some(id) => id.into(),
        None => uuid::Uuid::new_v4().simple().to_string().into(),
    }
}

/// A body that keeps its SERVER span and its measurement open as long as it lives. hyper drops it after the last byte, or when
/// the client goes away.
struct ObservedBody {
    body: Body,
    line: AccessLine,
    _measured: Option<HttpRequestGuard>,
    _span: Arc<HttpSpan>,
}

impl Drop for ObservedBody {
    fn drop(&mut self) {
        // A body that says so is not asked for its end.
        self.line.complete |= http_body::Body::is_end_stream(&self.body);
    }
}

impl http_body::Body for ObservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => self.line.bytes += frame.data_ref().map_or(0, Bytes::len),
            Poll::Ready(None) => self.line.complete = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_request_ids_are_taken_over() {
        let taken = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).expect("a header value"));
            &*request_id(&headers) == id
        };
        assert!(taken("a-Z_0.9:x"));
        assert!(taken(&"x".repeat(64)));
        for insane in ["", "a b", "a\"b", "é", &"x".repeat(65)] {
            assert!(!taken(insane), "{insane}");
        }
        assert_eq!(request_id(&HeaderMap::new()).len(), 32);
    }
}
