//! `POST /v1/embeddings` and `/v1/rerank`, for models that are made for them.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use rocmforge::parts::{pair_tokens, text_tokens};
use rocmforge_gguf::TokenId;
use rocmforge_model::{Embedding, Pooling};
use serde::Deserialize;
use serde_json::{Value, json};

use super::usage::Timings;
use crate::app::{App, Body};
use crate::base64::base64;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::serving::choices::{PromptTimes, Ticket, Totals};
use crate::serving::embedding;
use crate::serving::model::Served;

/// Texts of one request, at most.
const MAX_TEXTS: usize = 2048;

/// Texts, as text or as token ids.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Input {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<TokenId>),
    ManyIds(Vec<Vec<TokenId>>),
}

impl Input {
    /// Reads the field `input`.
    ///
    /// # Errors
    /// It is missing or has another type.
    pub(crate) fn read(fields: &mut Fields) -> Result<Input, ApiError> {
        let wrong = |_| ApiError::field("input", "use a text, token ids, or a list of either");
        let input: Input = serde_json::from_value(fields.need("input")?).map_err(wrong)?;
        let n_texts = match &input {
            Input::Text(_) | Input::Ids(_) => 1,
            Input::Texts(texts) => texts.len(),
            Input::ManyIds(ids) => ids.len(),
        };
        check_number("input", n_texts)?;
        Ok(input)
    }

    /// Returns the tokens of each text.
    pub(crate) fn tokens(self, model: &Served) -> Vec<Vec<TokenId>> {
        let encode = |text: &String| text_tokens(&model.tokenizer, text.as_bytes());
        match self {
            Input::Text(text) => vec![encode(&text)],
            Input::Texts(texts) => texts.iter().map(encode).collect(),
            Input::Ids(ids) => vec![ids],
            Input::ManyIds(ids) => ids,
        }
    }
}

fn check_number(field: &str, n_texts: usize) -> Result<(), ApiError> {
    match (1..=MAX_TEXTS).contains(&n_texts) {
        true => Ok(()),
        false => Err(ApiError::field(
            field,
            format!("use 1 to {MAX_TEXTS} texts"),
        )),
    }
}

/// The result of texts: a vector each, and the sums of all.
pub(crate) struct Vectors {
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) totals: Totals,
}

