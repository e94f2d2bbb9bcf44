//! Gemma 4: `call:NAME{key:value}` with strings between `<|"|>`, after Google's prompt format
//! (ai.google.dev/gemma/docs/core/prompt-formatting-gemma4) and the template of google/gemma-4-31B-it.

use serde_json::Value;

use crate::answer::cursor::{Cursor, Read, Stop, add_member, end_object};

use super::{Call, Format, PLAIN, Place, Syntax, Thinking, WholeCall};

const QUOTE: &str = "<|\"|>";

pub(super) static FORMAT: Format = Format {
    name: "gemma4",
    is_of: |template| template.contains("<|tool_call>"),
    thinking: Some(Thinking {
        open: "<|channel>thought",
        close: "<channel|>",
        also_ends: &[],
        place: Place::Anywhere,
    }),
    // It sometimes writes these without a partner.
    hidden: &["<channel|>", "<|channel>"],
    calls: &[Call {
        mark: "<|tool_call>",
        syntax: Syntax::Whole(|text, tools| {
            text.expect("call:")?;
            let name = text.label(&["{"])?.to_owned();
            if !tools.has(&name) {
                return Err(Stop::NotACall);
            }
            let arguments = value(text)?;
            text.expect("<tool_call|>")?;
            Ok(vec![WholeCall { name, arguments }])
        }),
    }],
    ..PLAIN
};

/// Reads a value; returns it as JSON.
fn value(text: &mut Cursor<'_>) -> Read<String> {
    match text.peek()? {
        '<' => {
            text.expect(QUOTE)?;
            let string = Value::from(text.until(&[QUOTE])?).to_string();
            text.expect(QUOTE)?;
            Ok(string)
        }
        '{' => {
            text.skip(1);
            let mut object = String::new();
            text.list('}', |text| {
                let key = match text.peek()? {
                    '<' => {
                        text.expect(QUOTE)?;
                        let key = text.until(&[QUOTE])?;
                        text.expect(QUOTE)?;
                        key
                    }
                    _ => text.label(&[":"])?,
                };
                text.expect(":")?;
                text.space();
                add_member(&mut object, key, &value(text)?);
                Ok(())
            })?;
            Ok(end_object(object))
        }
        '[' => {
            text.skip(1);
            let mut items = Vec::new();
            text.list(']', |text| {
                items.push(value(text)?);
                Ok(())
            })?;
            Ok(format!("[{}]", items.join(",")))
        }
        _ => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
            let len = text.rest().find(|c| !is_part(c)).ok_or(Stop::Incomplete)?;
            let start = text.at();
            text.skip(len);
            let word = text.since(start);
            match serde_json::from_str::<Value>(word) {
                Ok(_) => Ok(word.to_owned()),
                Err(_) => Err(Stop::NotACall),
            }
        }
    }
}
