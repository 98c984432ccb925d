//! Everything that can go wrong with a request, classified once.
//!
//! A handler names a [`ErrorKind`] and a message for the client; status, OpenAI's `type` and `code`, and the
//! trace's `error.type` all follow from the kind.
//!
//! Invariant: every answer with a status of 400 or more has OpenAI's error object as its body.

use std::fmt::Display;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::frontend::{ENGINE_ERROR, ENGINE_GONE, NotAdmitted};

/// Kinds of failure. The middleware finds the kind among a response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// A field is missing, of the wrong type or out of range, or the body is no JSON.
    InvalidRequest,
    /// A field asks for something that this server does not do.
    Unsupported,
    /// Prompt and answer do not fit into the context.
    ContextLength,
    /// No or a wrong API key.
    Unauthorized,
    /// The model is not the one that is served.
    ModelNotFound,
    /// No such route.
    UnknownRoute,
    /// The route exists, the method does not.
    MethodNotAllowed,
    /// The body is larger than any valid request.
    BodyTooLarge,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// A limit of the server's own keeps this request out for now.
    Overloaded,
    /// The cache cannot be emptied while requests use it.
    CacheInUse,
    /// The engine cannot go to sleep or wake up.
    SleepFailed,
    /// The engine gave this request up.
    EngineFailed,
    /// The engine has ended.
    EngineGone,
    /// The engine has something to do and does nothing.
    EngineStalled,
    /// A bug of ours.
    Internal,
}

/// What follows from a kind.
struct Class {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
}

/// Seconds. Places become free with every request that ends.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
const INVALID_REQUEST: &str = "invalid_request_error";
const SERVER_ERROR: &str = "server_error";

impl ErrorKind {
    fn class(self) -> Class {
        let (status, kind, code) = match self {
            ErrorKind::InvalidRequest => (StatusCode::BAD_REQUEST, INVALID_REQUEST, None),
            ErrorKind::Unsupported => {
                (StatusCode::BAD_REQUEST, INVALID_REQUEST, Some("unsupported_parameter"))
            }
            ErrorKind::ContextLength => {
                (StatusCode::BAD_REQUEST, INVALID_REQUEST, Some("context_length_exceeded"))
            }
            ErrorKind::Unauthorized => (StatusCode::UNAUTHORIZED, INVALID_REQUEST, Some("invalid_api_key")),
            ErrorKind::ModelNotFound => (StatusCode::NOT_FOUND, INVALID_REQUEST, Some("model_not_found")),
            ErrorKind::UnknownRoute => (StatusCode::NOT_FOUND, INVALID_REQUEST, Some("unknown_url")),
            ErrorKind::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, Some("method_not_allowed"))
            }
            ErrorKind::BodyTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, Some("request_too_large"))
            }
            ErrorKind::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, Some("unsupported_media_type"))
            }
            ErrorKind::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, Some("server_overloaded"))
            }
            ErrorKind::CacheInUse => (StatusCode::CONFLICT, INVALID_REQUEST, Some("prefix_cache_in_use")),
            ErrorKind::SleepFailed => (StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, Some("sleep_failed")),
            ErrorKind::EngineFailed => (StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, Some(ENGINE_ERROR)),
            ErrorKind::EngineGone => (StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, Some(ENGINE_GONE)),
            ErrorKind::EngineStalled => {
                (StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, Some("engine_stalled"))
            }
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, Some("internal_error")),
        };
        Class { status, kind, code }
    }

    /// `error.type` on the SERVER span. A 4xx is the client's error, not the server's, and has none.
    pub(super) fn error_type(self) -> Option<&'static str> {
        let class = self.class();
        if class.status.is_server_error() { class.code } else { None }
    }
}

/// An error on its way to the client.
#[derive(Debug)]
pub(super) struct ApiError {
    /// Its class.
    pub(super) kind: ErrorKind,
    /// For people; names what was found and what is allowed.
    pub(super) message: String,
    /// The field at fault.
    pub(super) param: Option<String>,
}