/// `POST /v1/embeddings`
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    let input = Input::read(&mut fields)?;
    let format: Option<String> = fields.take("encoding_format")?;
    let in_base64 = match format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "use float or base64")),
    };
    fields.refuse("dimensions", &[])?;
    let name = model.name.clone();
    let vectors = vectors(&app, model, ticket, |_| true, |model| input.tokens(model)).await?;
    let data = vectors.values.iter().enumerate().map(|(index, values)| {
        let embedding = match in_base64 {
            true => packed(values).into(),
            false => json!(values),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let body = json!({
        "object": "list",
        "model": name,
        "data": data.collect::<Vec<_>>(),
        "usage": of_prompts(&vectors.totals),
        "timings": Timings::new(&vectors.totals),
    });
    Ok(app.answer(body, &fields))
}

/// The form of a list of scores.
#[derive(Clone, Copy)]
enum Scores {
    /// Jina's.
    Jina,
    /// That of Text Embeddings Inference.
    Tei,
}

impl Scores {
    /// Describes one score, with the text that it is of if that is asked for.
    fn item(self, index: usize, score: f32, text: Option<&str>) -> Value {
        match (self, text) {
            (Scores::Jina, None) => json!({ "index": index, "relevance_score": score }),
            (Scores::Jina, Some(text)) => {
                json!({ "index": index, "relevance_score": score, "document": { "text": text } })
            }
            (Scores::Tei, None) => json!({ "index": index, "score": score }),
            (Scores::Tei, Some(text)) => json!({ "index": index, "score": score, "text": text }),
        }
    }
}

/// `POST /v1/rerank`: in the form of Text Embeddings Inference if the documents are called `texts`, as in llama-server.
pub(crate) async fn rerank(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    let query: String = fields.need("query")?;
    let form = match fields.take::<Value>("texts")? {
        None => Scores::Jina,
        Some(texts) => {
            fields.put_default("documents", texts);
            Scores::Tei
        }
    };
    let documents = documents(&mut fields)?;
    let with_texts = fields.take_any(&["return_documents", "return_text"])?;
    let with_texts = with_texts.unwrap_or(false);
    let top_n = fields.take("top_n")?.unwrap_or(documents.len());
    let (name, texts) = (model.name.clone(), documents.clone());
    let ranks = |embedding: &Embedding| embedding.pooling == Pooling::Rank;
    let vectors = vectors(&app, model, ticket, ranks, move |model| {
        let pair = |text: &String| pair_tokens(&model.gguf, &model.tokenizer, &query, text);
        texts.iter().map(pair).collect()
    })
    .await?;
    let mut scores: Vec<(usize, f32)> = vectors
        .values
        .iter()
        .enumerate()
        .map(|(index, scores)| (index, scores[0]))
        .collect();
    scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let results = scores.into_iter().take(top_n).map(|(index, score)| {
        let text = with_texts.then(|| documents[index].as_str());
        form.item(index, score, text)
    });
    let results: Vec<Value> = results.collect();
    let body = match form {
        Scores::Tei => results.into(),
        Scores::Jina => json!({
            "object": "list",
            "model": name,
            "results": results,
            "usage": of_prompts(&vectors.totals),
            "timings": Timings::new(&vectors.totals),
        }),
    };
    Ok(app.answer(body, &fields))
}

fn documents(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let documents: Vec<Value> = fields.need("documents")?;
    let text = |document: &Value| {
        let text = document.as_str().or(document.get("text")?.as_str());
        text.map(String::from)
    };
    let texts: Option<Vec<String>> = documents
        .iter()
        .map(|document| match document {
            Value::String(text) => Some(text.clone()),
            document => text(document),
        })
        .collect();
    let texts = texts.ok_or_else(|| ApiError::field("documents", "use a list of texts"))?;
    check_number("documents", texts.len())?;
    Ok(texts)
}

fn of_prompts(totals: &Totals) -> Value {
    json!({ "prompt_tokens": totals.prompt_tokens, "total_tokens": totals.prompt_tokens })
}

/// Computes the texts that `tokens` returns. `suits` says whether the model has what the route returns.
pub(crate) async fn vectors(
    app: &App,
    model: Arc<Served>,
    ticket: Ticket,
    suits: impl FnOnce(&Embedding) -> bool,
    tokens: impl FnOnce(&Served) -> Vec<Vec<TokenId>> + Send + 'static,
) -> Result<Vectors, ApiError> {
    let embedding = model.embedding.clone().filter(|embedding| suits(embedding));
    let embedding = embedding.ok_or_else(|| {
        let message = format!(
            "{} was not loaded for this; use a model that is made for it",
            model.name
        );
        ApiError::new(axum::http::StatusCode::NOT_IMPLEMENTED, message).code("wrong_model")
    })?;
    let of_model = Arc::clone(&model);
    let work = move || {
        let began = Instant::now();
        let texts = tokens(&of_model);
        let times = PromptTimes {
            tokenize: began.elapsed(),
            ..PromptTimes::default()
        };
        Ok((texts, times))
    };
    let (texts, times) = app.workers.run(work).await?;
    let max_queue_time = app.limits.max_queue_time;
    let under_way = embedding::Embedding::new(model, embedding, ticket, texts, max_queue_time);
    let (values, totals) = app.unless_aborted(under_way.results()).await?;
    let totals = Totals {
        prompt_times: times,
        ..totals
    };
    Ok(Vectors { values, totals })
}

/// Returns the little-endian bytes of values in Base64, as OpenAI's clients read them.
fn packed(values: &[f32]) -> String {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    base64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_packed_as_little_endian() {
        // Python: base64.b64encode(struct.pack('<2f', 1.0, -2.5)).
        assert_eq!(packed(&[1.0, -2.5]), "AACAPwAAIMA=");
    }
}
