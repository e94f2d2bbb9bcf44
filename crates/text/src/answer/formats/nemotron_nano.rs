//! Nemotron Nano v2: a list of objects in `<TOOLCALL>`, after the template of nvidia/NVIDIA-Nemotron-Nano-9B-v2.

use super::{Call, Format, PLAIN, Syntax, THINK};

pub(super) static FORMAT: Format = Format {
    name: "nemotron-nano",
    is_of: |template| template.contains("<TOOLCALL>"),
    thinking: Some(THINK),
    calls: &[Call {
        mark: "<TOOLCALL>",
        syntax: Syntax::Objects {
            close: "</TOOLCALL>",
        },
    }],
    ..PLAIN
};
