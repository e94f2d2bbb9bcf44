//! Log-probabilities in OpenAI's two forms.

use rocmforge_engine::serve::{PromptScore, Token};
use rocmforge_gguf::TokenId;
use rocmforge_plan::TokenLogprob;
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// The list of a chat's answer: each token with its bytes and the best tokens.
pub(super) fn of_chat(tokenizer: &Tokenizer, tokens: &[Token]) -> Value {
    let of_token = |token: &Token| of_token(tokenizer, token);
    json!({ "content": shown(tokenizer, tokens).map(of_token).collect::<Vec<_>>() })
}

/// A token with its bytes and the best tokens.
pub(crate) fn of_token(tokenizer: &Tokenizer, token: &Token) -> Value {
    let mut value = entry(tokenizer, token.id, token.logprob.unwrap_or(0.0));
    let top = token.top.iter();
    let top = top.map(|best| entry(tokenizer, best.id, best.logprob));
    value["top_logprobs"] = top.collect();
    value
}

/// Tokens that are part of the answer: its end is not.
fn shown<'t>(tokenizer: &Tokenizer, tokens: &'t [Token]) -> impl Iterator<Item = &'t Token> {
    tokens.iter().filter(|token| !tokenizer.is_eog(token.id))
}

fn entry(tokenizer: &Tokenizer, id: TokenId, logprob: f32) -> Value {
    json!({
        "id": id,
        "token": text_of(tokenizer, id),
        "logprob": finite(logprob),
        "bytes": tokenizer.token_bytes(id),
    })
}

/// Returns the text of a token; bytes that are no UTF-8 are replaced.
fn text_of(tokenizer: &Tokenizer, id: TokenId) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

/// JSON has no infinity; OpenAI writes -9999 for a token that cannot be.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// The four lists of a completion's answer. They continue from piece to piece.
#[derive(Clone)]
pub(super) struct CompletionLogprobs {
    /// Where the next token begins in the text, in characters.
    offset: usize,
}

impl CompletionLogprobs {
    pub(super) fn new() -> CompletionLogprobs {
        CompletionLogprobs { offset: 0 }
    }

    pub(super) fn of_tokens(&mut self, tokenizer: &Tokenizer, tokens: &[Token]) -> Value {
        let tokens = shown(tokenizer, tokens);
        self.lists(
            tokenizer,
            tokens.map(|token| (token.id, token.logprob, &token.top[..])),
        )
    }

    /// The lists of an echoed prompt; its first token has no log-probability.
    pub(super) fn of_prompt(
        &mut self,
        tokenizer: &Tokenizer,
        prompt: &[TokenId],
        scores: &[PromptScore],
    ) -> Value {
        let mut by_position = vec![None; prompt.len()];
        for score in scores {
            by_position[score.position] = Some(score);
        }
        let tokens = prompt.iter().zip(by_position).map(|(&id, score)| {
            let top = score.map_or(&[][..], |score| &score.top);
            (id, score.map(|score| score.logprob), top)
        });
        self.lists(tokenizer, tokens)
    }

    fn lists<'t>(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: impl Iterator<Item = (TokenId, Option<f32>, &'t [TokenLogprob])>,
    ) -> Value {
        let (mut texts, mut logprobs, mut tops, mut offsets) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (id, logprob, top) in tokens {
            let text = text_of(tokenizer, id);
            offsets.push(self.offset);
            self.offset += text.chars().count();
            texts.push(text);
            logprobs.push(logprob.map(finite));
            let best =
                |best: &TokenLogprob| (text_of(tokenizer, best.id), json!(finite(best.logprob)));
            tops.push(match logprob {
                Some(_) => Value::Object(top.iter().map(best).collect::<Map<_, _>>()),
                None => Value::Null,
            });
        }
        json!({
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        })
    }
}
