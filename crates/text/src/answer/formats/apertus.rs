//! Apertus: a list of objects with the name of a tool and its arguments, after the template of
//! swiss-ai/Apertus-8B-Instruct-2509.

use crate::answer::cursor::{Cursor, Read, Stop};
use crate::answer::tools::Tools;

use super::{Call, Format, PLAIN, Place, Syntax, Thinking, WholeCall};

pub(super) static FORMAT: Format = Format {
    name: "apertus",
    is_of: |template| template.contains("<|tools_prefix|>"),
    thinking: Some(Thinking {
        open: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
        also_ends: &["<|tools_prefix|>"],
        place: Place::Anywhere,
    }),
    calls: &[Call {
        mark: "<|tools_prefix|>",
        syntax: Syntax::Whole(calls),
    }],
    ..PLAIN
};

fn calls(text: &mut Cursor<'_>, tools: &Tools) -> Read<Vec<WholeCall>> {
    let mut calls = Vec::new();
    text.space();
    text.expect("[")?;
    text.list(']', |text| {
        text.expect("{")?;
        text.space();
        let name = text.string()?;
        if !tools.has(&name) {
            return Err(Stop::NotACall);
        }
        text.space();
        text.expect(":")?;
        text.space();
        if text.peek()? != '{' {
            return Err(Stop::NotACall);
        }
        let arguments = text.json()?.to_owned();
        text.space();
        text.expect("}")?;
        calls.push(WholeCall { name, arguments });
        Ok(())
    })?;
    text.space();
    text.expect("<|tools_suffix|>")?;
    match calls.is_empty() {
        true => Err(Stop::NotACall),
        false => Ok(calls),
    }
}
