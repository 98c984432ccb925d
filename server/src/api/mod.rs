//! The HTTP API: OpenAI's routes and vLLM's beside them.
//!
//! Handlers parse and check, the frontend generates, [`generate`] answers. The layers around them, outermost
//! first: [`observe`] (arrival, request id, SERVER span), panics to 500, API keys.
//!
//! Invariant: nothing that a client sends makes a handler panic, wait without end, or answer an error in
//! another shape than OpenAI's.

mod access;
mod auth;
mod chat;
mod completions;
mod control;
mod error;
mod generate;
mod json;
mod models;
mod observe;
mod params;
mod probes;
mod route;
mod sse;
#[cfg(test)]
mod tests;
mod tokenize;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use limpid_engine::device::DeviceInfo;
use limpid_telemetry::{HttpMetrics, Telemetry};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;

use crate::frontend::{Frontend, TextModel};

use auth::ApiKeys;
use error::{ApiError, ErrorKind};
use json::Fields;
use params::Limits;
use route::Route;

/// Work on text longer than this leaves the async threads.
const LONG_TEXT_BYTES: usize = 2048;
/// Smallest limit of a request's body.
const MIN_BODY_BYTES: usize = 2 << 20;
/// What one token of a full context may take in a body: five characters of `\uXXXX` escapes and some more.
const BODY_BYTES_PER_TOKEN: usize = 64;

/// What the API is made from.
pub struct AppParts {
    /// Generates.
    pub frontend: Frontend,
    /// Spans and `/metrics`.
    pub telemetry: Telemetry,
    /// Tokenizer and chat template.
    pub text: Arc<dyn TextModel>,
    /// Names of the model; at least one.
    pub served_names: Vec<String>,
    /// Longest sequence.
    pub max_model_len: usize,
    /// Whether requests may have priorities.
    pub has_priorities: bool,
    /// Keys that open the server; none opens it to all.
    pub api_keys: Vec<String>,
    /// For `/version`.
    pub device: DeviceInfo,
    /// Where the server listens.
    pub address: Option<SocketAddr>,
}

/// The state that the handlers share.
struct App {
    frontend: Frontend,
    telemetry: Telemetry,
    http_metrics: HttpMetrics,
    text: Arc<dyn TextModel>,
    served_names: Vec<String>,
    max_model_len: usize,
    has_priorities: bool,
    api_keys: ApiKeys,
    device: DeviceInfo,
    address: Option<SocketAddr>,
    created: u64,
    /// Largest body of a request, in bytes.
    body_limit: usize,
    /// Whose turn it is to render `/metrics`.
    scrapes: tokio::sync::Mutex<()>,
    /// Of answers.
    streams: sse::Streams,
}

/// The whole API as a service.
///
/// # Panics
/// Without a served name.
pub fn router(parts: AppParts) -> Router {
    assert!(!parts.served_names.is_empty(), "a model has a name");
    let app = Arc::new(App {
        frontend: parts.frontend,
        http_metrics: parts.telemetry.http_metrics(observe::SCHEME, &Route::measured()),
        telemetry: parts.telemetry,
        text: parts.text,
        served_names: parts.served_names,
        max_model_len: parts.max_model_len,
        has_priorities: parts.has_priorities,
        api_keys: ApiKeys::new(&parts.api_keys),
        device: parts.device,
        address: parts.address,
        created: wire::unix_seconds(),
        body_limit: parts.max_model_len.saturating_mul(BODY_BYTES_PER_TOKEN).max(MIN_BODY_BYTES),
        scrapes: tokio::sync::Mutex::new(()),
        streams: sse::Streams::new(),
    });
    let metrics = || get(probes::metrics).layer(CompressionLayer::new());
    Router::new()
        .route(Route::ChatCompletions.pattern(), post(chat::create))
        .route(Route::Completions.pattern(), post(completions::create))
        .route(Route::Models.pattern(), get(models::list))
        .route(Route::Model.pattern(), get(models::get))
        .route(Route::Tokenize.pattern(), post(tokenize::tokenize))
        .route(Route::Detokenize.pattern(), post(tokenize::detokenize))
        .route(Route::Health.pattern(), get(probes::health))
        .route(Route::Ping.pattern(), get(probes::health).post(probes::health))
        .route(Route::Version.pattern(), get(probes::version))
        .route(Route::Metrics.pattern(), metrics())
        .route(Route::MetricsSlash.pattern(), metrics())
        .route(Route::ResetPrefixCache.pattern(), post(control::reset_prefix_cache))
        .route(Route::Sleep.pattern(), post(control::sleep))
        .route(Route::WakeUp.pattern(), post(control::wake_up))
        .route(Route::IsSleeping.pattern(), get(control::is_sleeping))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_route)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), authorize))
        .layer(CatchPanicLayer::custom(|_panic| {
            ApiError::new(ErrorKind::Internal, "the server failed on this request").into_response()
        }))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe::observe))
        .with_state(app)
}

async fn unknown_route(request: Request) -> ApiError {
    let message = format!("there is no {} {}", request.method(), shown_path(&request));
    ApiError::new(ErrorKind::UnknownRoute, message)
}

/// The router adds the `Allow` header, which is all that `OPTIONS` asks for.
async fn method_not_allowed(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let message = format!(
        "the method {} is not allowed on {}; allowed: see the Allow header",
        request.method(),
        shown_path(&request)
    );
    ApiError::new(ErrorKind::MethodNotAllowed, message).into_response()
}

/// The path as far as an error message repeats it.
fn shown_path(request: &Request) -> String {
    request.uri().path().chars().take(100).collect()
}

async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.api_keys.check(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

impl App {
    /// Refuses while there is no engine to answer a request.
    fn check_engine(&self) -> Result<(), ApiError> {
        if self.frontend.can_serve() { Ok(()) } else { self.check_engines() }
    }

    /// Refuses if an engine has failed.
    fn check_engines(&self) -> Result<(), ApiError> {
        let Some(failed) = self.frontend.failed_engine() else { return Ok(()) };
        let message = match self.frontend.num_engines() {
            1 => "the engine has failed; the server has to be restarted".to_owned(),
            engines => format!("engine {failed} of {engines} has failed; the server has to be restarted"),
        };
        Err(ApiError::new(ErrorKind::EngineGone, message))
    }

    fn limits(&self) -> Limits<'_> {
        Limits {
            vocabulary_size: self.text.vocabulary_size(),
            end_token_ids: self.text.end_token_ids(),
            has_priorities: self.has_priorities,
        }
    }

    /// The served name that a body's `model` means.
    fn requested_model(&self, fields: &mut Fields) -> Result<String, ApiError> {
        let requested: Option<String> = fields.take("model", "a string")?;
        self.served_name(requested.as_deref()).map(str::to_owned)
    }

    /// Runs `work` on a text of `size` bytes here if it is short, else on a thread that may block.
    async fn blocking_if_long<T: Send + 'static>(
        &self,
        size: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if size <= LONG_TEXT_BYTES {
            return Ok(work());
        }
        let failed = |_| ApiError::new(ErrorKind::Internal, "the text could not be tokenised");
        tokio::task::spawn_blocking(work).await.map_err(failed)
    }
}
