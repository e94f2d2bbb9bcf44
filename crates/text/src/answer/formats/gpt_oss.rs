//! gpt-oss: messages with a channel and a recipient, after <https://cookbook.openai.com/articles/openai-harmony>. The
//! recipient may stand before or after the channel. What is sent to a built-in tool (`python`, `browser.search`) is
//! dropped, as llama.cpp does.

use crate::answer::messages::{BeforeAnswer, Body, Dialect, MESSAGE, START, recipient, word};

use super::{Format, PLAIN};

const CHANNEL: &str = "<|channel|>";

pub(super) static FORMAT: Format = Format {
    name: "gpt-oss",
    is_of: |template| template.contains(CHANNEL) && template.contains(MESSAGE),
    messages: Some(&Dialect {
        headers: &[START, CHANNEL, MESSAGE, "<|constrain|>", " to=", "to="],
        ends: &["<|end|>", "<|return|>", "<|call|>"],
        begins: &[START, CHANNEL],
        answer: Some(&BeforeAnswer {
            ends: &[
                "<|channel|>final<|message|>",
                "<|channel|>final <|constrain|>json<|message|>",
            ],
            breaks: &["<|channel|>commentary", " to="],
        }),
        body: |header, tools| {
            let name = match recipient(header) {
                Some(to) => to.strip_prefix("functions.").ok_or(to),
                None => Err("assistant"),
            };
            let channel = header.rsplit_once(CHANNEL);
            let channel = channel.map_or("", |(_, after)| word(after));
            match name {
                Ok(name) if tools.has(name) => Body::Arguments(name.to_owned()),
                Err(to) if to != "assistant" => Body::Dropped,
                _ if channel == "analysis" => Body::Reasoning,
                _ => Body::Content,
            }
        },
    }),
    ..PLAIN
};
