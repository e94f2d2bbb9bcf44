//! The table of routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::app::App;
use crate::http::auth;
use crate::http::error::ApiError;
use crate::observe::access_log;
use crate::{admin, anthropic, llama, ollama, openai, openapi, page};

/// Returns the table of routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let infer = openai::routes()
        .merge(anthropic::routes())
        .merge(llama::routes())
        .merge(ollama::routes())
        .route_layer(from_fn_with_state(Arc::clone(&app), llama::keep_streams))
        .route_layer(from_fn_with_state(Arc::clone(&app), auth::infer));
    let admin = admin::routes().route_layer(from_fn_with_state(Arc::clone(&app), auth::admin));
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .route_layer(from_fn_with_state(Arc::clone(&app), auth::metrics));
    let router = Router::new()
        .route("/", get(page::page))
        .route("/openapi.json", get(openapi::document))
        .merge(llama::probes())
        .merge(infer)
        .merge(metrics)
        .merge(admin)
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method);
    let router = match app.origins.layer() {
        None => router,
        Some(layer) => router.layer(layer),
    };
    router
        .layer(from_fn_with_state(Arc::clone(&app), auth::host_and_id))
        .layer(from_fn_with_state(Arc::clone(&app), access_log::log))
        .with_state(app)
}

async fn no_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "there is no such route")
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this route has another method; the header `allow` names it",
    )
}

/// `GET /metrics`
async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(&app.fleet.in_memory());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
