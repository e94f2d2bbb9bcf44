//! Tells which control tokens of a prompt the template wrote, and which stand in the conversation's own texts.
//!
//! The interpreter's strings do not remember where they come from. So a conversation that could forge control tokens is
//! rendered a second time, with each character at which a control token could begin or end replaced by a mark, a symbol
//! that occurs nowhere else. If both prompts are equal but for the marks, the marks are the characters that come from
//! the conversation, whatever the template did to its texts. The prompt is always the one of the first rendering.
//!
//! The two differ if the template looks for such characters in a message. Then fewer are replaced: not those in texts
//! that the template contains, such as `</think>`, at first only where they can be no part of a control token; at last
//! only those of whole control tokens. A control token that the template itself looks for cannot be replaced; it is
//! recognized if the prompt has no more of it than a rendering in which the conversation has none.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use super::error::TemplateError;
use super::literals::literals;
use super::render::Job;
use crate::tokenizer::{Edges, TokenId, Tokenizer};

/// Symbols of SignWriting: like the punctuation that they replace, they have no case and are no letters, and every
/// Python prints them as they are.
const MARKS: std::ops::RangeInclusive<char> = '\u{1D800}'..='\u{1D9FF}';

/// With more different control tokens in a conversation, those that the template looks for are not told apart.
const MAX_TEXTS: usize = 16;

/// The prompt of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Where characters begin that come from the conversation and are no first or last character of a control token.
    foreign: Vec<usize>,
}

/// Who wrote a part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Control tokens in it are parsed.
    Template,
    /// The user or a document: control tokens in it are text.
    Conversation,
}

impl Rendered {
    /// Joins parts of a prompt.
    pub fn of_parts<'t>(parts: impl IntoIterator<Item = (Origin, &'t str)>) -> Rendered {
        let (mut text, mut foreign) = (String::new(), Vec::new());
        for (origin, part) in parts {
            if origin == Origin::Conversation {
                let first = text.len();
                foreign.extend(part.char_indices().map(|(at, _)| first + at));
            }
            text.push_str(part);
        }
        Rendered { text, foreign }
    }

    /// Returns the text, as Jinja2 renders it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the tokens. Control tokens are those that the template wrote; the same texts in a message, a role, a
    /// tool call or a document are encoded as text. A control token that the template builds around a text of the
    /// conversation, such as `<|` + role + `|>`, is the template's. `tokenizer` is the one that the prompt was rendered
    /// for.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        tokenizer.encode_mixed(&self.text, &self.foreign)
    }
}

/// Which characters of a conversation's texts are replaced by marks.
enum Replace<'t> {
    /// All that can be an edge of a control token, also of one that the template puts together.
    All,
    /// As `All`, but texts that the template contains stay if they are not whole control tokens.
    AllButLiterals,
    /// Those of whole control tokens.
    Tokens,
    /// Those of these control tokens.
    Only(&'t BTreeSet<String>),
}

/// Finds out where the characters of `text`, the prompt of `job`, come from. `run` renders.
pub(super) fn trace(
    text: String,
    job: &Job<'_>,
    edges: &Edges,
    run: impl Fn(Job<'_>) -> Result<String, TemplateError>,
) -> Rendered {
    let mut used = BTreeSet::new();
    each_text(job, &mut |part| {
        used.extend(part.chars().filter(|&c| edges.contains(c)))
    });
    if used.is_empty() {
        let foreign = Vec::new();
        return Rendered { text, foreign };
    }
    let marks = marks(&used, &text, job);
    let tracer = Tracer {
        is_complete: marks.len() == used.len(),
        marks,
        literals: Literals::of(&job.source, edges),
        text: &text,
        job,
        edges,
    };
    let foreign = [Replace::All, Replace::AllButLiterals, Replace::Tokens]
        .iter()
        .find_map(|replace| tracer.positions(&tracer.render(replace, &run)?))
        .unwrap_or_else(|| tracer.count(&run));
    Rendered { text, foreign }
}

struct Tracer<'a> {
    text: &'a str,
    job: &'a Job<'a>,
    edges: &'a Edges,
    literals: Literals,
    /// The mark of each character.
    marks: BTreeMap<char, char>,
    /// Whether there were enough marks.
    is_complete: bool,
}

