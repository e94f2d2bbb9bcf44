//! Kimi K2: ids such as `functions.NAME:0`, then JSON, after the template of moonshotai/Kimi-K2-Instruct and its
//! docs/tool_call_guidance.md.

use super::{Call, Format, Head, PLAIN, Syntax, THINK, Thinking};

const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

pub(super) static FORMAT: Format = Format {
    name: "kimi-k2",
    is_of: |template| template.contains("<|tool_call_argument_begin|>"),
    thinking: Some(Thinking {
        // It calls tools at the end of reasoning.
        also_ends: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
        ..THINK
    }),
    hidden: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    calls: &[Call {
        mark: "<|tool_call_begin|>",
        syntax: Syntax::Headed {
            head: |text| {
                let id = text.label(&[ARGUMENTS])?;
                text.expect(ARGUMENTS)?;
                let name = id.strip_prefix("functions.").unwrap_or(id);
                Ok(Head {
                    name: name.split(':').next().unwrap_or(name).to_owned(),
                    id: Some(id.to_owned()),
                })
            },
            close: &["<|tool_call_end|>"],
        },
    }],
    ..PLAIN
};
