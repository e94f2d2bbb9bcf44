//! The list of models.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;
use crate::serving::model::Served;

/// `GET /v1/models`
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.models.iter().map(|model| object(model)).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// `GET /v1/models/{id}`
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(object(&*app.model(Some(&id))?)))
}

fn object(model: &Served) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "rocmforge",
        "max_model_len": model.engine.n_ctx(),
    })
}
