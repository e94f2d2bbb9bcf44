//! From generated ids to text that can be shown: whole characters only, and nothing of a stop string.

use crate::tokenizer::{Detokenizer, TokenId, Tokenizer};

/// Text of one request.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stop: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
}

/// What a token adds.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that is certain now; may be empty.
    Text(String),
    /// A stop string has appeared; this is the rest before it.
    Stopped(String),
}

impl TextStream {
    pub fn new(detokenizer: Detokenizer, stop: Vec<String>) -> TextStream {
        let stop = stop.into_iter().filter(|s| !s.is_empty()).collect();
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

    /// The text that was held back when generation ends otherwise.
    pub fn finish(&mut self) -> String {
        let text = self.detokenizer.finish();
        match self.take(&text) {
            Piece::Stopped(text) => text,
            Piece::Text(text) => text + &std::mem::take(&mut self.held),
        }
    }

    fn take(&mut self, text: &str) -> Piece {
        self.held.push_str(text);
        if let Some(at) = self
            .stop
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()))
            .min()
        {
            self.held.truncate(at);
            return Piece::Stopped(std::mem::take(&mut self.held));
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

/// Length of the longest end of `text` that is a start of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = stop.len().min(text.len());
    (1..=longest)
        .rev()
        .find(|&n| text.as_bytes()[text.len() - n..] == stop.as_bytes()[..n])
        // Bytes of a whole character at most: a stop string starts with a character's first byte.
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `pieces` as text; returns what was certain after each, and the end.
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
    fn stop_strings_never_show() {
        let stopped = |s: &str| Piece::Stopped(s.into());
        /// Stop strings, pieces, what is certain after each, and the end.
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
                vec![text("a "), stopped("")],
                "",
            ),
            (&["END"], &["a E"], vec![text("a ")], "E"),
            (&["xyz", "b"], &["aab"], vec![stopped("aa")], ""),
            (
                &["é!"],
                &["caf", "é", "!"],
                vec![text("caf"), text(""), stopped("")],
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
