//! Tests of tokenizers and chat templates against reference data.

mod answer;
mod chat_template;
mod forged;
mod jinja;
mod options;
mod released;
mod token_kinds;
mod tokenizer;
mod tokenizer_golden;
mod tokenizer_hostile;
mod tokenizer_plamo;
mod tokenizer_tables;
