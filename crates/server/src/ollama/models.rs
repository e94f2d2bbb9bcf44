//! The models and their embeddings in Ollama's form.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use rocmforge_gguf::Gguf;
use serde_json::{Map, Value, json};

use super::{OllamaError, keep_alive};
use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::openai::embeddings::{Input, vectors};
use crate::serving::fleet::Asker;
use crate::serving::model::Served;
use crate::serving::slot::Slot;

/// Takes the name of a request's model, and returns it without loading it. Ollama's names may have a tag, which is `latest`
/// here.
pub(super) fn slot<'a>(app: &'a App, fields: &mut Fields) -> Result<&'a Arc<Slot>, ApiError> {
    let name: Option<String> = fields.take_any(&["model", "name"])?;
    let name = name.as_deref();
    let name = name.map(|name| name.strip_suffix(":latest").unwrap_or(name));
    app.fleet.slot(name)
}

/// Takes the model of a request, and how long it is to stay in the memory.
pub(super) async fn named(
    app: &App,
    caller: &Caller,
    fields: &mut Fields,
) -> Result<Arc<Served>, ApiError> {
    let slot = slot(app, fields)?;
    let keep_alive = keep_alive::take(app, caller, fields)?;
    let model = app.model_named(Some(slot.name()), Asker::Client).await?;
    if keep_alive.is_some() {
        slot.set_keep_alive(keep_alive);
    }
    Ok(model)
}

/// `GET /api/version`
pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /api/tags`
pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let slots = app.fleet.slots().iter();
    let models: Vec<Value> = slots.map(|slot| entry(slot)).collect();
    Json(json!({ "models": models }))
}

/// `GET /api/ps`
pub(super) async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let slots = app.fleet.slots().iter();
    let in_memory = slots.filter(|slot| slot.ready().is_some());
    let models: Vec<Value> = in_memory.map(|slot| entry(slot)).collect();
    Json(json!({ "models": models }))
}

/// `POST /api/show`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    let Body(mut fields) = body?;
    let _ticket = app.admit(&caller)?;
    let model = named(&app, &caller, &mut fields).await?;
    let metadata = model.gguf.metadata();
    let arch = architecture(&model.gguf);
    let mut info = Map::new();
    info.insert("general.architecture".into(), arch.as_str().into());
    for key in ["general.name", "general.size_label"] {
        if let Ok(Some(text)) = metadata.opt_str(key) {
            info.insert(key.into(), text.into());
        }
    }
    info.insert(
        format!("{arch}.context_length"),
        model.engine.n_ctx().into(),
    );
    let capabilities = match &model.embedding {
        Some(_) => vec!["embedding"],
        None => vec!["completion", "tools"],
    };
    let body = json!({
        "template": model.template.source(),
        "details": details(&model.gguf),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": Timestamp::UNIX_EPOCH.to_string(),
    });
    Ok(app.answer(body, &fields))
}

/// `POST /api/embed`
pub(super) async fn embed(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    let Body(mut fields) = body?;
    let ticket = app.admit(&caller)?;
    let model = named(&app, &caller, &mut fields).await?;
    let input = Input::read(&mut fields)?;
    let name = model.name.clone();
    let vectors = vectors(&app, model, ticket, |_| true, |model| input.tokens(model)).await?;
    let body = json!({
        "model": name,
        "embeddings": vectors.values,
        "prompt_eval_count": vectors.totals.prompt_tokens,
    });
    Ok(app.answer(body, &fields))
}

/// `POST /api/embeddings`: the older route, of one text.
pub(super) async fn embed_one(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    let Body(mut fields) = body?;
    let ticket = app.admit(&caller)?;
    let model = named(&app, &caller, &mut fields).await?;
    let prompt: String = fields.take("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        // The model was loaded; there is nothing to embed.
        return Ok(app.answer(json!({ "embedding": [] }), &fields));
    }
    let input = Input::Text(prompt);
    let vectors = vectors(&app, model, ticket, |_| true, |model| input.tokens(model)).await?;
    let body = json!({ "embedding": vectors.values.first() });
    Ok(app.answer(body, &fields))
}

fn entry(slot: &Slot) -> Value {
    let created = i64::try_from(slot.created).ok();
    let created = created.and_then(|seconds| Timestamp::from_second(seconds).ok());
    json!({
        "name": slot.name(),
        "model": slot.name(),
        "modified_at": created.unwrap_or(Timestamp::UNIX_EPOCH).to_string(),
        "size": slot.file_bytes(),
        "digest": "",
        // A file is read when its model is loaded.
        "details": slot.ready().map(|model| details(&model.gguf)),
    })
}

fn architecture(gguf: &Gguf) -> String {
    let arch = gguf.metadata().opt_str("general.architecture");
    arch.ok().flatten().unwrap_or_default().to_string()
}

fn details(gguf: &Gguf) -> Value {
    let arch = architecture(gguf);
    let size = gguf.metadata().opt_str("general.size_label");
    // The format of most of the weights.
    let mut by_type: Vec<(String, u64)> = Vec::new();
    for tensor in gguf.tensors() {
        let name = tensor.ty.name().to_string();
        match by_type.iter_mut().find(|(other, _)| *other == name) {
            Some((_, n_bytes)) => *n_bytes += tensor.n_bytes,
            None => by_type.push((name, tensor.n_bytes)),
        }
    }
    let most = by_type.into_iter().max_by_key(|(_, n_bytes)| *n_bytes);
    json!({
        "format": "gguf",
        "family": arch,
        "families": [arch],
        "parameter_size": size.ok().flatten().unwrap_or_default(),
        "quantization_level": most.map(|(name, _)| name),
    })
}
