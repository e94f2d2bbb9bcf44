//! llama.cpp's notation for grammars, GBNF, translated to llguidance's dialect of Lark.
//!
//! A grammar in GBNF describes characters, while Lark reads terminals: longest matches of regular expressions. Rules
//! without recursion become terminals, and in the other rules each run of parts without recursion becomes one. Within a
//! terminal, all ways to match are tried.

mod emit;
mod parse;

use crate::error::GrammarError;
use crate::limits::MAX_TERMINAL_PARTS;

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    /// One character in the ranges, or not in them.
    Chars {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// A rule, by index.
    Rule(usize),
    Sequence(Vec<Part>),
    Either(Vec<Part>),
    /// `min` to `max` times; without `max`, any number of times.
    Repeat {
        part: Box<Part>,
        min: u32,
        max: Option<u32>,
    },
}

/// Rules by index; the first one is `root`.
#[derive(Debug)]
struct Rules(Vec<Part>);

/// Translates a grammar.
///
/// # Errors
/// The line of what is not GBNF.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    Ok(emit::lark(&parse::rules(text)?))
}

/// Returns a text as a literal of Lark.
pub(crate) fn literal(text: &str) -> String {
    emit::literal(text)
}

impl Part {
    /// Calls `found` for each rule in this part.
    fn for_each_rule(&self, found: &mut impl FnMut(usize)) {
        match self {
            Part::Rule(rule) => found(*rule),
            Part::Sequence(parts) | Part::Either(parts) => {
                parts.iter().for_each(|part| part.for_each_rule(found));
            }
            Part::Repeat { part, .. } => part.for_each_rule(found),
            Part::Text(_) | Part::Chars { .. } | Part::Any => {}
        }
    }
}

impl Part {
    /// Returns the number of parts when rules are written out; `sizes` has those of the rules.
    fn size(&self, sizes: &[usize]) -> usize {
        let sum = |parts: &[Part]| {
            let sizes = parts.iter().map(|part| part.size(sizes));
            sizes.fold(1, usize::saturating_add)
        };
        match self {
            Part::Text(text) => 1 + text.len(),
            Part::Chars { ranges, .. } => 1 + ranges.len(),
            Part::Any => 1,
            Part::Rule(rule) => sizes[*rule],
            Part::Sequence(parts) | Part::Either(parts) => sum(parts),
            // Counted, not written out.
            Part::Repeat { part, .. } => 1 + part.size(sizes),
        }
    }
}

impl Rules {
    /// Returns for each rule whether it becomes a terminal: neither it nor any rule that it uses is recursive, and it is
    /// not too large.
    fn are_flat(&self) -> Vec<bool> {
        let n = self.0.len();
        let mut used_by: Vec<Vec<usize>> = vec![Vec::new(); n];
        let mut n_open = vec![0; n];
        for (user, part) in self.0.iter().enumerate() {
            part.for_each_rule(&mut |used| {
                used_by[used].push(user);
                n_open[user] += 1;
            });
        }
        let mut flat = vec![false; n];
        let mut sizes = vec![0; n];
        let mut ready: Vec<usize> = (0..n).filter(|&rule| n_open[rule] == 0).collect();
        while let Some(rule) = ready.pop() {
            sizes[rule] = self.0[rule].size(&sizes);
            if sizes[rule] > MAX_TERMINAL_PARTS {
                continue;
            }
            flat[rule] = true;
            for &user in &used_by[rule] {
                n_open[user] -= 1;
                if n_open[user] == 0 {
                    ready.push(user);
                }
            }
        }
        flat
    }
}
