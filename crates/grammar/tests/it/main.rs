//! Grammars over the vocabularies of forge-mini and of released models.

mod common;
mod gbnf;
mod hostile;
mod json;
mod preamble;
mod tokens;
mod walks;
