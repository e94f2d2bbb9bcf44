//! Routes of the server's owner. Each needs a key with the scope `admin`; a server without keys listens on loopback only,
//! and answers programs and its own page there, but no page of another site.

pub(crate) mod control;

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;
use control::Reloaded;

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/admin/requests", get(requests))
        .route("/admin/requests/{id}", delete(end))
        .route("/admin/drain", post(drain))
        .route("/admin/reload", post(reload))
}

/// `GET /admin/requests`
async fn requests(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "requests": app.requests.rows() }))
}

/// `DELETE /admin/requests/{id}`
async fn end(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    match app.requests.end(&id) {
        true => Ok(Json(json!({ "id": id, "ended": true }))),
        false => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "no request of this id is under way",
        )),
    }
}

/// `POST /admin/drain`
async fn drain(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let n_under_way = app.requests.rows().len();
    tokio::spawn(async move { app.drain().await });
    let body = json!({ "draining": true, "under_way": n_under_way });
    (StatusCode::ACCEPTED, Json(body))
}

/// `POST /admin/reload`
async fn reload(State(app): State<Arc<App>>) -> (StatusCode, Json<Reloaded>) {
    let reloaded = app.reload();
    let status = match reloaded.errors.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(reloaded))
}
