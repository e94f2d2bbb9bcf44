//! Routes of the server's owner. Each needs a key with the scope `admin`; a server without keys listens on loopback only,
//! and answers programs and its own page there, but no page of another site.

pub(crate) mod control;
mod profile;
mod profile_page;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{App, Body};
use crate::http::error::ApiError;
use crate::serving::fleet::Asker;
use crate::serving::model::Served;
use control::Reloaded;
use profile::{MAX_STEPS, MAX_TIME, Until};

/// Time of a profile that asks for none.
const USUAL_TIME: Duration = Duration::from_secs(5);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/admin/requests", get(requests))
        .route("/admin/requests/{id}", delete(end))
        .route("/admin/profile", get(profile))
        .route("/admin/drain", post(drain))
        .route("/admin/reload", post(reload))
        .route("/models/load", post(load))
        .route("/models/unload", post(unload))
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

/// How long a profile is to be; without either, five seconds.
#[derive(Deserialize)]
struct Wanted {
    steps: Option<usize>,
    seconds: Option<f64>,
    model: Option<String>,
}

/// `GET /admin/profile`
async fn profile(
    State(app): State<Arc<App>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Query(wanted) = wanted.map_err(|error| ApiError::bad(error.body_text()))?;
    let model = in_memory(&app, wanted.model.as_deref())?;
    let n_steps = wanted.steps.unwrap_or(MAX_STEPS);
    if !(1..=MAX_STEPS).contains(&n_steps) {
        return Err(ApiError::field("steps", format!("use 1 to {MAX_STEPS}")));
    }
    let seconds = match wanted {
        Wanted {
            seconds: Some(n), ..
        } => Duration::try_from_secs_f64(n).ok(),
        Wanted { steps: Some(_), .. } => Some(MAX_TIME),
        _ => Some(USUAL_TIME),
    };
    let time = seconds
        .filter(|time| *time <= MAX_TIME)
        .ok_or_else(|| ApiError::field("seconds", format!("use 0 to {}", MAX_TIME.as_secs())))?;
    let profile = tokio::select! {
        profile = profile::follow(&model, Until { n_steps, time }) => profile?,
        () = app.lifecycle.aborting() => return Err(ApiError::stopping()),
    };
    Ok(match wants_page(&headers) {
        true => {
            let page = profile_page::page(&profile);
            ([(header::CONTENT_TYPE, HTML)], page).into_response()
        }
        false => Json(profile).into_response(),
    })
}

/// Returns a model without loading it.
fn in_memory(app: &App, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
    app.fleet.slot(name)?.ready().ok_or_else(|| {
        let error = ApiError::bad("the model is not in memory; load it first");
        error.code("model_not_loaded")
    })
}

/// Whether a browser asks.
fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.starts_with("text/html"))
}

/// `POST /admin/drain`
async fn drain(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let n_under_way = app.requests.rows().len();
    tokio::spawn(async move { app.control.drain(&app.lifecycle).await });
    let body = json!({ "draining": true, "under_way": n_under_way });
    (StatusCode::ACCEPTED, Json(body))
}

/// `POST /admin/reload`
async fn reload(State(app): State<Arc<App>>) -> (StatusCode, Json<Reloaded>) {
    let reloaded = app.control.reload(|keys| app.set_keys(keys));
    let status = match reloaded.errors.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(reloaded))
}

/// `POST /models/load`
async fn load(State(app): State<Arc<App>>, Body(mut fields): Body) -> Result<Response, ApiError> {
    let name: String = fields.need("model")?;
    // A server that ends loads no model.
    let _under_way = app.lifecycle.admit()?;
    app.model_named(Some(&name), Asker::Owner).await?;
    Ok(app.answer(json!({ "success": true }), &fields))
}

/// `POST /models/unload`
async fn unload(State(app): State<Arc<App>>, Body(mut fields): Body) -> Result<Response, ApiError> {
    let name: String = fields.need("model")?;
    app.fleet.unload(app.fleet.slot(Some(&name))?).await?;
    Ok(app.answer(json!({ "success": true }), &fields))
}
