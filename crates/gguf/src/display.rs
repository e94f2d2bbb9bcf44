//! Makes text from files (names, keys, templates) safe to print.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest name shown in an error message, in characters.
const SHOWN_CHARS: usize = 120;

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

/// `text` escaped and cut to a length that fits a one-line message.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", escape_control(&text[..end])),
        None => escape_control(text).into_owned(),
    }
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
    fn truncates_long_names() {
        let text = shown(&"é".repeat(5000));
        assert_eq!(text.chars().count(), SHOWN_CHARS + 3);
    }
}
