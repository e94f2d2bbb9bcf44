//! Structured output: what `generate` makes an answer follow.

use std::sync::Arc;

use anyhow::Result;
use rocmforge_engine::Constraint;
use rocmforge_grammar::{Grammar, Source, Vocabulary};
use rocmforge_text::tokenizer::Tokenizer;

use crate::args::StructureArgs;
use crate::input::read_text;

/// Reads what the answer must be; `None` if anything is fine.
pub fn read(args: &StructureArgs) -> Result<Option<Source>> {
    let source = match args {
        StructureArgs {
            json_schema: Some(path),
            ..
        } => Source::JsonSchema(read_text(path)?),
        StructureArgs {
            grammar: Some(path),
            ..
        } => Source::from_grammar_file(&path.to_string_lossy(), read_text(path)?),
        StructureArgs {
            regex: Some(pattern),
            ..
        } => Source::Regex(pattern.clone()),
        StructureArgs {
            json_object: true, ..
        } => Source::JsonObject,
        StructureArgs { choice, .. } if !choice.is_empty() => Source::Choice(choice.clone()),
        _ => return Ok(None),
    };
    Ok(Some(source))
}

/// Compiles `source` for the tokens of a model.
pub fn constraint(source: &Source, tokenizer: &Arc<Tokenizer>) -> Result<Box<dyn Constraint>> {
    let vocabulary = Vocabulary::new(tokenizer)?;
    let grammar = Grammar::compile(&vocabulary, source)?;
    Ok(Box::new(grammar.start()))
}
