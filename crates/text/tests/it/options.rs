//! Encode options by name.

use rocmforge_text::tokenizer::EncodeOptions;

pub(crate) const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
pub(crate) const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};
pub(crate) const ADDED: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: false,
};
pub(crate) const PROMPT: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};
