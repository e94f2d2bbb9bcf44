//! Encode options by name.

use rocmforge_text::tokenizer::EncodeOptions;

pub const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
pub const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};
pub const ADDED: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: false,
};
pub const PROMPT: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};
