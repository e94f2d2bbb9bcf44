//! Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5 and Seed-OSS: a tag for the function and one for each parameter, after the
//! templates of Qwen/Qwen3-Coder-30B-A3B-Instruct, Qwen/Qwen3.5-4B and ByteDance-Seed/Seed-OSS-36B-Instruct.

use crate::answer::cursor::{Cursor, Read, Stop, add_member, end_object};
use crate::answer::tools::Tools;

use super::{Call, Format, PLAIN, Syntax, THINK, Thinking, WholeCall};

pub(super) static FORMAT: Format = Format {
    name: "qwen-xml",
    is_of: |template| template.contains("<function=") && template.contains("<parameter="),
    thinking: Some(Thinking {
        also_ends: &["<tool_call>"],
        ..THINK
    }),
    calls: &[
        Call {
            mark: "<tool_call>",
            syntax: Syntax::Whole(|text, tools| {
                text.space();
                text.expect("<function=")?;
                read(text, tools, "</tool_call>")
            }),
        },
        Call {
            mark: "<seed:tool_call>",
            syntax: Syntax::Whole(|text, tools| {
                text.space();
                text.expect("<function=")?;
                read(text, tools, "</seed:tool_call>")
            }),
        },
        // Qwen3-Coder sometimes leaves the first mark out.
        Call {
            mark: "<function=",
            syntax: Syntax::Whole(|text, tools| read(text, tools, "</tool_call>")),
        },
    ],
    ..PLAIN
};

/// Reads a function from its name on, and the closing mark of the call.
fn read(text: &mut Cursor<'_>, tools: &Tools, close: &str) -> Read<Vec<WholeCall>> {
    let name = text.label(&[">"])?.to_owned();
    if !tools.has(&name) {
        return Err(Stop::NotACall);
    }
    text.skip(1);
    let mut arguments = String::new();
    loop {
        text.space();
        if text.take("</function>")? {
            break;
        }
        text.expect("<parameter=")?;
        let key = text.label(&[">"])?.to_owned();
        text.skip(1);
        let value = text.until(&["</parameter>"])?;
        text.expect("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        add_member(&mut arguments, &key, &tools.json(&name, &key, value));
    }
    text.space();
    text.expect(close)?;
    Ok(vec![WholeCall {
        name,
        arguments: end_object(arguments),
    }])
}
