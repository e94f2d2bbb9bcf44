//! Shows the reasoning before an answer of a given structure.

use std::io::{self, Write as _};
use std::sync::Arc;

use rocmforge::parts::Said;
use rocmforge_engine::Constraint;
use rocmforge_text::answer::Format;
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
    reader: rocmforge::parts::Reasoning,
    show: Show,
    text: String,
}

impl Reasoning {
    /// Returns a reader of the answer to `prompt`, if there is reasoning before it, or may be.
    pub fn before_answer(prompt: &str, format: Format, show: Show) -> Option<Reasoning> {
        Some(Reasoning {
            reader: rocmforge::parts::Reasoning::before_answer(prompt, format)?,
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
        self.reader.before(tokenizer, then)
    }

    /// Adds text of the model; returns the next part of the answer.
    pub fn push(&mut self, text: &str) -> String {
        let said = self.reader.push(text);
        self.take(said)
    }

    /// Ends the answer; returns the rest of it, and the reasoning.
    pub fn finish(mut self) -> (String, String) {
        let said = self.reader.finish();
        let rest = self.take(said);
        (rest, self.text)
    }

    fn take(&mut self, said: Said) -> String {
        if !said.reasoning.is_empty() {
            if self.show == Show::Stderr && !output::is_quiet() {
                // As with notes, failures of stderr are ignored.
                let _ = write!(io::stderr(), "{}", output::for_terminal(&said.reasoning));
            }
            self.text.push_str(&said.reasoning);
        }
        if !said.answer.is_empty() && self.show == Show::Stderr && !self.text.is_empty() {
            self.show = Show::Nowhere;
            output::note("");
        }
        said.answer
    }
}
