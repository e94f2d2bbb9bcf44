//! Llama 3.1 to 4: an answer that is JSON with `name` and `parameters`, several with `;` between them, or a list of calls
//! in Python, each maybe after `<|python_tag|>`; after Meta's prompt formats (llama.com/docs, "JSON based tool calling",
//! "zero-shot function calling") and the template of meta-llama/Llama-3.2-3B-Instruct.

use super::python::calls;
use super::{Call, Format, PLAIN, Syntax};

pub(super) static FORMAT: Format = Format {
    name: "llama3",
    is_of: |template| template.contains(r#"Respond in the format {"name": function name"#),
    hidden: &["<|python_tag|>"],
    calls: &[
        Call {
            mark: "",
            syntax: Syntax::Objects { close: ";" },
        },
        Call {
            mark: "",
            syntax: Syntax::Whole(calls),
        },
    ],
    ..PLAIN
};
