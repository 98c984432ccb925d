//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::App;
use super::chat::ChatPrompt;
use super::completions::{Prompt, token_ids};
use super::error::ApiError;
use super::json::{Fields, quote};

/// `POST /tokenize`: a prompt, or messages.
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    app.requested_model(&mut fields)?;
    let wants_strings = fields.flag("return_token_strs", false)?;
    let tokens = if fields.get("messages").is_some() {
        ChatPrompt::parse(&mut fields)?.encode(&app).await?
    } else {
        match Prompt::parse(&mut fields, app.text.vocabulary_size())? {
            Prompt::Tokens(_) => return Err(ApiError::field("prompt", "a list of token ids", "a string")),
            prompt => prompt.encode(&app).await?,
        }
    };
    let text = |id: &u32| String::from_utf8_lossy(app.text.token_bytes(*id, true).unwrap_or_default());
    let strings = wants_strings.then(|| tokens.iter().map(text).collect::<Vec<_>>());
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": app.max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    })))
}

/// `POST /detokenize`: control tokens included.
pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    app.requested_model(&mut fields)?;
    let ids = match fields.take_value("tokens") {
        Some(Value::Array(items)) => token_ids("tokens", &items, app.text.vocabulary_size())?,
        Some(other) => return Err(ApiError::field("tokens", quote(&other), "a list of token ids")),
        None => return Err(ApiError::field("tokens", "absent", "a list of token ids")),
    };
    Ok(Json(json!({ "prompt": app.text.decode(&ids) })))
}
