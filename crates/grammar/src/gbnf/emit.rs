//! Writes rules as Lark.

use std::fmt::Write as _;

use super::{Part, Rules};

/// Returns the grammar in Lark. Rule 0 is `start`.
pub(super) fn lark(rules: &Rules) -> String {
    let flat = rules.are_flat();
    let mut writer = Writer {
        flat: &flat,
        lark: String::new(),
        n_terminals: 0,
    };
    for (index, part) in rules.0.iter().enumerate() {
        let line = match flat[index] {
            true => format!("T{index}: {}", writer.flat_part(part, Place::Line)),
            false => format!("r{index}: {}", writer.part(part, Place::Line)),
        };
        writer.lark += &line;
        writer.lark.push('\n');
    }
    let root = match flat[0] {
        true => "T0",
        false => "r0",
    };
    format!("start: {root}\n{}", writer.lark)
}

struct Writer<'a> {
    flat: &'a [bool],
    /// The rules and terminals so far.
    lark: String,
    /// Terminals of runs so far.
    n_terminals: usize,
}

/// Where an expression stands.
#[derive(Clone, Copy)]
enum Place {
    /// Alone, or as an alternative.
    Line,
    /// Among others.
    Item,
}

impl Writer<'_> {
    fn is_flat(&self, part: &Part) -> bool {
        let mut is_flat = true;
        part.for_each_rule(&mut |rule| is_flat &= self.flat[rule]);
        is_flat
    }

    /// Returns a part as an expression of terminals.
    fn flat_part(&self, part: &Part, place: Place) -> String {
        match part {
            Part::Text(text) => literal(text),
            Part::Chars { is_negated, ranges } => {
                let mut class = String::from(if *is_negated { "/[^" } else { "/[" });
                for (first, last) in ranges {
                    let (first, last) = (u32::from(*first), u32::from(*last));
                    // Writing to a string does not fail.
                    let _ = write!(class, "\\x{{{first:x}}}-\\x{{{last:x}}}");
                }
                class + "]/"
            }
            Part::Any => "/(?s:.)/".into(),
            Part::Rule(rule) => format!("T{rule}"),
            Part::Sequence(parts) => {
                let parts = parts.iter().map(|part| self.flat_part(part, Place::Item));
                grouped(parts.collect(), " ", place)
            }
            Part::Either(parts) => {
                let parts = parts.iter().map(|part| self.flat_part(part, Place::Line));
                grouped(parts.collect(), " | ", place)
            }
            Part::Repeat { part, min, max } => {
                repeated(part, self.flat_part(part, Place::Item), (*min, *max))
            }
        }
    }

    /// Returns a part as an expression of rules. Each run of flat parts becomes a terminal.
    fn part(&mut self, part: &Part, place: Place) -> String {
        if self.is_flat(part) {
            return self.terminal(&[part]);
        }
        match part {
            Part::Sequence(parts) => {
                let mut written = Vec::new();
                let mut run: Vec<&Part> = Vec::new();
                for part in parts {
                    if self.is_flat(part) {
                        run.push(part);
                        continue;
                    }
                    if !run.is_empty() {
                        written.push(self.terminal(&run));
                        run.clear();
                    }
                    written.push(self.part(part, Place::Item));
                }
                if !run.is_empty() {
                    written.push(self.terminal(&run));
                }
                grouped(written, " ", place)
            }
            Part::Either(parts) => {
                let parts = parts.iter().map(|part| self.part(part, Place::Line));
                grouped(parts.collect(), " | ", place)
            }
            Part::Repeat { part, min, max } => {
                repeated(part, self.part(part, Place::Item), (*min, *max))
            }
            Part::Rule(rule) => format!("r{rule}"),
            Part::Text(_) | Part::Chars { .. } | Part::Any => {
                unreachable!("parts without rules are flat")
            }
        }
    }

    /// Returns the name of the terminal for a run of flat parts.
    fn terminal(&mut self, run: &[&Part]) -> String {
        if let [Part::Rule(rule)] = run {
            return format!("T{rule}");
        }
        let place = match run {
            [_] => Place::Line,
            _ => Place::Item,
        };
        let parts: Vec<String> = run.iter().map(|part| self.flat_part(part, place)).collect();
        let name = format!("X{}", self.n_terminals);
        self.n_terminals += 1;
        let _ = writeln!(self.lark, "{name}: {}", parts.join(" "));
        name
    }
}

/// Joins parts, in parentheses where other parts follow.
fn grouped(parts: Vec<String>, by: &str, place: Place) -> String {
    match (parts.is_empty(), place) {
        (true, _) => "\"\"".into(),
        (false, Place::Line) => parts.join(by),
        (false, Place::Item) => format!("({})", parts.join(by)),
    }
}

/// Returns `written`, the expression of `part`, repeated.
fn repeated(part: &Part, written: String, bounds: (u32, Option<u32>)) -> String {
    let written = match part {
        Part::Repeat { .. } => format!("({written})"),
        _ => written,
    };
    match bounds {
        (_, Some(0)) => "\"\"".into(),
        bounds => written + &operator(bounds),
    }
}

fn operator(bounds: (u32, Option<u32>)) -> String {
    match bounds {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// Returns a text as a literal of Lark, which has JSON's escapes.
pub(super) fn literal(text: &str) -> String {
    let mut literal = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(literal, "\\u{:04x}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal + "\""
}
