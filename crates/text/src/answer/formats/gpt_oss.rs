//! gpt-oss: messages with a channel and a recipient, after <https://cookbook.openai.com/articles/openai-harmony>.
//! Read by [`crate::answer::harmony`].

use super::{Format, PLAIN};

pub(super) static FORMAT: Format = Format {
    name: "gpt-oss",
    is_of: |template| template.contains("<|channel|>") && template.contains("<|message|>"),
    is_harmony: true,
    ..PLAIN
};
