//! The SERVER span of one HTTP request.

use std::time::Instant;

/// What is known when the head of a request was read.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequestStarted<'a> {
    /// When the head was read.
    pub at: Instant,
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
    _private: (),
}

impl HttpSpan {
    /// Sets `http.response.status_code`. 5xx makes the span an error with `error_type` (or the status code).
    pub fn responded(&self, status: u16, error_type: Option<&'static str>) {
        let _ = (status, error_type);
    }

    /// `traceresponse` header value for the caller.
    pub fn traceresponse(&self) -> Option<String> {
        None
    }
}
