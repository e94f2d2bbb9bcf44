//! Reads a body as every API does, for the fuzzers.

use crate::anthropic;
use crate::config::Limits;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::openai::chat::Chat;
use crate::openai::generation::Generation;
use crate::openai::{completions, responses};
use crate::serving::reader::Calls;
use crate::serving::structured;

/// Reads the body of a request in the form of each API, up to where a model is needed.
#[doc(hidden)]
pub fn read_body(body: &[u8]) {
    let limits = Limits::default();
    type Read = fn(&mut Fields, &Limits) -> Result<(), ApiError>;
    let forms: [Read; 5] = [
        |fields, limits| {
            let generation = Generation::read(fields, &Caller::default(), limits)?;
            completions::prompts(fields, &generation, limits).map(drop)
        },
        |fields, _| structured::source(fields).map(drop),
        |fields, limits| {
            let chat = Chat::read(fields, limits)?;
            let forced = chat.forced.as_ref();
            let calls = forced.map(|forced| structured::calls(&chat.tools, forced, Calls::Any));
            calls.transpose().map(drop)
        },
        |fields, limits| anthropic::read(fields, limits).map(drop),
        |fields, _| responses::read_input(fields),
    ];
    for read in forms {
        let Ok(mut fields) = Fields::parse(body) else {
            return;
        };
        // Most bodies are wrong in some form.
        let _ = read(&mut fields, &limits);
        let _ = fields.unread();
    }
}
