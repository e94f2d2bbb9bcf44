//! The reasoning before an answer of a given structure: it is free, and no part of the answer.

use std::io::{self, Write as _};
use std::sync::Arc;

use rocmforge_engine::Constraint;
use rocmforge_grammar::Preamble;
use rocmforge_text::answer::{AnswerParser, Delta, Format, OpenReasoning};
use rocmforge_text::tokenizer::Tokenizer;

use crate::output;

/// Where reasoning is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    Stderr,
    Nowhere,
}

/// Reads reasoning, and what follows it.
pub struct Reasoning {
    marks: OpenReasoning,
    parser: AnswerParser,
    show: Show,
    text: String,
}

impl Reasoning {
    /// Returns a reader of the answer to `prompt`, if the prompt has opened reasoning.
    pub fn opened_by(prompt: &str, format: Format, show: Show) -> Option<Reasoning> {
        Some(Reasoning {
            marks: format.open_reasoning(prompt)?,
            parser: AnswerParser::new(format, prompt, &[]),
            show,
            text: String::new(),
        })
    }

    /// Returns a constraint that begins after the reasoning.
    pub fn before(
        &self,
        tokenizer: &Arc<Tokenizer>,
        then: Box<dyn Constraint>,
    ) -> Box<dyn Constraint> {
        Preamble::new(tokenizer, &self.marks.ends, &self.marks.breaks).before(then)
    }

    /// Adds text of the model; returns the next part of the answer.
    pub fn push(&mut self, text: &str) -> String {
        let deltas = self.parser.push(text);
        self.take(deltas)
    }

    /// Ends the answer; returns the rest of it, and the reasoning.
    pub fn finish(mut self) -> (String, String) {
        let deltas = self.parser.finish();
        let rest = self.take(deltas);
        (rest, self.text)
    }

    fn take(&mut self, deltas: Vec<Delta>) -> String {
        let mut answer = String::new();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    if self.show == Show::Stderr && !output::is_quiet() {
                        // As with notes, failures of stderr are ignored.
                        let _ = write!(io::stderr(), "{}", output::for_terminal(&text));
                    }
                    self.text.push_str(&text);
                }
                Delta::Content(text) | Delta::Unfinished(text) => {
                    if answer.is_empty() && self.show == Show::Stderr && !self.text.is_empty() {
                        self.show = Show::Nowhere;
                        output::note("");
                    }
                    answer.push_str(&text);
                }
                // Without tools there are no calls.
                Delta::Call(_) | Delta::CallEnd { .. } => {}
            }
        }
        answer
    }
}
