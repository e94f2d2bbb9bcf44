//! Reads GBNF.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::{Part, Rules};
use crate::error::GrammarError;

/// Groups in groups. Lark allows 30 levels.
const MAX_DEPTH: usize = 24;
/// Largest number of repetitions that is written out; llama.cpp allows 2,000.
const MAX_REPETITIONS: u32 = 100_000;

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
    depth: usize,
    /// Indices of rules, which may be used before they are defined.
    names: HashMap<String, usize>,
    /// The line of the first use of each rule.
    first_use: Vec<usize>,
    rules: Vec<Option<Part>>,
}

/// Whether a line may end.
#[derive(Clone, Copy, PartialEq)]
enum Lines {
    One,
    Many,
}

/// Reads the rules of a grammar.
pub(super) fn rules(text: &str) -> Result<Rules, GrammarError> {
    let mut parser = Parser {
        chars: text.chars().peekable(),
        line: 1,
        depth: 0,
        names: HashMap::new(),
        first_use: Vec::new(),
        rules: Vec::new(),
    };
    parser.rule_index("root");
    parser.skip(Lines::Many);
    while parser.chars.peek().is_some() {
        parser.rule()?;
        parser.skip(Lines::Many);
    }
    if parser.rules[0].is_none() {
        return Err(parser.error("the grammar has no rule `root`"));
    }
    let undefined = parser.rules.iter().position(Option::is_none);
    if let Some(rule) = undefined {
        let known = parser.names.iter().find(|(_, index)| **index == rule);
        let name = known.map_or("", |(name, _)| name.as_str());
        return Err(GrammarError::Gbnf {
            line: parser.first_use[rule],
            message: format!("the rule `{}` is not defined", rocmforge_gguf::shown(name)),
        });
    }
    Ok(Rules(parser.rules.into_iter().flatten().collect()))
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> GrammarError {
        GrammarError::Gbnf {
            line: self.line,
            message: message.into(),
        }
    }

    /// Returns the error for a character that does not fit.
    fn unexpected(&mut self, wanted: &str) -> GrammarError {
        match self.chars.peek().copied() {
            Some(c) => self.error(format!("found {c:?}, but wanted {wanted}")),
            None => self.error(format!("the grammar ends, but wanted {wanted}")),
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.chars.next();
        self.line += usize::from(c == Some('\n'));
        c
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.chars.peek() == Some(&wanted);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, wanted: char) -> Result<(), GrammarError> {
        match self.take(wanted) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{wanted}`"))),
        }
    }

    /// Skips spaces and comments.
    fn skip(&mut self, lines: Lines) {
        while let Some(&c) = self.chars.peek() {
            match c {
                '#' => while self.chars.next_if(|&c| c != '\n').is_some() {},
                '\n' if lines == Lines::One => return,
                ' ' | '\t' | '\r' | '\n' => drop(self.next()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let mut name = String::new();
        let is_part = |c: &char| c.is_ascii_alphanumeric() || "-_".contains(*c);
        while let Some(c) = self.chars.next_if(is_part) {
            name.push(c);
        }
        match name.is_empty() {
            true => Err(self.unexpected("the name of a rule")),
            false => Ok(name),
        }
    }

    fn rule_index(&mut self, name: &str) -> usize {
        if let Some(&index) = self.names.get(name) {
            return index;
        }
        let index = self.rules.len();
        self.names.insert(name.to_string(), index);
        self.first_use.push(self.line);
        self.rules.push(None);
        index
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let name = self.name()?;
        let index = self.rule_index(&name);
        if self.rules[index].is_some() {
            return Err(self.error(format!(
                "the rule `{}` is defined twice",
                rocmforge_gguf::shown(&name)
            )));
        }
        self.skip(Lines::One);
        for c in "::=".chars() {
            self.expect(c)?;
        }
        self.skip(Lines::Many);
        let part = self.either(Lines::One)?;
        self.rules[index] = Some(part);
        match self.chars.peek() {
            None | Some('\n') => Ok(()),
            Some(_) => Err(self.unexpected("a part of a rule or the end of the line")),
        }
    }

    /// Reads alternatives, separated by `|`.
    fn either(&mut self, lines: Lines) -> Result<Part, GrammarError> {
        let mut parts = vec![self.sequence(lines)?];
        while self.take('|') {
            self.skip(Lines::Many);
            parts.push(self.sequence(lines)?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Part::Either(parts),
        })
    }

    fn sequence(&mut self, lines: Lines) -> Result<Part, GrammarError> {
        let mut parts = Vec::new();
        loop {
            self.skip(lines);
            let part = match self.chars.peek() {
                None | Some('|' | ')' | '\n') => break,
                Some('"') => self.text()?,
                Some('[') => self.char_class()?,
                Some('(') => self.group()?,
                Some('.') => {
                    self.next();
                    Part::Any
                }
                Some('<' | '!') => {
                    return Err(self.error("tokens cannot be named here; write their text"));
                }
                Some(_) => {
                    let name = self.name()?;
                    Part::Rule(self.rule_index(&name))
                }
            };
            let part = self.repeated(part)?;
            parts.push(part);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Part::Sequence(parts),
        })
    }

    fn group(&mut self) -> Result<Part, GrammarError> {
        self.expect('(')?;
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!(
                "groups are nested more than {MAX_DEPTH} deep; give some of them rules of their own"
            )));
        }
        self.depth += 1;
        let part = self.either(Lines::Many)?;
        self.depth -= 1;
        self.expect(')')?;
        Ok(part)
    }

    /// Reads what says how often `part` may come.
    fn repeated(&mut self, mut part: Part) -> Result<Part, GrammarError> {
        let mut n_operators = 0;
        loop {
            // As in llama.cpp, spaces may precede it.
            self.skip(Lines::One);
            let (min, max) = match self.chars.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => (0, None),
                _ => return Ok(part),
            };
            let (min, max) = match self.next() {
                Some('{') => self.bounds()?,
                _ => (min, max),
            };
            n_operators += 1;
            if n_operators > MAX_DEPTH {
                return Err(self.error("too many repetitions of one part"));
            }
            let inner = Box::new(part);
            part = Part::Repeat {
                part: inner,
                min,
                max,
            };
        }
    }

    /// Reads `2}`, `2,}`, `,3}` or `2,3}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.skip(Lines::One);
        let min = self.number()?;
        self.skip(Lines::One);
        let (min, max) = match self.take(',') {
            true => {
                self.skip(Lines::One);
                (min.unwrap_or(0), self.number()?)
            }
            false => match min {
                Some(n) => (n, Some(n)),
                None => return Err(self.unexpected("a number of repetitions")),
            },
        };
        self.skip(Lines::One);
        self.expect('}')?;
        match max {
            Some(max) if max < min => {
                Err(self.error("the most repetitions are fewer than the least"))
            }
            _ => Ok((min, max)),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, GrammarError> {
        let mut number = None;
        while let Some(digit) = self.chars.peek().and_then(|c| c.to_digit(10)) {
            self.next();
            let next = number.unwrap_or(0) * 10 + digit;
            if next > MAX_REPETITIONS {
                return Err(self.error(format!(
                    "more than {MAX_REPETITIONS} repetitions are not supported"
                )));
            }
            number = Some(next);
        }
        Ok(number)
    }

    fn text(&mut self) -> Result<Part, GrammarError> {
        self.expect('"')?;
        let mut text = String::new();
        while !self.take('"') {
            text.push(self.char("`\"`")?);
        }
        Ok(Part::Text(text))
    }

    fn char_class(&mut self) -> Result<Part, GrammarError> {
        self.expect('[')?;
        let is_negated = self.take('^');
        let mut ranges = Vec::new();
        while !self.take(']') {
            let first = self.char("`]`")?;
            let mut last = first;
            if self.take('-') {
                if self.chars.peek() == Some(&']') {
                    ranges.push(('-', '-'));
                } else {
                    last = self.char("`]`")?;
                }
            }
            if last < first {
                return Err(self.error(format!("the range {first:?} to {last:?} is empty")));
            }
            ranges.push((first, last));
        }
        match (ranges.is_empty(), is_negated) {
            (true, true) => Ok(Part::Any),
            (true, false) => Err(self.error("a class of characters is empty")),
            (false, _) => Ok(Part::Chars { is_negated, ranges }),
        }
    }

    /// Reads a character, which may be escaped. `end`: what else was possible, for the message.
    fn char(&mut self, end: &str) -> Result<char, GrammarError> {
        let c = match self.next() {
            None => return Err(self.error(format!("the grammar ends before {end}"))),
            Some('\\') => self.next(),
            Some(c) => return Ok(c),
        };
        let n_digits = match c {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.error(
                "unknown escape; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\x41 \\u0041 \\U00000041",
            )),
        };
        let mut code = 0u32;
        for _ in 0..n_digits {
            let digit = self.chars.peek().and_then(|c| c.to_digit(16));
            let digit =
                digit.ok_or_else(|| self.error(format!("wanted {n_digits} hexadecimal digits")))?;
            self.next();
            code = code << 4 | digit;
        }
        char::from_u32(code).ok_or_else(|| self.error(format!("U+{code:04X} is no character")))
    }
}
