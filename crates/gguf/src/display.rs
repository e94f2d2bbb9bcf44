//! Makes text from files (names, keys, templates) safe to print.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest name shown in a message, in characters.
const SHOWN_CHARS: usize = 120;
/// Longest foreign sentences shown in a message, in characters. Refusals of released templates have up to 300.
const MESSAGE_CHARS: usize = 1000;
/// Most names listed in a message.
const LISTED_NAMES: usize = 20;

/// Replaces every character that could move the cursor, break the line or
/// reorder the text (C0 and C1 controls, line and paragraph separators, bidi
/// controls) with its escape (`\n`, `\u{1b}`). Other text is unchanged and not
/// copied.
pub fn escape_control(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Escapes a name or a short text and cuts it to a length that fits a one-line message.
pub fn shown(text: &str) -> String {
    cut(text, SHOWN_CHARS)
}

/// Escapes sentences, such as what a template or a hub says, and cuts them to a length that a person reads.
pub fn shown_message(text: &str) -> String {
    cut(text, MESSAGE_CHARS)
}

fn cut(text: &str, n_chars: usize) -> String {
    match text.char_indices().nth(n_chars) {
        Some((end, _)) => format!("{}...", escape_control(&text[..end])),
        None => escape_control(text).into_owned(),
    }
}

/// Joins names, each as by [`shown`], and counts those beyond a number that a person reads.
pub fn shown_list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let mut listed: Vec<String> = names
        .by_ref()
        .take(LISTED_NAMES)
        .map(|name| shown(name.as_ref()))
        .collect();
    match names.count() {
        0 => {}
        n => listed.push(format!("and {n} more")),
    }
    listed.join(", ")
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters_only() {
        for (text, expected) in [
            ("blk.0.attn_q.weight", "blk.0.attn_q.weight"),
            ("naïve 模型 🙂", "naïve 模型 🙂"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\u{1b}[31m", "\\u{1b}[31m"),
            ("\u{9b}x\0", "\\u{9b}x\\u{0}"),
            ("a\u{202e}b\u{2028}", "a\\u{202e}b\\u{2028}"),
            ("it's", "it's"),
        ] {
            assert_eq!(escape_control(text), expected);
        }
        assert!(matches!(escape_control("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn truncates_long_names_and_lists() {
        let long = "é".repeat(2 << 20);
        assert_eq!(shown(&long).chars().count(), SHOWN_CHARS + 3);
        assert_eq!(shown_message(&long).chars().count(), MESSAGE_CHARS + 3);
        assert_eq!(shown_list(["a\n", "b"]), "a\\n, b");
        let names = (0..100_000).map(|i| i.to_string());
        let text = shown_list(names);
        assert!(
            text.starts_with("0, 1, ") && text.ends_with(", 19, and 99980 more"),
            "{text}"
        );
    }
}
