//! LFM2 and 2.5: a list of calls in Python between marks, after the template of LiquidAI/LFM2.5-8B-A1B.

use super::python::calls;
use super::{Call, Format, PLAIN, Syntax, THINK};

const CLOSE: &str = "<|tool_call_end|>";

pub(super) static FORMAT: Format = Format {
    name: "lfm2",
    is_of: |template| {
        [
            "<|tool_call_start|>",
            "<|tool_list_start|>",
            "List of tools: [",
        ]
        .iter()
        .any(|mark| template.contains(mark))
    },
    thinking: Some(THINK),
    calls: &[
        Call {
            mark: "<|tool_call_start|>",
            syntax: Syntax::Whole(|text, tools| {
                let calls = calls(text, tools)?;
                text.space();
                text.expect(CLOSE)?;
                Ok(calls)
            }),
        },
        // Asked for JSON, it writes it between the same marks.
        Call {
            mark: "<|tool_call_start|>",
            syntax: Syntax::Objects { close: CLOSE },
        },
    ],
    ..PLAIN
};
