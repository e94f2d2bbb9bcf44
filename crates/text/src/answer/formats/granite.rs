//! Granite 3: a list after `<|tool_call|>` (3.2 and 3.3) or `<tool_call>` (3.1), after the template of
//! ibm-granite/granite-3.3-2b-instruct. Granite 4 writes as Hermes does.

use super::{Call, Format, PLAIN, Syntax, THINK};

pub(super) static FORMAT: Format = Format {
    name: "granite",
    is_of: |template| template.contains("<|tool_call|>") && template.contains("start_of_role"),
    thinking: Some(THINK),
    hidden: &["<response>", "</response>"],
    calls: &[
        Call {
            mark: "<|tool_call|>",
            syntax: Syntax::Objects { close: "" },
        },
        Call {
            mark: "<tool_call>",
            syntax: Syntax::Objects {
                close: "</tool_call>",
            },
        },
    ],
    ..PLAIN
};
