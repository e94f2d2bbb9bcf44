//! Command R7B and Command A: a list of objects in `<|START_ACTION|>`, after the template of
//! CohereForAI/c4ai-command-r7b-12-2024.

use super::{Call, Format, PLAIN, Place, Syntax, Thinking};

pub(super) static FORMAT: Format = Format {
    name: "command-r7b",
    is_of: |template| template.contains("<|START_ACTION|>"),
    thinking: Some(Thinking {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        also_ends: &["<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"],
        place: Place::Anywhere,
    }),
    hidden: &[
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ],
    calls: &[Call {
        mark: "<|START_ACTION|>",
        syntax: Syntax::Objects {
            close: "<|END_ACTION|>",
        },
    }],
    ..PLAIN
};
