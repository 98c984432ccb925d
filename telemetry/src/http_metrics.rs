//! Metrics of HTTP requests, in vLLM's shape and in the semantic conventions'.
//!
//! A server that measures a request holds an [`HttpRequestGuard`] until the response's last byte is out or the
//! client is gone; dropping it records. Which requests are measured is the server's choice (probes and scrapes
//! are not). Invariant: the routes are the server's own and methods HTTP's own, so no client adds a series.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::MetricsDialect;
use crate::dialect::genai::http::GenAiHttp;
use crate::dialect::vllm::http::VllmHttp;
use crate::exemplar::SpanLink;
use crate::instruments::Instruments;
use crate::trace::HttpSpan;

/// Methods HTTP defines, and one word for all others.
pub(crate) const METHODS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "_OTHER"];

/// A method of HTTP's, and a route's template.
pub type RouteMethod = (&'static str, &'static str);

/// Place in [`METHODS`].
pub(crate) fn method_index(method: &str) -> usize {
    METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len() - 1)
}

/// Measures HTTP requests. Cheap to clone.
#[derive(Clone)]
pub struct HttpMetrics {
    dialects: Arc<HttpDialects>,
}

struct HttpDialects {
    vllm: Option<VllmHttp>,
    genai: Option<GenAiHttp>,
}

/// What is known of a request when its head was read.
#[derive(Clone, Copy)]
pub struct HttpRequestHead<'a> {
    /// When.
    pub at: Instant,
    /// Request method.
    pub method: &'a str,
    /// The matched route's template; `None` if no route matched.
    pub route: Option<&'static str>,
    /// Content-Length, 0 if there is none.
    pub num_bytes: u64,
    /// The SERVER span, which exemplars lead to.
    pub span: Option<&'a HttpSpan>,
}

/// A request that ended.
pub(crate) struct HttpFinished {
    /// One of [`METHODS`].
    pub(crate) method: &'static str,
    pub(crate) route: Option<&'static str>,
    pub(crate) request_bytes: u64,
    /// `None` if the client was gone before there was an answer.
    pub(crate) status: Option<u16>,
    pub(crate) response_bytes: u64,
    pub(crate) error_type: Option<&'static str>,
    pub(crate) duration: Duration,
    pub(crate) link: Option<SpanLink>,
}

/// A request under way. Dropping it ends the measurement.
pub struct HttpRequestGuard {
    dialects: Arc<HttpDialects>,
    started: Instant,
    request: HttpFinished,
}

impl HttpMetrics {
    pub(crate) fn new(
        instruments: &Instruments,
        scheme: &'static str,
        routes: &[RouteMethod],
    ) -> HttpMetrics {
        let speaks = |dialect| instruments.config().speaks(dialect);
        HttpMetrics {
            dialects: Arc::new(HttpDialects {
                vllm: speaks(MetricsDialect::Vllm).then(|| VllmHttp::new(instruments, routes)),
                genai: speaks(MetricsDialect::GenAi).then(|| GenAiHttp::new(instruments, scheme, routes)),
            }),
        }
    }

    /// Begins to measure a request.
    pub fn request(&self, head: HttpRequestHead<'_>) -> HttpRequestGuard {
        let method = METHODS[method_index(head.method)];
        if let Some(genai) = &self.dialects.genai {
            genai.started(method);
        }
        HttpRequestGuard {
            dialects: Arc::clone(&self.dialects),
            started: head.at,
            request: HttpFinished {
                method,
                route: head.route,
                request_bytes: head.num_bytes,
                status: None,
                response_bytes: 0,
                error_type: None,
                duration: Duration::ZERO,
                link: head.span.and_then(HttpSpan::link),
            },
        }
    }
}

impl HttpRequestGuard {
    /// The response's head is known: status, Content-Length (0 if there is none), the kind of a server error.
    pub fn responded(&mut self, status: u16, num_bytes: u64, error_type: Option<&'static str>) {
        self.request.status = Some(status);
        self.request.response_bytes = num_bytes;
        self.request.error_type = error_type;
    }
}

impl Drop for HttpRequestGuard {
    fn drop(&mut self) {
        self.request.duration = self.started.elapsed();
        if let Some(vllm) = &self.dialects.vllm {
            vllm.finished(&self.request);
        }
        if let Some(genai) = &self.dialects.genai {
            genai.finished(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::HttpRequestHead;
    use crate::config::TelemetrySettings;
    use crate::fixtures::{in_memory, sample};

    const ROUTES: [(&str, &str); 2] = [("POST", "/v1/chat/completions"), ("GET", "/v1/models")];

    #[test]
    fn an_answered_request_is_counted_in_both_shapes_and_no_longer_active() {
        let (telemetry, _) = in_memory(TelemetrySettings::default(), &[]);
        let metrics = telemetry.http_metrics("http", &ROUTES);
        let head = HttpRequestHead {
            at: Instant::now(),
            method: "POST",
            route: Some("/v1/chat/completions"),
            num_bytes: 17,
            span: None,
        };
        let active = "http_server_active_requests{http_request_method=\"POST\",url_scheme=\"http\"}";
        let requests = |status: &str| {
            format!(
                "http_requests_total{{handler=\"/v1/chat/completions\",method=\"POST\",status=\"{status}\"}}"
            )
        };
        let value = |series: &str| sample(&telemetry.render_metrics(None).body, series);
        assert_eq!((value(active), value(&requests("2xx"))), (Some(0.0), Some(0.0)));
        let mut guard = metrics.request(head);
        assert_eq!(value(active), Some(1.0));
        guard.responded(200, 40, None);
        drop(guard);
        // A client that went away before the answer.
        drop(metrics.request(head));
        assert_eq!(value(active), Some(0.0));
        assert_eq!((value(&requests("2xx")), value(&requests("4xx"))), (Some(1.0), Some(1.0)));
        let handler = "{handler=\"/v1/chat/completions\"}";
        assert_eq!(value(&format!("http_request_size_bytes_sum{handler}")), Some(34.0));
        assert_eq!(value(&format!("http_response_size_bytes_sum{handler}")), Some(40.0));
        assert_eq!(value("http_request_duration_highr_seconds_count"), Some(2.0));
        let good = "http_server_request_duration_seconds_count{http_request_method=\"POST\",\
                    http_response_status_code=\"200\",http_route=\"/v1/chat/completions\",url_scheme=\"http\"}";
        assert_eq!(value(good), Some(1.0));
        assert!(telemetry.render_metrics(None).body.contains("# TYPE http_request_size_bytes summary"));
    }

    #[test]
    fn invented_methods_and_paths_share_one_series() {
        let (telemetry, _) = in_memory(TelemetrySettings::default(), &[]);
        let metrics = telemetry.http_metrics("http", &ROUTES);
        let lines = || telemetry.render_metrics(None).body.lines().count();
        let request = |method: &str| {
            let head = HttpRequestHead { at: Instant::now(), method, route: None, num_bytes: 0, span: None };
            metrics.request(head).responded(404, 0, None);
        };
        request("BREW");
        let before = lines();
        for index in 0..1000 {
            request(&format!("BREW{index}"));
        }
        assert_eq!(lines(), before);
    }
}
