//! `POST /embedding` and `/embeddings`: llama-server's own form of embeddings.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::openai::embeddings::{Input, vectors};

/// `POST /embedding`, `/embeddings`
pub(super) async fn embed(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    if let Some(content) = fields.take("content")? {
        fields.put_default("input", content);
    }
    let input = Input::read(&mut fields)?;
    fields.refuse("encoding_format", &[json!("float")])?;
    // Vectors have the Euclidean length 1.
    fields.refuse("embd_normalize", &[json!(2)])?;
    let vectors = vectors(&app, model, ticket, |_| true, |model| input.tokens(model)).await?;
    // A list, as there are models with a vector for each token.
    let of_text = |(index, values)| json!({ "index": index, "embedding": [values] });
    let all: Vec<Value> = vectors.values.iter().enumerate().map(of_text).collect();
    Ok(app.answer(all.into(), &fields))
}
