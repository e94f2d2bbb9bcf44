//! Cuts text into the pieces that byte-pair merging works on, by a row of [`super::pre_table`].
//!
//! The expressions use look-ahead only for white space: a run leaves its last character to the word after it. That part
//! is removed from the expression and handled in code ([`Blanks`]), which makes the rest regular. A deterministic
//! automaton then runs in linear time on any text and cannot fail, unlike a backtracking matcher with its limits.

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input, PatternID};

use super::pre_table::{PreTokenizer, Stage};

/// Memory per tokenizing thread for the states of the lazily built automaton; text in many scripts uses most of it.
const AUTOMATON_BYTES: usize = 8 << 20;

/// Ends of the table's expressions, and how each cuts a run of white space.
const TAILS: [(&str, Blanks); 2] = [
    (r"|\s+(?!\S)|\s+", Blanks::LeaveLast),
    (
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        Blanks::Halving,
    ),
];

/// How a run of white space is cut if other text follows. At the end of the text it is one piece.
#[derive(Clone, Copy)]
enum Blanks {
    /// All but the last character, then the last one.
    LeaveLast,
    /// As above, with the first part in pieces of 512, 256, ..., 4, 2, 1.
    Halving,
}

/// The compiled stages of a pre-tokenizer.
pub(super) struct Splitter {
    stages: Vec<Cut>,
}

enum Cut {
    /// An expression whose matches are pieces, as are the gaps between them.
    Matches(Regex),
    /// Likewise; the second pattern matches runs of white space.
    Words(Regex, Blanks),
    /// Runs to cut into groups of three.
    Threes(Regex),
    /// Matches to drop.
    Drop(Regex),
}

impl Splitter {
    pub(super) fn new(row: &PreTokenizer) -> Self {
        Splitter {
            stages: row.stages.iter().map(Cut::new).collect(),
        }
    }

    /// Calls `piece` with the pieces of `text` in order; joined, they are `text` without what is dropped.
    pub(super) fn split(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        run(&self.stages, text, piece);
    }
}

fn run(stages: &[Cut], text: &str, piece: &mut dyn FnMut(&str)) {
    match stages.split_first() {
        None => piece(text),
        Some((first, rest)) => first.split(text, &mut |part| {
            if !part.is_empty() {
                run(rest, part, piece);
            }
        }),
    }
}

impl Cut {
    fn new(stage: &Stage) -> Self {
        match *stage {
            Stage::Threes(run) => Cut::Threes(compile(&[run])),
            Stage::Drop(regex) => Cut::Drop(compile(&[regex])),
            Stage::Regex(regex) => {
                let tail = TAILS.iter().find_map(|&(tail, blanks)| {
                    regex.strip_suffix(tail).map(|words| (words, blanks))
                });
                match tail {
                    None => Cut::Matches(compile(&[regex])),
                    Some((words, blanks)) => Cut::Words(compile(&[words, r"\s+"]), blanks),
                }
            }
        }
    }

    fn split(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        match self {
            Cut::Matches(regex) => {
                let mut pos = 0;
                for m in regex.find_iter(text) {
                    piece(&text[pos..m.start()]);
                    piece(&text[m.range()]);
                    pos = m.end();
                }
                piece(&text[pos..]);
            }
            Cut::Drop(regex) => {
                let mut pos = 0;
                for m in regex.find_iter(text) {
                    piece(&text[pos..m.start()]);
                    pos = m.end();
                }
                piece(&text[pos..]);
            }
            Cut::Words(regex, blanks) => split_words(regex, *blanks, text, piece),
            Cut::Threes(runs) => {
                let mut pos = 0;
                for m in runs.find_iter(text) {
                    piece(&text[pos..m.start()]);
                    split_threes(&text[m.range()], piece);
                    pos = m.end();
                }
                piece(&text[pos..]);
            }
        }
    }
}

/// Cuts text by an expression whose pattern 1 matches runs of white space and pattern 0 everything else.
fn split_words(regex: &Regex, blanks: Blanks, text: &str, piece: &mut dyn FnMut(&str)) {
    const BLANKS: PatternID = PatternID::new_unchecked(1);
    let mut pos = 0;
    while pos < text.len() {
        // Nearly every piece directly follows the one before: an anchored search finds its end in one pass, while an
        // unanchored one needs a second pass backwards.
        let anchored = Input::new(text).range(pos..).anchored(Anchored::Yes);
        let (end, pattern) = match regex.search_half(&anchored) {
            Some(m) => (m.offset(), m.pattern()),
            None => {
                let Some(m) = regex.search(&Input::new(text).range(pos..)) else {
                    break;
                };
                piece(&text[pos..m.start()]);
                pos = m.start();
                (m.end(), m.pattern())
            }
        };
        let matched = &text[pos..end];
        pos = end;
        if pattern != BLANKS {
            piece(matched);
            continue;
        }
        let last = matched.char_indices().next_back().map_or(0, |(i, _)| i);
        let run = if last == 0 || end == text.len() {
            matched
        } else {
            &matched[..last]
        };
        pos -= matched.len() - run.len();
        match blanks {
            Blanks::LeaveLast => piece(run),
            Blanks::Halving => split_halving(run, piece),
        }
    }
    piece(&text[pos..]);
}

