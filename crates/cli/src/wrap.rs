//! Breaks a stream of text into lines at words, for a terminal of any width.

use std::os::fd::AsFd;

use terminal_size::{Width, terminal_size_of};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Columns of a tab stop.
const TAB: usize = 8;

/// Returns the columns of a terminal; `None` if it is none or does not say.
pub fn terminal_width(of: &impl AsFd) -> Option<usize> {
    let (Width(columns), _) = terminal_size_of(of.as_fd())?;
    Some(usize::from(columns)).filter(|&columns| columns > 0)
}

/// The state of a line. A word is held back until it ends, as its last letters decide where it goes.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Columns of the line so far.
    column: usize,
    /// Spaces and tabs after it.
    blanks: String,
    word: String,
}

impl Wrap {
    /// Takes more text and returns what can be written. `width` is the terminal's, which may change at any time; without
    /// one, lines are not broken.
    pub fn push(&mut self, text: &str, width: Option<usize>) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\n' => {
                    self.place(&mut out, width);
                    out.push_str(&self.blanks);
                    self.blanks.clear();
                    out.push(c);
                    self.column = 0;
                }
                ' ' | '\t' => {
                    self.place(&mut out, width);
                    self.blanks.push(c);
                }
                // Lines may break at every wide character, as in Chinese and Japanese.
                c if c.width() == Some(2) => {
                    self.place(&mut out, width);
                    self.word.push(c);
                    self.place(&mut out, width);
                }
                // Joins the character before it.
                c if c.width() == Some(0) && self.word.is_empty() && self.blanks.is_empty() => {
                    out.push(c)
                }
                c => {
                    self.word.push(c);
                    // A word that fills a line has no better place.
                    if width.is_some_and(|width| self.word.width() >= width) {
                        self.place(&mut out, width);
                    }
                }
            }
        }
        out
    }

    /// Returns the rest.
    pub fn end(&mut self, width: Option<usize>) -> String {
        let mut out = String::new();
        self.place(&mut out, width);
        out.push_str(&std::mem::take(&mut self.blanks));
        out
    }

    /// Writes the word, on a new line if it does not fit.
    fn place(&mut self, out: &mut String, width: Option<usize>) {
        if self.word.is_empty() {
            return;
        }
        let after = self.blanks.chars().fold(self.column, |column, c| match c {
            '\t' => (column / TAB + 1) * TAB,
            _ => column + 1,
        });
        let word = self.word.width();
        match width {
            Some(width) if self.column > 0 && after + word > width => {
                out.push('\n');
                self.column = word;
            }
            _ => {
                out.push_str(&self.blanks);
                self.column = after + word;
            }
        }
        out.push_str(&self.word);
        self.blanks.clear();
        self.word.clear();
    }
}

/// Breaks one line at words. Further lines are indented by two columns more than the first.
pub fn hanging(line: &str, width: usize) -> String {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let mut wrap = Wrap::default();
    // The first line is narrower by the hanging indent, so that one width fits all.
    let width = width.saturating_sub(indent + 2).max(1);
    let broken = wrap.push(text, Some(width)) + &wrap.end(Some(width));
    let joint = format!("\n{}", " ".repeat(indent + 2));
    " ".repeat(indent) + &broken.replace('\n', &joint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wraps texts that come one by one, each with the width at that time.
    fn wrapped(texts: &[(&str, usize)]) -> String {
        let mut wrap = Wrap::default();
        let mut out = String::new();
        for (text, width) in texts {
            out.push_str(&wrap.push(text, Some(*width)));
        }
        out + &wrap.end(texts.last().map(|(_, width)| *width))
    }

    /// The expected lines are those of Python's `textwrap.wrap(text, width)`.
    #[test]
    fn breaks_at_words() {
        let text = "The quick brown fox jumps over the lazy dog.";
        let expected = "The quick\nbrown fox\njumps over\nthe lazy\ndog.";
        assert_eq!(wrapped(&[(text, 10)]), expected);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<(&str, usize)> = letters.iter().map(|c| (c.as_str(), 10)).collect();
        assert_eq!(wrapped(&pieces), expected);
        assert_eq!(wrapped(&[(text, 80)]), text);
        // A word of exactly the width.
        assert_eq!(wrapped(&[("a bcdefghijk l", 10)]), "a\nbcdefghijk\nl");
    }

    #[test]
    fn keeps_lines_and_indentation() {
        for text in ["a\n\n    b c\n", "\tx y\n", "end  \n", "  "] {
            assert_eq!(wrapped(&[(text, 20)]), text);
        }
        assert_eq!(wrapped(&[("\tabc def", 13)]), "\tabc\ndef");
    }

    #[test]
    fn counts_wide_characters_twice_and_marks_not() {
        assert_eq!(
            wrapped(&[("\u{6a21}\u{578b}\u{5f88}\u{5feb}", 5)]),
            "\u{6a21}\u{578b}\n\u{5f88}\u{5feb}"
        );
        // Two letters with combining accents take two columns.
        assert_eq!(
            wrapped(&[("e\u{301}e\u{301} ab", 5)]),
            "e\u{301}e\u{301} ab"
        );
    }

    #[test]
    fn follows_the_width_of_the_terminal() {
        assert_eq!(
            wrapped(&[("aaa bbb ", 7), ("ccc ddd ", 15), ("eee fff", 7)]),
            "aaa bbb ccc ddd\neee fff"
        );
        let mut wrap = Wrap::default();
        let text = "a ".repeat(100);
        assert_eq!(wrap.push(&text, None) + &wrap.end(None), text);
    }

    #[test]
    fn indents_further_lines() {
        assert_eq!(
            hanging("  note: operations are timed", 16),
            "  note:\n    operations\n    are timed"
        );
        assert_eq!(hanging("short", 16), "short");
    }
}
