//! `/v1/models`: what is served, and under which names.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;

use super::App;
use super::error::{ApiError, ErrorKind};

#[derive(Serialize)]
struct ModelCard<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<&'a str>,
    max_model_len: usize,
}

#[derive(Serialize)]
struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelCard<'a>>,
}

fn card<'a>(app: &'a App, name: &'a str) -> ModelCard<'a> {
    ModelCard {
        id: name,
        object: "model",
        created: app.created,
        owned_by: "limpid",
        root: app.default_name(),
        parent: None,
        max_model_len: app.max_model_len,
    }
}

/// `GET /v1/models`
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<serde_json::Value> {
    let data = app.served_names.iter().map(|name| card(&app, name)).collect();
    Json(serde_json::json!(ModelList { object: "list", data }))
}

/// `GET /v1/models/{model}`
pub(super) async fn get(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<serde_json::Value>, ApiError> {
    // A name that is no UTF-8 is no served one either.
    let name = name.map_or_else(|_| "\u{fffd}".to_owned(), |Path(name)| name);
    let name = app.served_name(Some(&name))?;
    Ok(Json(serde_json::json!(card(&app, name))))
}

impl App {
    /// The name that stands for the model in labels and spans: the first served one.
    pub(super) fn default_name(&self) -> &str {
        &self.served_names[0]
    }

    /// The served name that a request means; one that names no model means the first.
    ///
    /// # Errors
    /// The name is not served.
    pub(super) fn served_name(&self, requested: Option<&str>) -> Result<&str, ApiError> {
        let Some(requested) = requested.filter(|name| !name.is_empty()) else {
            return Ok(self.default_name());
        };
        self.served_names.iter().map(String::as_str).find(|name| *name == requested).ok_or_else(|| {
            let shown = super::json::quote(&requested.into());
            ApiError {
                param: Some("model".to_owned()),
                ..ApiError::new(
                    ErrorKind::ModelNotFound,
                    format!(
                        "model is {shown}, which is not served; allowed: {}",
                        self.served_names.join(", ")
                    ),
                )
            }
        })
    }
}
