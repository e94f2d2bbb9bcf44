//! GLM 4.5 to 4.7 and 5, and Laguna: the name, then a tag for each key and value, after the templates of zai-org/GLM-4.6,
//! zai-org/GLM-4.7-Flash and poolside/Laguna-S-2.1.

use crate::answer::cursor::{Cursor, Read, Stop, add_member, end_object};
use crate::answer::tools::Tools;

use super::{Call, Format, PLAIN, Syntax, THINK, WholeCall};

/// The marks of a call.
pub(super) struct Tags {
    /// After the name.
    pub(super) separator: &'static str,
    pub(super) key: [&'static str; 2],
    pub(super) value: [&'static str; 2],
    pub(super) close: &'static str,
}

const TAGS: Tags = Tags {
    separator: "",
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    close: "</tool_call>",
};

pub(super) static FORMAT: Format = Format {
    name: "glm",
    is_of: |template| template.contains("<arg_key>"),
    thinking: Some(THINK),
    calls: &[Call {
        mark: "<tool_call>",
        syntax: Syntax::Whole(|text, tools| call(text, tools, &TAGS)),
    }],
    ..PLAIN
};

/// Reads a call from its name on.
pub(super) fn call(text: &mut Cursor<'_>, tools: &Tools, tags: &Tags) -> Read<Vec<WholeCall>> {
    let name = text.label(&["<"])?.to_owned();
    if !tools.has(&name) {
        return Err(Stop::NotACall);
    }
    text.expect(tags.separator)?;
    let mut arguments = String::new();
    loop {
        text.space();
        if text.take(tags.close)? {
            break;
        }
        let [key, key_close] = tags.key;
        text.expect(key)?;
        let key = text.label(&[key_close])?.to_owned();
        text.expect(key_close)?;
        text.space();
        let [value, value_close] = tags.value;
        text.expect(value)?;
        let value = text.until(&[value_close])?;
        text.expect(value_close)?;
        add_member(&mut arguments, &key, &tools.json(&name, &key, value));
    }
    Ok(vec![WholeCall {
        name,
        arguments: end_object(arguments),
    }])
}
