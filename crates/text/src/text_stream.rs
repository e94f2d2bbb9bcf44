//! Turns generated ids into text to show: whole characters only, and no part of a stop string.

use crate::tokenizer::{Detokenizer, TokenId, Tokenizer};

/// The text stream of one request.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stop: Vec<String>,
    /// Text that could be the beginning of a stop string.
    held: String,
}

/// The result of adding a token.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that no stop string can affect any more; may be empty.
    Text(String),
    /// The stop string with this index has appeared; `text` is the remaining text before it.
    Stopped { text: String, stop: usize },
}

impl TextStream {
    pub fn new(detokenizer: Detokenizer, stop: Vec<String>) -> TextStream {
        TextStream {
            detokenizer,
            stop,
            held: String::new(),
        }
    }

    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId) -> Piece {
        let text = self.detokenizer.push(tokenizer, id);
        self.take(&text)
    }

    /// Adds a token without looking for stop strings in its text.
    pub fn pass(&mut self, tokenizer: &Tokenizer, id: TokenId) -> String {
        let text = self.detokenizer.push(tokenizer, id);
        std::mem::take(&mut self.held) + &text
    }

    /// Ends the stream without a stop string; returns the text held back.
    pub fn finish(&mut self) -> String {
        let text = self.detokenizer.finish();
        match self.take(&text) {
            Piece::Stopped { text, .. } => text,
            Piece::Text(text) => text + &std::mem::take(&mut self.held),
        }
    }

    fn take(&mut self, text: &str) -> Piece {
        self.held.push_str(text);
        let stops = self.stop.iter().enumerate();
        let found = stops
            .filter(|(_, stop)| !stop.is_empty())
            .filter_map(|(i, stop)| Some((self.held.find(stop.as_str())?, i)))
            .min();
        if let Some((at, stop)) = found {
            self.held.truncate(at);
            let text = std::mem::take(&mut self.held);
            return Piece::Stopped { text, stop };
        }
        let certain = self.held.len()
            - self
                .stop
                .iter()
                .map(|stop| overlap(&self.held, stop))
                .max()
                .unwrap_or(0);
        let held = self.held.split_off(certain);
        Piece::Text(std::mem::replace(&mut self.held, held))
    }
}

/// Returns the length of the longest suffix of `text` that is a prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = stop.len().min(text.len());
    (1..=longest)
        .rev()
        .find(|&n| text.as_bytes()[text.len() - n..] == stop.as_bytes()[..n])
        // This never splits a character: a stop string starts with the first byte of one.
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `pieces` as text; returns the result of each, and the rest.
    fn run(stop: &[&str], pieces: &[&str]) -> (Vec<Piece>, String) {
        let mut stream = TextStream::new(
            Detokenizer::default(),
            stop.iter().map(|s| s.to_string()).collect(),
        );
        let certain = pieces.iter().map(|piece| stream.take(piece)).collect();
        (certain, stream.finish())
    }

    fn text(s: &str) -> Piece {
        Piece::Text(s.into())
    }

    #[test]
    fn never_shows_stop_strings() {
        let stopped = |text: &str, stop| Piece::Stopped {
            text: text.into(),
            stop,
        };
        /// Stop strings, pieces, the result of each piece, and the rest.
        type Case<'a> = (&'a [&'a str], &'a [&'a str], Vec<Piece>, &'a str);
        let cases: [Case<'_>; 6] = [
            (&[], &["ab", "c"], vec![text("ab"), text("c")], ""),
            (
                &["END"],
                &["a E", "N", "x"],
                vec![text("a "), text(""), text("ENx")],
                "",
            ),
            (
                &["END"],
                &["a E", "ND b"],
                vec![text("a "), stopped("", 0)],
                "",
            ),
            (&["END"], &["a E"], vec![text("a ")], "E"),
            (&["", "xyz", "b", "ab"], &["aab"], vec![stopped("a", 3)], ""),
            (
                &["é!"],
                &["caf", "é", "!"],
                vec![text("caf"), text(""), stopped("", 0)],
                "",
            ),
        ];
        for (stop, pieces, certain, end) in cases {
            assert_eq!(
                run(stop, pieces),
                (certain, end.to_string()),
                "{stop:?} {pieces:?}"
            );
        }
    }
}
