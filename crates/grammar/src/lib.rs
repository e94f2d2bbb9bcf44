//! Structured output: which tokens may come next, so that the text of an answer follows a JSON schema, a regular
//! expression or a grammar.
//!
//! A [`Vocabulary`] holds the bytes of a model's tokens. [`Grammar::compile`] turns a [`Source`] into a grammar over it,
//! and [`Grammar::start`] gives the state of one sequence, a [`Constraint`](rocmforge_plan::Constraint); a [`Preamble`]
//! lets other text come before. Parsing and masks are llguidance's; GBNF (`gbnf`) is translated to its Lark dialect.
//!
//! Invariant: sources and vocabularies are untrusted. Compiling and every mask end within limits on time, memory and
//! states (`limits`), with an error otherwise. Control tokens are never part of the text.
#![forbid(unsafe_code)]

mod error;
mod gbnf;
mod grammar;
mod limits;
mod preamble;
mod source;
mod state;
mod vocabulary;
mod watch;

pub use error::GrammarError;
pub use grammar::Grammar;
pub use preamble::{Marks, Preamble};
pub use source::Source;
pub use state::State;
pub use vocabulary::Vocabulary;
