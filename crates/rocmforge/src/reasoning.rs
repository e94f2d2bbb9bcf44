//! The reasoning before an answer of a given structure: it is free, and no part of the answer.

use std::sync::Arc;

use rocmforge_grammar::{Marks, Preamble};
use rocmforge_plan::Constraint;
use rocmforge_text::answer::{AnswerParser, Delta, Format, ReasoningMarks};
use rocmforge_text::tokenizer::Tokenizer;

/// Reads reasoning, and the answer after it.
pub struct Reasoning {
    marks: ReasoningMarks,
    parser: AnswerParser,
}

/// What a piece of text says.
#[derive(Debug, Default)]
pub struct Said {
    pub reasoning: String,
    pub answer: String,
}

impl Reasoning {
    /// Returns a reader of the answer to `prompt`, if there is reasoning before it, or may be.
    pub fn before_answer(prompt: &str, format: Format) -> Option<Reasoning> {
        Some(Reasoning {
            marks: format.reasoning_marks(prompt)?,
            parser: AnswerParser::new(format, prompt, &[]),
        })
    }

    /// Returns a constraint that begins after the reasoning.
    pub fn before(
        &self,
        tokenizer: &Arc<Tokenizer>,
        then: Box<dyn Constraint>,
    ) -> Box<dyn Constraint> {
        let marks = Marks {
            open: self.marks.open,
            ends: &self.marks.ends,
            never: &self.marks.breaks,
        };
        Preamble::new(tokenizer, marks).before(then)
    }

    /// Adds text of the model.
    pub fn push(&mut self, text: &str) -> Said {
        said(self.parser.push(text))
    }

    /// Ends the answer; returns the rest.
    pub fn finish(&mut self) -> Said {
        said(self.parser.finish())
    }
}

fn said(deltas: Vec<Delta>) -> Said {
    let mut said = Said::default();
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => said.reasoning.push_str(&text),
            Delta::Content(text) | Delta::Unfinished(text) => said.answer.push_str(&text),
            // Without tools there are no calls.
            Delta::Call(_) | Delta::CallEnd { .. } => {}
        }
    }
    said
}
