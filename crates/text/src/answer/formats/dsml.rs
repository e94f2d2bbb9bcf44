//! DeepSeek V3.2 and V4: tags `invoke` and `parameter` with names, each with a mark of its own, and whether a value is a
//! string. After the templates of deepseek-ai/DeepSeek-V3.2 and deepseek-ai/DeepSeek-V4 that llama.cpp ships.

use super::invoke::{Tags, call};
use super::{Call, Format, PLAIN, Syntax, THINK};

const TAGS: Tags = Tags {
    close: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=\"",
    parameter_close: "</｜DSML｜parameter>",
};

pub(super) static FORMAT: Format = Format {
    name: "dsml",
    is_of: |template| template.contains("｜DSML｜"),
    thinking: Some(THINK),
    hidden: &[
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
    ],
    calls: &[Call {
        mark: "<｜DSML｜invoke name=\"",
        syntax: Syntax::Whole(|text, tools| Ok(vec![call(text, tools, &TAGS)?])),
    }],
    ..PLAIN
};
