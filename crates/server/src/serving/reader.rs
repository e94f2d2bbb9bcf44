//! Reads an answer as it comes: reasoning, text, and calls of tools with their ids.

use rocmforge_engine::FinishReason;
use rocmforge_text::answer::{AnswerParser, Delta};

/// A part of an answer. Parts of one kind that follow each other belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Reasoning(String),
    Content(String),
    Call {
        index: usize,
        /// Id and name, with the first part.
        head: Option<(String, String)>,
        arguments: String,
    },
}

/// A whole answer.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) reasoning: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) calls: Vec<Call>,
}

impl Parts {
    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
                Piece::Content(text) => self.content.get_or_insert_default().push_str(&text),
                Piece::Call {
                    head, arguments, ..
                } => {
                    if let Some((id, name)) = head {
                        let arguments = String::new();
                        self.calls.push(Call {
                            id,
                            name,
                            arguments,
                        });
                    }
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&arguments);
                    }
                }
            }
        }
    }
}

/// A call of a tool.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}

/// How many calls an answer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    Any,
    /// The answer ends after the first one.
    One,
}

/// Reads one answer.
pub(crate) struct Reader {
    parser: AnswerParser,
    calls: Calls,
    n_complete: usize,
}

impl Reader {
    pub(crate) fn new(parser: AnswerParser, calls: Calls) -> Reader {
        Reader {
            parser,
            calls,
            n_complete: 0,
        }
    }

    /// Adds text; returns what is certain now.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        let deltas = self.parser.push(text);
        self.pieces(deltas)
    }

    /// Ends the answer; returns the rest.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let deltas = self.parser.finish();
        self.pieces(deltas)
    }

    /// Adds text; puts what is certain now to the parts before. Returns whether the answer needs no more tokens.
    pub(crate) fn gather(&mut self, text: &str, parts: &mut Parts) -> bool {
        let pieces = self.push(text);
        parts.add(pieces);
        self.is_over()
    }

    /// Ends the answer; puts the rest to the parts before.
    pub(crate) fn gather_rest(&mut self, parts: &mut Parts) {
        let pieces = self.finish();
        parts.add(pieces);
    }

    fn pieces(&mut self, deltas: Vec<Delta>) -> Vec<Piece> {
        // Calls after the only one are left out.
        let is_late = |index: usize| self.calls == Calls::One && index > 0;
        let mut pieces = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => pieces.push(Piece::Reasoning(text)),
                Delta::Content(text) | Delta::Unfinished(text) => pieces.push(Piece::Content(text)),
                Delta::Call(call) if !is_late(call.index) => {
                    let random = || format!("call_{:08x}", rocmforge::parts::random_seed());
                    let head = call.name.map(|name| (call.id.unwrap_or_else(random), name));
                    pieces.push(Piece::Call {
                        index: call.index,
                        head,
                        arguments: call.arguments,
                    });
                }
                Delta::CallEnd { index, complete } if !is_late(index) => {
                    self.n_complete += usize::from(complete);
                }
                Delta::Call(_) | Delta::CallEnd { .. } => {}
            }
        }
        pieces
    }

    /// Whether the answer needs no more tokens.
    pub(crate) fn is_over(&self) -> bool {
        self.calls == Calls::One && self.has_calls()
    }

    /// Whether the answer has called a tool.
    pub(crate) fn has_calls(&self) -> bool {
        self.n_complete > 0
    }

    /// Whether an answer that ended so is to be continued with the results of tools.
    pub(crate) fn waits_for_tools(&self, reason: Option<FinishReason>) -> bool {
        let was_cut = matches!(
            reason,
            Some(FinishReason::Length | FinishReason::Context | FinishReason::Deadline)
        );
        self.has_calls() && !was_cut
    }
}
