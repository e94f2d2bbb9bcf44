//! `rocmforge models --supported`: what this program reads, from the tables that it reads with.

use anyhow::Result;
use rocmforge_gguf::GgmlType;
use rocmforge_text::answer::Format;
use rocmforge_text::tokenizer::Tokenizer;
use serde::Serialize;

use crate::output::Out;

#[derive(Serialize)]
struct Supported {
    /// Values of `general.architecture`.
    architectures: Vec<&'static str>,
    /// Weight formats.
    formats: Vec<&'static str>,
    /// Values of `tokenizer.ggml.pre`.
    pre_tokenizers: Vec<&'static str>,
    /// Ways to write calls of tools.
    tool_formats: Vec<&'static str>,
}

pub fn print(json: bool) -> Result<()> {
    let supported = Supported {
        architectures: rocmforge_model::architectures().collect(),
        formats: GgmlType::COMPUTED.iter().map(|ty| ty.name()).collect(),
        pre_tokenizers: Tokenizer::pre_names().collect(),
        tool_formats: Format::names().collect(),
    };
    let mut out = Out::new();
    if json {
        out.json(&supported)?;
    } else {
        for (title, names) in [
            ("architectures", &supported.architectures),
            ("formats", &supported.formats),
            ("pre-tokenizers", &supported.pre_tokenizers),
            ("tool formats", &supported.tool_formats),
        ] {
            out.line(&format!("{title}: {}", names.join(", ")))?;
        }
    }
    out.finish()
}
