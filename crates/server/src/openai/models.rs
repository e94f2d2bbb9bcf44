//! The list of models.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;
use crate::serving::slot::Slot;

/// `GET /v1/models`
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.fleet.slots().iter().map(|slot| object(slot)).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// `GET /v1/models/{id}`
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(object(app.fleet.slot(Some(&id))?)))
}

fn object(slot: &Slot) -> Value {
    json!({
        "id": slot.name(),
        "object": "model",
        "created": slot.created,
        "owned_by": "rocmforge",
        // What is known once the model is in memory.
        "max_model_len": slot.ready().map(|model| model.engine.n_ctx()),
        "status": { "value": slot.status() },
    })
}
