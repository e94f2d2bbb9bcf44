//! Muse Glimmer: messages with a recipient, which is the model itself for reasoning, the user, or a tool; calls are tags
//! `invoke` and `parameter` with names. After the template that llama.cpp ships, models/templates/muse-glimmer.jinja.

use crate::answer::cursor::{Cursor, Read, Stop};
use crate::answer::messages::{Body, Dialect, MESSAGE, START, recipient};
use crate::answer::tools::Tools;

use super::invoke::{Tags, call};
use super::{Format, PLAIN, WholeCall};

const TAGS: Tags = Tags {
    close: "</atem:invoke>",
    parameter: "<atem:parameter name=\"",
    parameter_close: "</atem:parameter>",
};

pub(super) static FORMAT: Format = Format {
    name: "muse-glimmer",
    is_of: |template| template.contains("<atem:function_calls>"),
    messages: Some(&Dialect {
        answer: None,
        headers: &[START, MESSAGE, " to=", "to="],
        ends: &["<|eom|>", "<|eot|>"],
        begins: &[START],
        body: |header, _| match recipient(header) {
            Some("self") => Body::Reasoning,
            None | Some("user") => Body::Content,
            Some(_) => Body::Calls(calls),
        },
    }),
    ..PLAIN
};

fn calls(text: &mut Cursor<'_>, tools: &Tools) -> Read<Vec<WholeCall>> {
    text.space();
    text.expect("<atem:function_calls>")?;
    let mut calls = Vec::new();
    loop {
        text.space();
        if text.take("</atem:function_calls>")? {
            break;
        }
        text.expect("<atem:invoke name=\"")?;
        calls.push(call(text, tools, &TAGS)?);
    }
    match calls.is_empty() {
        true => Err(Stop::NotACall),
        false => Ok(calls),
    }
}
