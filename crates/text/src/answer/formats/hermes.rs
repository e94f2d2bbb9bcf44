//! Hermes 2 and 3, Qwen 2.5 and 3, and many others: JSON in `<tool_call>`, after the templates of
//! NousResearch/Hermes-3-Llama-3.1-8B and Qwen/Qwen3-0.6B.

use super::{Call, Format, PLAIN, Syntax, THINK};

pub(super) static FORMAT: Format = Format {
    name: "hermes",
    // MiniMax M3 writes tags between these marks.
    is_of: |template| template.contains("<tool_call>") && !template.contains("<invoke name="),
    thinking: Some(THINK),
    calls: &[Call {
        mark: "<tool_call>",
        syntax: Syntax::Objects {
            close: "</tool_call>",
        },
    }],
    ..PLAIN
};
