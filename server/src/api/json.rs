//! Request bodies: JSON objects whose fields are read one by one, so that an error names its field.
//!
//! `null` is absent for every field, and unknown fields are ignored, as in vLLM.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::App;
use super::error::{ApiError, ErrorKind};

/// Longest piece of a client's value that an error message repeats, in characters.
const QUOTED_CHARACTERS: usize = 60;
/// How much of a body that is too large is read and thrown away.
const MAX_DISCARDED_BYTES: usize = 64 << 20;

/// The fields of a JSON object.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Takes a field out; `None` if it is absent or null.
    ///
    /// # Errors
    /// Its type is wrong; `allowed` says what is right.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
        allowed: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take_value(name) else { return Ok(None) };
        let found = quote(&value);
        serde_json::from_value(value).map(Some).map_err(|_| ApiError::field(name, found, allowed))
    }

    /// Takes a field out as it is; `None` if it is absent or null.
    pub(super) fn take_value(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Looks at a field; `None` if it is absent or null.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Takes a flag out.
    pub(super) fn flag(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.take(name, "true or false")?.unwrap_or(default))
    }
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Fields {
        Fields(map)
    }
}

/// A client's value in an error message: short, and on one line.
pub(super) fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED_CHARACTERS) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Fields, ApiError> {
        check_content_type(request.headers())?;
        let body = read(request.into_body(), app.body_limit).await?;
        match serde_json::from_slice(&body) {
            Ok(Value::Object(map)) => Ok(Fields(map)),
            Ok(other) => Err(ApiError::new(
                ErrorKind::InvalidRequest,
                format!("the body is {}; allowed: a JSON object", quote(&other)),
            )),
            Err(error) => Err(ApiError::new(
                ErrorKind::InvalidRequest,
                format!("the body is not valid JSON: {error}; allowed: a JSON object"),
            )),
        }
    }
}

/// Reads a body of at most `limit` bytes. What is beyond is read as well, within reason, and thrown away: a
/// client that is still sending would lose an answer that comes before it is done.
async fn read(mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(ErrorKind::InvalidRequest, format!("the body cannot be read: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size <= limit {
            bytes.extend_from_slice(&data);
        } else if size - limit > MAX_DISCARDED_BYTES {
            break;
        }
    }
    if size > limit {
        let message = format!("the body has more than {limit} bytes; allowed: at most {limit}");
        return Err(ApiError::new(ErrorKind::BodyTooLarge, message));
    }
    Ok(bytes)
}

/// Only `application/json`, as in vLLM; it also keeps web pages from posting to a local server unasked.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("absent");
    let media_type = found.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let shown: String = found.chars().take(QUOTED_CHARACTERS).collect();
    let message = format!("the Content-Type header is {shown}; allowed: application/json");
    Err(ApiError::new(ErrorKind::UnsupportedMediaType, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields(serde_json::from_str(text).expect("an object"))
    }

    #[test]
    fn null_is_absent() {
        let mut fields = fields(r#"{"a": null}"#);
        assert_eq!(fields.take::<u32>("a", "a number").expect("absent"), None);
    }

    #[test]
    fn a_wrong_type_names_the_field_and_quotes_little_of_the_value() {
        let mut fields = fields(&format!(r#"{{"a": "{}"}}"#, "x".repeat(1000)));
        let error = fields.take::<u32>("a", "a whole number").expect_err("a string");
        assert_eq!(error.param.as_deref(), Some("a"));
        assert!(error.message.len() < 120, "{}", error.message);
        assert!(error.message.ends_with("; allowed: a whole number"), "{}", error.message);
    }

    #[test]
    fn only_json_is_accepted() {
        for (content_type, accepted) in [
            (Some("application/json"), true),
            (Some("Application/JSON; charset=utf-8"), true),
            (Some("text/plain"), false),
            (None, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = content_type {
                headers.insert(header::CONTENT_TYPE, value.parse().expect("a header value"));
            }
            assert_eq!(check_content_type(&headers).is_ok(), accepted, "{content_type:?}");
        }
    }
}
