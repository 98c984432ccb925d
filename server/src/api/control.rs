//! What operators tell the engine: `/reset_prefix_cache`.
//!
//! vLLM has these routes only with `VLLM_SERVER_DEV_MODE=1`. Here they are always there, behind the API key like
//! everything that costs something.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};

use super::App;
use super::error::{ApiError, ErrorKind};

/// `POST /reset_prefix_cache`: the answer comes when it is done.
pub(super) async fn reset_prefix_cache(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<StatusCode, ApiError> {
    let preempt = flag(&uri, "reset_running_requests")?;
    app.check_engine()?;
    match app.frontend.reset_prefix_cache(preempt).await {
        Some(true) => Ok(StatusCode::OK),
        Some(false) => Err(ApiError::new(
            ErrorKind::CacheInUse,
            "requests hold blocks of the cache; allowed: an idle server, or reset_running_requests=true, which has \
             them computed again",
        )),
        None => Err(ApiError::new(ErrorKind::EngineGone, "the engine has ended")),
    }
}

/// A flag in the query; false if it is not there.
fn flag(uri: &Uri, name: &str) -> Result<bool, ApiError> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| ApiError::new(ErrorKind::InvalidRequest, error.body_text()))?;
    match pairs.0.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.as_str()) {
        None | Some("false" | "False" | "0") => Ok(false),
        Some("true" | "True" | "1") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(100).collect();
            Err(ApiError::field(name, format!("{shown:?}"), "true or false"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_true_false_or_refused() {
        let read = |query: &str| flag(&format!("/r?{query}").parse().expect("a URI"), "f").ok();
        for (query, expected) in [
            ("", Some(false)),
            ("other=true", Some(false)),
            ("f=true", Some(true)),
            ("f=1&other=x", Some(true)),
            ("f=true&f=false", Some(false)),
            ("f=maybe", None),
            ("f=%ff", None),
        ] {
            assert_eq!(read(query), expected, "{query}");
        }
    }
}
