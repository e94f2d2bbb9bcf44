//! OpenAI's API.

pub(crate) mod chat;
pub(crate) mod chat_events;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod generation;
mod generic;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod usage;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

/// The routes that need a key for answers. Those without `/v1` are for clients of llama-server and of Jina's rerankers.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/responses", post(responses::create))
        .route(
            "/v1/responses/{id}",
            get(responses::get).delete(responses::delete),
        )
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/rerank", post(embeddings::rerank))
        .route("/v1/reranking", post(embeddings::rerank))
        .route("/rerank", post(embeddings::rerank))
        .route("/reranking", post(embeddings::rerank))
        .route("/v1/models", get(models::list))
        .route("/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
}
