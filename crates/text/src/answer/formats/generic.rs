//! For models whose template has no calls: one JSON object, with calls or with the text of the answer. A system prompt asks
//! for it, and a grammar holds the answer to it.

use super::{Call, Format, PLAIN, Syntax};

pub(super) static FORMAT: Format = Format {
    name: "generic",
    // No template asks for it.
    is_of: |_| false,
    calls: &[Call {
        mark: "{\"tool_calls\":",
        syntax: Syntax::Objects { close: "}" },
    }],
    quoted: Some("{\"response\":"),
    ..PLAIN
};
