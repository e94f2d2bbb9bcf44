//! Mistral, after the tokenizers v3 to v13 of mistral-common: `[TOOL_CALLS]` with a list of objects (v3, v7:
//! Mistral-Nemo-Instruct-2407), with name, id and arguments (v11: Mistral-Small-3.2-24B-Instruct-2506), or with name and
//! arguments (v13: Devstral-Small-2507, Ministral-3-14B-Reasoning-2512).

use super::{Call, Format, Head, PLAIN, Place, Syntax, Thinking};

pub(super) static FORMAT: Format = Format {
    name: "mistral",
    is_of: |template| template.contains("[TOOL_CALLS]"),
    thinking: Some(Thinking {
        open: "[THINK]",
        close: "[/THINK]",
        also_ends: &[],
        place: Place::Begin,
    }),
    // The first syntax that reads the text counts.
    calls: &[
        Call {
            mark: "[TOOL_CALLS]",
            syntax: Syntax::Objects { close: "" },
        },
        Call {
            mark: "[TOOL_CALLS]",
            syntax: Syntax::Headed {
                head: |text| {
                    let name = text.label(&["[CALL_ID]", "[ARGS]", "{"])?.to_owned();
                    let mut id = None;
                    if text.peek()? == '[' && text.take("[CALL_ID]")? {
                        id = Some(text.label(&["[ARGS]"])?.to_owned());
                    }
                    if text.peek()? == '[' {
                        text.expect("[ARGS]")?;
                    }
                    Ok(Head { name, id })
                },
                close: &[],
            },
        },
    ],
    ..PLAIN
};
