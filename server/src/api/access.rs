//! One line in the log for each request, when its last byte is out or its client is gone.
//!
//! The line has the ids of the request's SERVER span only if that span is sampled, so an id in the log is an id
//! in the backend. It has the path without the query, and nothing of any body. Target `limpid::access`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use limpid_telemetry::HttpSpan;

/// Longest part of a path that is logged, in characters.
const MAX_PATH: usize = 100;

/// The line of a request that is under way. It is written when this is dropped.
pub(super) struct AccessLine {
    method: String,
    path: String,
    request_id: Arc<str>,
    ids: Option<(String, String)>,
    arrival: Instant,
    /// Of the response, once its head is made.
    pub(super) status: Option<u16>,
    /// Of the response's body that were handed over.
    pub(super) bytes: usize,
    /// Whether the body was handed over to its end.
    pub(super) complete: bool,
}

impl AccessLine {
    pub(super) fn begin(
        request: &Request,
        span: &HttpSpan,
        request_id: &Arc<str>,
        arrival: Instant,
    ) -> AccessLine {
        // Both come from the client. A method is a token by HTTP's grammar and a path has no control characters
        // in it, but how long they are is the client's choice.
        AccessLine {
            method: request.method().as_str().chars().take(MAX_PATH).collect(),
            path: request.uri().path().chars().take(MAX_PATH).collect(),
            request_id: Arc::clone(request_id),
            ids: span.sampled_ids(),
            arrival,
            status: None,
            bytes: 0,
            complete: false,
        }
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        let (trace_id, span_id) =
            self.ids.as_ref().map(|(trace, span)| (trace.as_str(), span.as_str())).unzip();
        let status = self.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        let seconds = self.arrival.elapsed().as_secs_f64();
        tracing::info!(
            target: "limpid::access",
            status = self.status,
            duration_s = seconds,
            bytes = self.bytes,
            disconnected = (!self.complete).then_some(true),
            request_id = &*self.request_id,
            trace_id,
            span_id,
            "{} {} {status}",
            self.method,
            self.path,
        );
    }
}
