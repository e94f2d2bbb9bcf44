//! Hunyuan 3: as GLM, with marks of its own, after the template of tencent/Hy3.

use super::glm::{Tags, call};
use super::{Call, Format, PLAIN, Place, Syntax, Thinking};

const TAGS: Tags = Tags {
    separator: "<tool_sep:opensource>",
    key: ["<arg_key:opensource>", "</arg_key:opensource>"],
    value: ["<arg_value:opensource>", "</arg_value:opensource>"],
    close: "</tool_call:opensource>",
};

pub(super) static FORMAT: Format = Format {
    name: "hy3",
    is_of: |template| template.contains("<tool_sep") && template.contains(":opensource"),
    thinking: Some(Thinking {
        open: "<think:opensource>",
        close: "</think:opensource>",
        also_ends: &[],
        place: Place::Begin,
    }),
    hidden: &["<tool_calls:opensource>", "</tool_calls:opensource>"],
    calls: &[Call {
        mark: "<tool_call:opensource>",
        syntax: Syntax::Whole(|text, tools| call(text, tools, &TAGS)),
    }],
    ..PLAIN
};
