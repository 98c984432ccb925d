//! What probes, scrapers and the curious ask for: `/health`, `/ping`, `/version`, `/metrics`.
//!
//! None of it asks the engine anything, and none of it makes a span.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use super::error::{ApiError, ErrorKind};

/// `GET /health`, `GET` and `POST /ping`: 200 as long as every engine can answer requests, and does.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<StatusCode, ApiError> {
    app.check_engines()?;
    match app.frontend.stalled() {
        None => Ok(StatusCode::OK),
        Some((engine, silence)) => Err(ApiError::new(
            ErrorKind::EngineStalled,
            format!(
                "engine {engine} has open requests and has ended no step for {} s; allowed: \
                 --engine-iteration-timeout. Its device hangs, or steps take longer than that",
                silence.as_secs()
            ),
        )),
    }
}

/// `GET /version`
pub(super) async fn version(State(app): State<Arc<App>>) -> Json<serde_json::Value> {
    Json(serde_json::json!({
        "name": "limpid",
        "version": env!("CARGO_PKG_VERSION"),
        "device": {
            "kind": app.device.kind,
            "name": app.device.name,
            "type": app.device.device_type,
            "backend": app.device.backend,
            "driver": app.device.driver,
        },
    }))
}

/// `GET /metrics`, rendered one at a time: a crowd of scrapers waits in line instead of keeping probes and streams
/// from running, and lets what came meanwhile run first, for there may be one thread for all. A scrape takes less than a
/// millisecond, and less than a thread of its own would be waited for on a machine whose cores are all computing.
pub(super) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let _turn = app.scrapes.lock().await;
    // Else a thread that has only scrapes to run looks at its sockets again after some dozens of them.
    tokio::task::yield_now().await;
    let rendered = app.telemetry.render_metrics(accept);
    let content_type = HeaderValue::from_static(rendered.content_type);
    ([(header::CONTENT_TYPE, content_type)], rendered.body).into_response()
}
