//! Beginnings of prompts that all keys share in the cache: those with a system message that the server's owner names.

use rocmforge::parts::with_bos;
use rocmforge_gguf::TokenId;
use rocmforge_text::chat_template::{ChatTemplate, Conversation, TemplateError};
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// The tokens of these beginnings, for one model.
#[derive(Default)]
pub(crate) struct SharedPrefixes(Vec<Vec<TokenId>>);

impl SharedPrefixes {
    /// Renders conversations that begin with the system messages `texts`, with the variables that requests have if they
    /// leave them out.
    ///
    /// # Errors
    /// The template takes no such message.
    pub(crate) fn new(
        texts: &[String],
        (template, tokenizer): (&ChatTemplate, &Tokenizer),
        variables: Option<&Map<String, Value>>,
    ) -> Result<SharedPrefixes, TemplateError> {
        let prompt = |text: &str, question: &str| -> Result<_, TemplateError> {
            let messages = [
                json!({"role": "system", "content": text}),
                json!({"role": "user", "content": question}),
            ];
            let conversation = Conversation {
                messages: &messages,
                tools: &[],
                add_generation_prompt: true,
                variables,
            };
            let rendered = template.prompt(&conversation, tokenizer)?;
            Ok(with_bos(tokenizer, rendered.encode(tokenizer)))
        };
        // What does not depend on the question.
        let beginning = |text: &String| {
            let (mut tokens, other) = (prompt(text, "a")?, prompt(text, "1")?);
            tokens.truncate(n_equal(&tokens, &other));
            Ok(tokens)
        };
        let all: Result<_, _> = texts.iter().map(beginning).collect();
        all.map(SharedPrefixes)
    }

    /// Returns how many tokens of a prompt are one of these beginnings, or a part of one.
    pub(crate) fn n_shared(&self, prompt: &[TokenId]) -> usize {
        let of_one = |tokens: &Vec<TokenId>| n_equal(tokens, prompt);
        self.0.iter().map(of_one).max().unwrap_or(0)
    }
}

fn n_equal(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
