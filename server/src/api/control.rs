//! What operators tell the engines, all of them at once: `/reset_prefix_cache`, `/sleep`, `/wake_up`, `/is_sleeping`.
//!
//! vLLM has these routes only with `VLLM_SERVER_DEV_MODE=1`. Here they are always there, behind the API key like
//! everything that costs something.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use limpid_engine::engine::{PauseMode, SleepLevel};

use super::App;
use super::error::{ApiError, ErrorKind};

/// `POST /reset_prefix_cache`: the answer comes when it is done.
pub(super) async fn reset_prefix_cache(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<StatusCode, ApiError> {
    let preempt = Arguments::of(&uri)?.flag("reset_running_requests")?;
    app.check_engines()?;
    match app.frontend.reset_prefix_cache(preempt).await {
        Some(true) => Ok(StatusCode::OK),
        Some(false) => Err(ApiError::new(
            ErrorKind::CacheInUse,
            "requests hold blocks of the cache; allowed: an idle server, or reset_running_requests=true, which has \
             them computed again",
        )),
        None => Err(ApiError::new(ErrorKind::EngineGone, "an engine has ended")),
    }
}

/// `POST /sleep?level=1&mode=abort`: the answer comes when the engine sleeps.
pub(super) async fn sleep(State(app): State<Arc<App>>, uri: Uri) -> Result<StatusCode, ApiError> {
    let arguments = Arguments::of(&uri)?;
    let level = arguments.one_of(
        "level",
        SleepLevel::Offload,
        &[("0", SleepLevel::Pause), ("1", SleepLevel::Offload), ("2", SleepLevel::Discard)],
    )?;
    let mode = arguments.one_of(
        "mode",
        PauseMode::Abort,
        &[("abort", PauseMode::Abort), ("wait", PauseMode::Wait), ("keep", PauseMode::Keep)],
    )?;
    app.check_engines()?;
    answered(app.frontend.sleep(level, mode).await)
}

/// `POST /wake_up`: the answer comes when the engine is awake. The device is opened as a whole, so tags that
/// leave a part of it asleep are refused.
pub(super) async fn wake_up(State(app): State<Arc<App>>, uri: Uri) -> Result<StatusCode, ApiError> {
    let tags: Vec<_> = Arguments::of(&uri)?.all("tags");
    for part in ["weights", "kv_cache"] {
        if !tags.is_empty() && !tags.iter().any(|tag| tag == part) {
            let found = tags.join(", ").chars().take(100).collect::<String>();
            return Err(ApiError::field("tags", found, "absent, or weights and kv_cache together"));
        }
    }
    app.check_engines()?;
    answered(app.frontend.wake_up().await)
}

/// `GET /is_sleeping`
pub(super) async fn is_sleeping(State(app): State<Arc<App>>) -> Json<serde_json::Value> {
    Json(serde_json::json!({ "is_sleeping": app.frontend.is_sleeping() }))
}

fn answered(result: Option<Result<(), Arc<str>>>) -> Result<StatusCode, ApiError> {
    match result {
        Some(Ok(())) => Ok(StatusCode::OK),
        Some(Err(error)) => Err(ApiError::new(ErrorKind::SleepFailed, &*error)),
        None => Err(ApiError::new(ErrorKind::EngineGone, "an engine has ended")),
    }
}

/// The query's arguments.
struct Arguments(Vec<(String, String)>);

impl Arguments {
    fn of(uri: &Uri) -> Result<Arguments, ApiError> {
        match Query::try_from_uri(uri) {
            Ok(Query(pairs)) => Ok(Arguments(pairs)),
            Err(error) => Err(ApiError::new(ErrorKind::InvalidRequest, error.body_text())),
        }
    }

    fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    /// The value that the last argument of this name stands for.
    fn one_of<T: Copy>(&self, name: &str, default: T, values: &[(&str, T)]) -> Result<T, ApiError> {
        let Some((_, found)) = self.0.iter().rfind(|(key, _)| key == name) else { return Ok(default) };
        if let Some((_, value)) = values.iter().find(|(spelling, _)| spelling == found) {
            return Ok(*value);
        }
        let shown: String = found.chars().take(100).collect();
        let allowed: Vec<_> = values.iter().map(|(spelling, _)| *spelling).collect();
        Err(ApiError::field(name, format!("{shown:?}"), allowed.join(", ")))
    }

    /// A flag; false if it is not there.
    fn flag(&self, name: &str) -> Result<bool, ApiError> {
        self.one_of(name, false, &[("true", true), ("false", false)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_true_false_or_refused() {
        let read = |query: &str| {
            let uri = format!("/r?{query}").parse().expect("a URI");
            Arguments::of(&uri).and_then(|arguments| arguments.flag("f")).ok()
        };
        for (query, expected) in [
            ("", Some(false)),
            ("other=true", Some(false)),
            ("f=true", Some(true)),
            ("f=true&f=false", Some(false)),
            ("f=maybe", None),
        ] {
            assert_eq!(read(query), expected, "{query}");
        }
    }
}
