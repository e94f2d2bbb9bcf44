//! Embeddings of texts, and scores of documents for a query.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use rocmforge_engine::serve::{EventStream, Handle, StreamEvent};
use rocmforge_engine::{EngineError, Request, RequestError};
use rocmforge_gguf::{Gguf, TokenId};
use rocmforge_model::Embedding;
use rocmforge_text::chat_template::{Origin, Rendered};
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::{Error, Session};

/// Texts that are submitted before the first one's result is read. The engine fills its steps from them.
const AHEAD: usize = 64;

impl Session {
    /// Returns the embedding of each text, of length 1. Texts share steps of the device.
    ///
    /// # Errors
    /// The model was not opened for embeddings, a text is empty or too long, or the device fails.
    pub fn embed<S: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = S>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let tokenizer = self.need_tokenizer()?;
        let texts = texts.into_iter();
        self.embed_tokens(texts.map(|text| text_tokens(tokenizer, text.as_ref().as_bytes())))
    }

    /// Returns how well each document answers the query, by a model with the pooling `rank`: its first score.
    ///
    /// # Errors
    /// As [`Session::embed`].
    pub fn rank<S: AsRef<str>>(
        &self,
        query: &str,
        documents: impl IntoIterator<Item = S>,
    ) -> Result<Vec<f32>, Error> {
        let tokenizer = self.need_tokenizer()?;
        let documents = documents.into_iter();
        let pairs = documents
            .map(|document| pair_tokens(&self.file.gguf, tokenizer, query, document.as_ref()));
        let scores = self.embed_tokens(pairs)?;
        Ok(scores.iter().map(|scores| scores[0]).collect())
    }

    fn embed_tokens(
        &self,
        texts: impl Iterator<Item = Vec<TokenId>>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let embedding = self.embedding.as_ref();
        let embedding = embedding.ok_or(RequestError::LoadedForText)?;
        let mut all = Vec::new();
        embed_each(&self.server, &Arc::default(), embedding, texts, |values| {
            all.push(values);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }
}

/// Returns the tokens of a text, with the start and end tokens that the file asks for.
pub fn text_tokens(tokenizer: &Tokenizer, text: &[u8]) -> Vec<TokenId> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    tokenizer.encode_bytes(text, options)
}

/// Returns the tokens of a query and a document, by the template for them in the file if it has one.
pub fn pair_tokens(
    gguf: &Gguf,
    tokenizer: &Tokenizer,
    query: &str,
    document: &str,
) -> Vec<TokenId> {
    match gguf.metadata().opt_str("tokenizer.chat_template.rerank") {
        Ok(Some(template)) => filled(template, query, document).encode(tokenizer),
        _ => tokenizer.encode_pair(query, document),
    }
}

/// Puts the texts in the places of `{query}` and `{document}`.
fn filled(template: &str, query: &str, document: &str) -> Rendered {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{']) {
        let (before, from) = rest.split_at(at);
        parts.push((Origin::Template, before));
        let places = [("{query}", query), ("{document}", document)];
        let place = places.iter().find(|(name, _)| from.starts_with(name));
        rest = match place {
            Some((name, text)) => {
                parts.push((Origin::Conversation, *text));
                &from[name.len()..]
            }
            None => {
                parts.push((Origin::Template, &from[..1]));
                &from[1..]
            }
        };
    }
    parts.push((Origin::Template, rest));
    Rendered::of_parts(parts)
}

/// Calls `on_result` with the embedding of each of the tenant's texts, or its scores, in order, until it stops. Several
/// texts are under way at a time.
///
/// # Errors
/// A text is empty or too long, or the device fails.
pub fn embed_each(
    handle: &Handle,
    tenant: &Arc<str>,
    embedding: &Embedding,
    texts: impl IntoIterator<Item = Vec<TokenId>>,
    mut on_result: impl FnMut(Vec<f32>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut texts = texts.into_iter();
    let mut under_way: VecDeque<EventStream> = VecDeque::new();
    loop {
        while under_way.len() < AHEAD
            && let Some(text) = texts.next()
        {
            let request = Request {
                tenant: Arc::clone(tenant),
                ..Request::embedding(text, embedding.tokens)
            };
            under_way.push_back(handle.submit(request).map_err(EngineError::from)?);
        }
        let Some(stream) = under_way.pop_front() else {
            return Ok(());
        };
        let mut values = result_of(stream)?;
        embedding.finish(&mut values);
        if on_result(values).is_break() {
            return Ok(());
        }
    }
}

fn result_of(stream: EventStream) -> Result<Vec<f32>, Error> {
    let mut pooled = Vec::new();
    for event in stream {
        match event {
            StreamEvent::Embedding(values) => pooled = values,
            StreamEvent::Failed(failure) => return Err(EngineError::from(failure).into()),
            _ => {}
        }
    }
    Ok(pooled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_take_the_places_of_their_names() {
        let template = "{a} {query}|{document}{query} {";
        let text = filled(template, "{document}", "<d>");
        assert_eq!(text.text(), "{a} {document}|<d>{document} {");
    }
}
