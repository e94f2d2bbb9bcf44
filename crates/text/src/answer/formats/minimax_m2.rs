//! MiniMax M2: tags `invoke` and `parameter` with names, after the template of MiniMaxAI/MiniMax-M2 and its
//! docs/tool_calling_guide.md.

use super::invoke::{Tags, call};
use super::{Call, Format, PLAIN, Syntax, THINK};

const TAGS: Tags = Tags {
    close: "</invoke>",
    parameter: "<parameter name=\"",
    parameter_close: "</parameter>",
};

pub(super) static FORMAT: Format = Format {
    name: "minimax-m2",
    is_of: |template| template.contains("<minimax:tool_call>"),
    thinking: Some(THINK),
    hidden: &["<minimax:tool_call>", "</minimax:tool_call>"],
    calls: &[Call {
        mark: "<invoke name=\"",
        syntax: Syntax::Whole(|text, tools| Ok(vec![call(text, tools, &TAGS)?])),
    }],
    ..PLAIN
};