/// OpenAI's error object.
#[derive(Serialize)]
pub(super) struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), param: None }
    }

    /// A field that cannot be used: the message reads field, value found, what is allowed.
    pub(super) fn field(name: &str, found: impl Display, allowed: impl Display) -> ApiError {
        ApiError {
            kind: ErrorKind::InvalidRequest,
            message: format!("{name} is {found}; allowed: {allowed}"),
            param: Some(name.to_owned()),
        }
    }

    /// A field that asks for what this server does not do.
    pub(super) fn unsupported(name: &str, found: impl Display, allowed: impl Display) -> ApiError {
        ApiError {
            kind: ErrorKind::Unsupported,
            message: format!("{name} is {found}, which this server does not support; allowed: {allowed}"),
            param: Some(name.to_owned()),
        }
    }

    /// The error object, also sent as an event once a stream has begun.
    pub(super) fn body(&self) -> ErrorBody<'_> {
        let class = self.kind.class();
        ErrorBody {
            error: ErrorFields {
                message: &self.message,
                kind: class.kind,
                param: self.param.as_deref(),
                code: class.code,
            },
        }
    }
}

impl From<NotAdmitted> for ApiError {
    fn from(refused: NotAdmitted) -> ApiError {
        ApiError::new(ErrorKind::Overloaded, refused.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.kind.class().status, Json(self.body())).into_response();
        response.extensions_mut().insert(self.kind);
        let headers = response.headers_mut();
        match self.kind {
            ErrorKind::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorKind::Overloaded => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_status_type_code_and_error_type() {
        let table = [
            (ErrorKind::InvalidRequest, 400, "invalid_request_error", None, None),
            (ErrorKind::Unsupported, 400, "invalid_request_error", Some("unsupported_parameter"), None),
            (ErrorKind::ContextLength, 400, "invalid_request_error", Some("context_length_exceeded"), None),
            (ErrorKind::Unauthorized, 401, "invalid_request_error", Some("invalid_api_key"), None),
            (ErrorKind::ModelNotFound, 404, "invalid_request_error", Some("model_not_found"), None),
            (ErrorKind::UnknownRoute, 404, "invalid_request_error", Some("unknown_url"), None),
            (ErrorKind::MethodNotAllowed, 405, "invalid_request_error", Some("method_not_allowed"), None),
            (ErrorKind::BodyTooLarge, 413, "invalid_request_error", Some("request_too_large"), None),
            (
                ErrorKind::UnsupportedMediaType,
                415,
                "invalid_request_error",
                Some("unsupported_media_type"),
                None,
            ),
            (
                ErrorKind::Overloaded,
                503,
                "server_error",
                Some("server_overloaded"),
                Some("server_overloaded"),
            ),
            (ErrorKind::SleepFailed, 500, "server_error", Some("sleep_failed"), Some("sleep_failed")),
            (ErrorKind::CacheInUse, 409, "invalid_request_error", Some("prefix_cache_in_use"), None),
            (ErrorKind::EngineFailed, 500, "server_error", Some("engine_error"), Some("engine_error")),
            (
                ErrorKind::EngineGone,
                503,
                "server_error",
                Some("engine_unavailable"),
                Some("engine_unavailable"),
            ),
            (ErrorKind::EngineStalled, 503, "server_error", Some("engine_stalled"), Some("engine_stalled")),
            (ErrorKind::Internal, 500, "server_error", Some("internal_error"), Some("internal_error")),
        ];
        for (kind, status, type_, code, error_type) in table {
            let error = ApiError::new(kind, "why");
            let body = serde_json::to_value(error.body()).expect("plain data");
            let expected = serde_json::json!({
                "error": { "message": "why", "type": type_, "param": null, "code": code }
            });
            assert_eq!(body, expected, "{kind:?}");
            assert_eq!(error.into_response().status().as_u16(), status, "{kind:?}");
            assert_eq!(kind.error_type(), error_type, "{kind:?}");
        }
    }

    #[test]
    fn a_field_error_names_field_value_and_what_is_allowed() {
        let error = ApiError::field("top_p", 1.5, "more than 0, at most 1");
        assert_eq!(error.message, "top_p is 1.5; allowed: more than 0, at most 1");
        assert_eq!(error.param.as_deref(), Some("top_p"));
    }
}
