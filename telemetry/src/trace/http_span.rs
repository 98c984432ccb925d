//! The SERVER span of one HTTP request.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use http::Method;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::trace::Span;

use super::{Tracing, client_text, propagation, start};
use crate::clock::Anchor;
use crate::exemplar::SpanLink;
use crate::semconv::key;

/// What is known when the head of a request was read.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequestStarted<'a> {
    /// When the head was read.
    pub at: Instant,
    /// HTTP version of the request.
    pub version: http::Version,
    /// Request method.
    pub method: &'a http::Method,
    /// The matched route's template, `/v1/chat/completions`; `None` if no route matched.
    pub route: Option<&'static str>,
    /// Path of the request target, without the query.
    pub path: &'a str,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Headers: `traceparent` and `tracestate` are read, `user-agent` recorded.
    pub headers: &'a http::HeaderMap,
    /// Address and port of the peer.
    pub peer: Option<std::net::SocketAddr>,
    /// Address and port the server listens on.
    pub server: Option<std::net::SocketAddr>,
}

/// An open SERVER span. Share it with `Arc`; it ends when the last clone is dropped, so it outlives the
/// model span below it and lasts until the response's last byte.
pub struct HttpSpan {
    /// `None` if nobody records it.
    span: Option<Mutex<Recorded>>,
    context: SpanContext,
    started: Instant,
    anchor: Anchor,
}

struct Recorded {
    span: Span,
    /// The first failure names the error; the SDK would keep a second `error.type` beside it.
    is_error: bool,
}

impl Recorded {
    fn fail(&mut self, error_type: impl Into<Value>) {
        if !std::mem::replace(&mut self.is_error, true) {
            self.span.set_status(Status::error(""));
            self.span.set_attribute(KeyValue::new(key::ERROR_TYPE, error_type));
        }
    }
}

impl HttpSpan {
    pub(crate) fn start(tracing: &Tracing, request: &HttpRequestStarted<'_>) -> HttpSpan {
        let anchor = tracing.anchor;
        let Some(tracer) = &tracing.tracer else {
            return HttpSpan { span: None, context: SpanContext::NONE, started: request.at, anchor };
        };
        let method = known_method(request.method);
        let name = match request.route {
            Some(route) => format!("{} {route}", method.unwrap_or("HTTP")),
            None => method.unwrap_or("HTTP").to_owned(),
        };
        let mut attributes = vec![
            KeyValue::new(key::HTTP_REQUEST_METHOD, method.unwrap_or("_OTHER")),
            client_text(key::URL_PATH, request.path),
            KeyValue::new(key::URL_SCHEME, request.scheme),
        ];
        attributes.extend(
            protocol_version(request.version).map(|version| KeyValue::new(key::PROTOCOL_VERSION, version)),
        );
        attributes.extend(request.route.map(|route| KeyValue::new(key::HTTP_ROUTE, route)));
        if let Some(server) = request.server {
            attributes.push(KeyValue::new(key::SERVER_ADDRESS, server.ip().to_string()));
            attributes.push(KeyValue::new(key::SERVER_PORT, i64::from(server.port())));
        }
        attributes.extend(request.peer.map(|peer| KeyValue::new(key::CLIENT_ADDRESS, peer.ip().to_string())));
        let user_agent = request.headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
        attributes.extend(user_agent.map(|agent| client_text(key::USER_AGENT, agent)));
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Server)
            .with_start_time(anchor.wall(request.at))
            .with_attributes(attributes);
        let span = start(tracer, builder, propagation::extract(request.headers).as_ref());
        let context = span.span_context().clone();
        let span = span.is_recording().then(|| Mutex::new(Recorded { span, is_error: false }));
        HttpSpan { span, context, started: request.at, anchor }
    }

    /// Sets `http.response.status_code`. 5xx makes the span an error with `error_type` (or the status code);
    /// a 4xx is the client's error and leaves the status of a server's span alone.
    pub fn responded(&self, status: u16, error_type: Option<&'static str>) {
        let Some(recorded) = &self.span else { return };
        let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.span.set_attribute(KeyValue::new(key::HTTP_RESPONSE_STATUS_CODE, i64::from(status)));
        if status >= 500 {
            match error_type {
                Some(error_type) => recorded.fail(error_type),
                None => recorded.fail(status.to_string()),
            }
        }
    }

    /// What the answer is made from failed, perhaps after the head was sent: the span is an error with
    /// `error_type`, whatever its status code says.
    pub(crate) fn failed(&self, error_type: &'static str) {
        if let Some(recorded) = &self.span {
            recorded.lock().unwrap_or_else(PoisonError::into_inner).fail(error_type);
        }
    }

    /// `traceresponse` header value for the caller; `None` with tracing off.
    pub fn traceresponse(&self) -> Option<String> {
        self.context.is_valid().then(|| {
            let context = &self.context;
            format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
        })
    }

    /// Trace and span id, if the span is sampled and so can be found later: for log lines.
    pub fn sampled_ids(&self) -> Option<(String, String)> {
        let context = &self.context;
        context.is_sampled().then(|| (context.trace_id().to_string(), context.span_id().to_string()))
    }

    /// What an exemplar needs to lead here, if the span is sampled.
    pub(crate) fn link(&self) -> Option<SpanLink> {
        let context = &self.context;
        context.is_sampled().then(|| SpanLink { trace_id: context.trace_id(), span_id: context.span_id() })
    }

    pub(super) fn context(&self) -> &SpanContext {
        &self.context
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }
}

impl Drop for HttpSpan {
    fn drop(&mut self) {
        if let Some(recorded) = &self.span {
            let end = self.anchor.wall(Instant::now());
            recorded.lock().unwrap_or_else(PoisonError::into_inner).span.end_with_timestamp(end);
        }
    }
}

/// `network.protocol.version`, where HTTP has a number for it.
fn protocol_version(version: http::Version) -> Option<&'static str> {
    [
        (http::Version::HTTP_10, "1.0"),
        (http::Version::HTTP_11, "1.1"),
        (http::Version::HTTP_2, "2"),
        (http::Version::HTTP_3, "3"),
    ]
    .into_iter()
    .find_map(|(known, number)| (known == version).then_some(number))
}

/// Methods HTTP defines; anything else is a client's invention and must not become a span name.
fn known_method(method: &Method) -> Option<&'static str> {
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]
        .into_iter()
        .find(|known| method.as_str() == *known)
}