impl Tracer<'_> {
    /// Renders with marks. Returns `None` if the template then refuses the conversation, or marks are missing.
    fn render(
        &self,
        replace: &Replace<'_>,
        run: impl Fn(Job<'_>) -> Result<String, TemplateError>,
    ) -> Option<String> {
        if !self.is_complete {
            return None;
        }
        let replaced = |part: &str| self.replaced(part, replace);
        let job = self.job;
        let variables = job.variables.iter();
        run(Job {
            source: Cow::Borrowed(&job.source),
            bos_token: Cow::Borrowed(&job.bos_token),
            eos_token: Cow::Borrowed(&job.eos_token),
            messages: job.messages.iter().map(|v| map(v, &replaced)).collect(),
            tools: job.tools.iter().map(|v| map(v, &replaced)).collect(),
            add_generation_prompt: job.add_generation_prompt,
            // The names of variables are the template's.
            variables: Cow::Owned(
                variables
                    .map(|(k, v)| (k.clone(), map(v, &replaced)))
                    .collect(),
            ),
            clock: Cow::Borrowed(&job.clock),
            marks: self.marks.values().collect(),
        })
        .ok()
    }

    fn replaced(&self, part: &str, replace: &Replace<'_>) -> String {
        let is_edge = |c: char| self.edges.contains(c);
        if !part.contains(is_edge) {
            return part.into();
        }
        // The edges of whole control tokens.
        let mut of_tokens = BTreeSet::new();
        let complete = self.edges.each_in(part, |at, token| {
            let chosen = match replace {
                Replace::Only(tokens) => tokens.contains(token),
                Replace::All | Replace::AllButLiterals | Replace::Tokens => true,
            };
            if let Some((last, _)) = token.char_indices().next_back().filter(|_| chosen) {
                of_tokens.extend([at, at + last]);
            }
        });
        let exempt = match replace {
            Replace::All => self.literals.harmless.covered(part),
            Replace::AllButLiterals => self.literals.all.covered(part),
            Replace::Tokens | Replace::Only(_) => Vec::new(),
        };
        let is_replaced = |at: usize| match replace {
            Replace::All => !exempt[at],
            Replace::AllButLiterals => !exempt[at] || of_tokens.contains(&at) || !complete,
            Replace::Tokens | Replace::Only(_) => of_tokens.contains(&at) || !complete,
        };
        part.char_indices()
            .map(|(at, c)| match self.marks.get(&c) {
                Some(&mark) if is_replaced(at) => mark,
                _ => c,
            })
            .collect()
    }

    /// Returns where the marks stand, if `marked` is the prompt but for them.
    fn positions(&self, marked: &str) -> Option<Vec<usize>> {
        let originals: BTreeMap<char, char> = self.marks.iter().map(|(&c, &m)| (m, c)).collect();
        let mut positions = Vec::new();
        let mut chars = self.text.char_indices();
        for c in marked.chars() {
            let (at, expected) = chars.next()?;
            let original = originals.get(&c).copied();
            if original.unwrap_or(c) != expected {
                return None;
            }
            if original.is_some() {
                positions.push(at);
            }
        }
        chars.next().is_none().then_some(positions)
    }

    /// Returns the positions if the template looks for control tokens in the conversation.
    fn count(&self, run: impl Fn(Job<'_>) -> Result<String, TemplateError>) -> Vec<usize> {
        let mut tokens = BTreeSet::new();
        each_text(self.job, &mut |part| {
            self.edges.each_in(part, |_, token| {
                tokens.insert(token.to_owned());
            });
        });
        // Those that can be replaced without another result.
        let mut kept = BTreeSet::new();
        let mut foreign = Vec::new();
        for token in tokens.iter().take(MAX_TEXTS) {
            let mut more = kept.clone();
            more.insert(token.clone());
            let marked = self.render(&Replace::Only(&more), &run);
            if let Some(positions) = marked.and_then(|marked| self.positions(&marked)) {
                (kept, foreign) = (more, positions);
            }
        }
        let without = self.render(&Replace::Tokens, &run).unwrap_or_default();
        for token in tokens.difference(&kept) {
            let last = token.char_indices().next_back().map_or(0, |(at, _)| at);
            let found = self.text.match_indices(token.as_str());
            if found.clone().count() > without.matches(token.as_str()).count() {
                foreign.extend(found.flat_map(|(at, _)| [at, at + last]));
            }
        }
        foreign.sort_unstable();
        foreign.dedup();
        foreign
    }
}

/// Returns a mark for each of `chars` that occurs in no text.
fn marks(chars: &BTreeSet<char>, text: &str, job: &Job<'_>) -> BTreeMap<char, char> {
    let mut taken = BTreeSet::new();
    let mut take = |part: &str| taken.extend(part.chars().filter(|c| MARKS.contains(c)));
    take(text);
    take(&job.source);
    take(&job.bos_token);
    take(&job.eos_token);
    each_text(job, &mut take);
    let free = MARKS.filter(|mark| !taken.contains(mark));
    chars.iter().copied().zip(free).collect()
}

/// Calls `see` with every text of the conversation, mapping keys included.
fn each_text(job: &Job<'_>, see: &mut dyn FnMut(&str)) {
    let messages = job.messages.iter().chain(job.tools.iter());
    messages
        .chain(job.variables.values())
        .for_each(|value| each_text_in(value, see));
}

fn each_text_in(value: &Value, see: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_text_in(item, see)),
        Value::Object(pairs) => {
            for (key, value) in pairs {
                see(key);
                each_text_in(value, see);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn map(value: &Value, replaced: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => replaced(text).into(),
        Value::Array(items) => items.iter().map(|item| map(item, replaced)).collect(),
        Value::Object(pairs) => {
            let pair = |(key, value): (&String, &Value)| (replaced(key), map(value, replaced));
            pairs.iter().map(pair).collect::<Map<_, _>>().into()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// The texts in quotes of a template that contain characters at the edges of control tokens.
struct Literals {
    all: Finder,
    /// Those that can be no part of a control token.
    harmless: Finder,
}

impl Literals {
    fn of(source: &str, edges: &Edges) -> Self {
        let mut all = literals(source);
        all.retain(|literal| literal.contains(|c| edges.contains(c)));
        let is_harmless = |literal: &&String| {
            literal.char_indices().all(|(at, c)| {
                let (from, to) = (&literal[at..], &literal[..at + c.len_utf8()]);
                !edges.contains(c)
                    || !edges.can_begin(from.as_bytes()) && !edges.can_end(to.as_bytes())
            })
        };
        Literals {
            harmless: Finder::of(all.iter().filter(is_harmless)),
            all: Finder::of(all.iter()),
        }
    }
}

struct Finder(AhoCorasick);

impl Finder {
    fn of<'t>(texts: impl Iterator<Item = &'t String>) -> Self {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts);
        Finder(finder.expect("a template's literals fit the automaton"))
    }

    /// Returns for each byte of `part` whether it belongs to one of the texts.
    fn covered(&self, part: &str) -> Vec<bool> {
        let mut covered = vec![false; part.len()];
        for found in self.0.find_iter(part) {
            covered[found.range()].fill(true);
        }
        covered
    }
}
