//! Beginnings of prompts that all keys share in the cache: those with a system message that the server's owner names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rocmforge::parts::with_bos;
use rocmforge_gguf::TokenId;
use rocmforge_text::chat_template::{ChatTemplate, Conversation, TemplateError};
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::config::SharedPrefix;

/// These beginnings for one model.
pub(crate) struct SharedPrefixes {
    messages: Arc<[SharedPrefix]>,
    tokens: RwLock<Vec<Vec<TokenId>>>,
    /// The day of `tokens`: many templates print it before the message.
    day: AtomicU64,
}

impl SharedPrefixes {
    /// Those with `messages`. None is known before [`SharedPrefixes::render`].
    pub(crate) fn new(messages: Arc<[SharedPrefix]>) -> SharedPrefixes {
        SharedPrefixes {
            messages,
            tokens: RwLock::default(),
            day: AtomicU64::new(u64::MAX),
        }
    }

    /// Renders them with the date of today, if they are not, and the variables that requests have if they leave them out.
    /// Returns the messages that the template does not take, and why.
    pub(crate) fn render(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        variables: Option<&Map<String, Value>>,
    ) -> Vec<(&str, TemplateError)> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let today = since.map_or(0, |since| since.as_secs() / (24 * 60 * 60));
        if self.messages.is_empty() || self.day.load(Ordering::Acquire) == today {
            return Vec::new();
        }
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
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        for SharedPrefix { name, text } in &*self.messages {
            // What does not depend on the question.
            let prompts = prompt(text, "a").and_then(|tokens| Ok((tokens, prompt(text, "1")?)));
            match prompts {
                Ok((mut tokens, other)) => {
                    tokens.truncate(n_equal(&tokens, &other));
                    all.push(tokens);
                }
                Err(error) => refused.push((name.as_str(), error)),
            }
        }
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = all;
        self.day.store(today, Ordering::Release);
        refused
    }

    /// Returns how many tokens of a prompt are one of these beginnings, or a part of one.
    pub(crate) fn n_shared(&self, prompt: &[TokenId]) -> usize {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let of_one = |tokens: &Vec<TokenId>| n_equal(tokens, prompt);
        tokens.iter().map(of_one).max().unwrap_or(0)
    }
}

fn n_equal(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