/// Cuts into pieces of 512, 256, ..., 4, 2, 1 characters, the largest that fit first.
fn split_halving(mut blanks: &str, piece: &mut dyn FnMut(&str)) {
    let mut left = blanks.chars().count();
    while left > 0 {
        let n = (1 << left.ilog2()).min(512);
        let end = blanks
            .char_indices()
            .nth(n)
            .map_or(blanks.len(), |(i, _)| i);
        piece(&blanks[..end]);
        blanks = &blanks[end..];
        left -= n;
    }
}

/// Cuts into pieces of three characters; the first one may be shorter.
fn split_threes(run: &str, piece: &mut dyn FnMut(&str)) {
    let mut left = run.chars().count();
    let mut start = 0;
    for (i, _) in run.char_indices() {
        if i > start && left.is_multiple_of(3) {
            piece(&run[start..i]);
            start = i;
        }
        left -= 1;
    }
    piece(&run[start..]);
}

fn compile(patterns: &[&str]) -> Regex {
    let config = Regex::config().hybrid_cache_capacity(AUTOMATON_BYTES);
    Regex::builder()
        .configure(config)
        .build_many(patterns)
        .expect("the expressions of the table compile; a test compiles each")
}

#[cfg(test)]
mod tests {
    use super::super::pre_table::TABLE;
    use super::*;

    /// Returns the expressions as they are in the table, including look-ahead, for a backtracking matcher.
    fn backtracking(stages: &[Stage]) -> Vec<fancy_regex::Regex> {
        let written = |stage: &Stage| match *stage {
            Stage::Regex(regex) => regex.to_owned(),
            Stage::Drop(regex) => format!("{regex}()"),
            Stage::Threes(r"\d+\b") => r"\d{1,3}(?=(?:\d{3})*\b)".to_owned(),
            Stage::Threes(run) => {
                let one = run.strip_suffix('+').unwrap();
                format!("{one}{{1,3}}(?=(?:{one}{{3}})*(?!{one}))")
            }
        };
        stages
            .iter()
            .map(|stage| fancy_regex::Regex::new(&written(stage)).unwrap())
            .collect()
    }

    fn expected(stages: &[fancy_regex::Regex], text: &str) -> Vec<String> {
        let Some((regex, rest)) = stages.split_first() else {
            return vec![text.into()];
        };
        let mut parts = Vec::new();
        let mut pos = 0;
        for m in regex.find_iter(text) {
            let m = m.unwrap();
            parts.push(&text[pos..m.start()]);
            // A group marks what is dropped.
            if regex.captures_len() == 1 {
                parts.push(m.as_str());
            }
            pos = m.end();
        }
        parts.push(&text[pos..]);
        parts.retain(|part| !part.is_empty());
        parts.iter().flat_map(|part| expected(rest, part)).collect()
    }

    fn pieces(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        splitter.split(text, &mut |piece| pieces.push(piece.to_owned()));
        pieces
    }

    /// One text for every kind of character that an expression of the table distinguishes.
    const PARTS: &[&str] = &[
        " ",
        "  ",
        "     ",
        "\t",
        "\n",
        "\r\n",
        "\n\n",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "\u{85}",
        "'s",
        "'S",
        "'LL",
        "'ve",
        "'",
        "I'm",
        "1",
        "12",
        "123",
        "1234567",
        "1234567a",
        "٣٤٥٦",
        "½Ⅷ",
        "3.14",
        "été",
        "e\u{301}",
        "\u{300}",
        "Ünï",
        "ABc",
        "aBC",
        "HTTPServer",
        "ǅ",
        "ʰ",
        "ſ",
        "你好",
        "日本語テスト",
        "한국어",
        "नमस्ते",
        "ไทย",
        "🚀",
        "\u{200b}",
        "\u{ad}",
        "==",
        "!?",
        "…",
        "/*",
        "//\n",
        "(x)",
        "_",
        "a_b",
        "$€",
        "|",
        "«»",
        "。",
        "（",
        "\0",
        "IMGIMGABCDEZ",
        "<sentinel:12>",
        "豈",
        "\u{378}",
    ];

    #[test]
    fn every_row_cuts_as_its_expressions() {
        let mut state = 88_172_645_463_325_252u64;
        let mut random = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % n
        };
        let mut texts = vec![
            String::new(),
            " ".repeat(1500),
            format!("{}x", " ".repeat(1031)),
        ];
        for _ in 0..300 {
            texts.push(
                (0..=random(12))
                    .map(|_| PARTS[random(PARTS.len())])
                    .collect(),
            );
        }
        for row in TABLE {
            let splitter = Splitter::new(row);
            let stages = backtracking(row.stages);
            for text in texts.iter().filter(|text| !text.is_empty()) {
                let name = row.names[0];
                assert_eq!(
                    pieces(&splitter, text),
                    expected(&stages, text),
                    "{name}: {text:?}"
                );
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|row| row.names).collect();
        names.sort();
        assert!(names.windows(2).all(|w| w[0] != w[1]));
    }
}
