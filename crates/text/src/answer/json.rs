//! Reads JSON as it comes: where a value ends, and whether it still can be one.

/// Deeper values are no arguments.
const MAX_DEPTH: usize = 128;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before a value.
    Value,
    /// After `[`: a value or `]`.
    First,
    /// After `{`: a key or `}`.
    Key,
    /// After a comma of an object.
    NextKey,
    Colon,
    /// After a value inside another: a comma or the end.
    Next,
    String,
    Escape,
    /// In `\uHHHH`, with digits left.
    Hex(u8),
    /// In a number or a word of letters.
    Word,
    End,
}

/// What a piece of text made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it belongs to the value, which has not ended.
    More,
    /// The value ended after as many bytes.
    Done(usize),
    /// The byte at this place cannot continue the value.
    Bad(usize),
}

/// Reads one value.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    /// Open objects (`true`) and arrays.
    open: Vec<bool>,
    at: At,
    /// Whether the string is a key.
    is_key: bool,
    word: Vec<u8>,
}

impl Scanner {
    pub(super) fn new() -> Self {
        Scanner {
            open: Vec::new(),
            at: At::Value,
            is_key: false,
            word: Vec::new(),
        }
    }

    /// Reads on. A number at the top ends with the byte after it.
    pub(super) fn read(&mut self, text: &[u8]) -> Progress {
        for (i, &b) in text.iter().enumerate() {
            if self.at == At::Word && !is_of_word(b) {
                if !is_word(&self.word) {
                    return Progress::Bad(i);
                }
                self.end_value();
                if self.at == At::End {
                    return Progress::Done(i);
                }
            }
            if !self.step(b) {
                return Progress::Bad(i);
            }
            if self.at == At::End {
                return Progress::Done(i + 1);
            }
        }
        Progress::More
    }

    fn step(&mut self, b: u8) -> bool {
        let is_space = matches!(b, b' ' | b'\t' | b'\n' | b'\r');
        match (self.at, b) {
            (At::String, b'"') => match self.is_key {
                true => self.at = At::Colon,
                false => self.end_value(),
            },
            (At::String, b'\\') => self.at = At::Escape,
            // Models write line feeds into strings; readers decide what they make of it.
            (At::String, _) => {}
            (At::Escape, b'u') => self.at = At::Hex(4),
            (At::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at = At::String;
            }
            (At::Hex(left), b) if b.is_ascii_hexdigit() => {
                self.at = if left == 1 {
                    At::String
                } else {
                    At::Hex(left - 1)
                };
            }
            (At::Escape | At::Hex(_), _) => return false,
            (At::Word, b) => {
                self.word.push(b);
                return self.word.len() <= 64;
            }
            (_, _) if is_space => {}
            (At::Value | At::First, b'{') => return self.enter(true),
            (At::Value | At::First, b'[') => return self.enter(false),
            (At::Value | At::First, b'"') => {
                self.is_key = false;
                self.at = At::String;
            }
            (At::First, b']') | (At::Key, b'}') => self.leave(),
            (At::Value | At::First, b) if is_of_word(b) => {
                self.word.clear();
                self.word.push(b);
                self.at = At::Word;
            }
            (At::Key | At::NextKey, b'"') => {
                self.is_key = true;
                self.at = At::String;
            }
            (At::Colon, b':') => self.at = At::Value,
            (At::Next, b',') => {
                self.at = match self.open.last() {
                    Some(true) => At::NextKey,
                    _ => At::Value,
                };
            }
            (At::Next, b'}') if self.open.last() == Some(&true) => self.leave(),
            (At::Next, b']') if self.open.last() == Some(&false) => self.leave(),
            _ => return false,
        }
        true
    }

    fn enter(&mut self, is_object: bool) -> bool {
        self.open.push(is_object);
        self.at = if is_object { At::Key } else { At::First };
        self.open.len() <= MAX_DEPTH
    }

    fn leave(&mut self) {
        self.open.pop();
        self.end_value();
    }

    fn end_value(&mut self) {
        self.at = if self.open.is_empty() {
            At::End
        } else {
            At::Next
        };
    }
}

/// Reads on in a string, after its first quote: returns its text as far as it is certain, the bytes read, and whether the
/// string ended.
pub(super) fn unescape(text: &str) -> (String, usize, bool) {
    let mut out = String::new();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let len = rest.find(['"', '\\']).unwrap_or(rest.len());
        out.push_str(&rest[..len]);
        at += len;
        match &rest.as_bytes()[len..] {
            [] => return (out, at, false),
            [b'"', ..] => return (out, at + 1, true),
            _ => match escape(&rest[len..]) {
                Some((c, len)) => {
                    out.push(c);
                    at += len;
                }
                None => return (out, at, false),
            },
        }
    }
}

/// Reads an escape; returns its character and length, or `None` if more text is needed. What is no escape stands for
/// itself.
fn escape(text: &str) -> Option<(char, usize)> {
    let c = text.chars().nth(1)?;
    let meant = match c {
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => return unicode(text.as_bytes()),
        c => c,
    };
    Some((meant, 1 + c.len_utf8()))
}

/// As [`escape`], of `\uHHHH`, or of two that are one character.
fn unicode(text: &[u8]) -> Option<(char, usize)> {
    const UNKNOWN: char = char::REPLACEMENT_CHARACTER;
    let Some(first) = unit(text.get(2..6)?) else {
        return Some((UNKNOWN, 2));
    };
    if !(0xD800..0xDC00).contains(&first) {
        return Some((char::from_u32(first.into()).unwrap_or(UNKNOWN), 6));
    }
    // What follows, as far as it is there, has to begin the second one.
    let next = &text[6..text.len().min(8)];
    if !b"\\u".starts_with(next) {
        return Some((UNKNOWN, 6));
    }
    let second = unit(text.get(8..12)?).filter(|second| (0xDC00..0xE000).contains(second));
    let pair = second.map(|second| char::decode_utf16([first, second]).next());
    match pair {
        Some(Some(Ok(c))) => Some((c, 12)),
        _ => Some((UNKNOWN, 6)),
    }
}

/// Returns the value of four digits.
fn unit(digits: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

fn is_of_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.')
}

/// Returns whether a word is a number, `true`, `false` or `null`.
fn is_word(word: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(word).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_where_serde_json_ends() {
        let values = [
            "{}",
            "[]",
            r#"{"a": [1, -2.5e3, true, null], "b": {"c": "}\"\\\u00e9"}}"#,
            r#"[{"x": []}, "y", [[1]]]"#,
            r#""text""#,
        ];
        for value in values {
            assert!(serde_json::from_str::<serde_json::Value>(value).is_ok());
            let text = format!("  {value} tail");
            let mut whole = Scanner::new();
            assert_eq!(
                whole.read(text.as_bytes()),
                Progress::Done(2 + value.len()),
                "{value}"
            );
            let mut by_byte = Scanner::new();
            for (i, b) in text.bytes().enumerate().take(2 + value.len()) {
                let expected = match i + 1 == 2 + value.len() {
                    true => Progress::Done(1),
                    false => Progress::More,
                };
                assert_eq!(by_byte.read(&[b]), expected, "{value} at {i}");
            }
        }
    }

    /// However it is cut, a string has the text that serde_json reads.
    #[test]
    fn strings_have_the_text_of_serde_json() {
        for string in [
            r#""""#,
            r#""a\"b\\c\/d\b\f\n\r\té""#,
            r#""\u00e9\u20AC\ud83d\ude00 x""#,
        ] {
            let expected: String = serde_json::from_str(string).unwrap();
            let inner = &string[1..];
            assert_eq!(unescape(inner), (expected.clone(), inner.len(), true));
            for (cut, _) in inner.char_indices() {
                let (mut text, len, ended) = unescape(&inner[..cut]);
                assert!(!ended && expected.starts_with(&text));
                text += &unescape(&inner[len..]).0;
                assert_eq!(text, expected, "{string} at {cut}");
            }
        }
        // What serde_json refuses.
        for (text, read) in [
            (r#"\ud83d" "#, "\u{fffd}"),
            (r#"\ud83d\u0041" "#, "\u{fffd}A"),
            (r#"\ude00" "#, "\u{fffd}"),
            (r#"\u+123" "#, "\u{fffd}+123"),
            (r#"\q" "#, "q"),
        ] {
            assert_eq!(unescape(text).0, read, "{text}");
        }
    }

    #[test]
    fn refuses_what_serde_json_refuses() {
        for value in [
            "{a}",
            "{1:2}",
            "[,]",
            "[1,]",
            "{\"a\" 1}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[tru]",
            "[1 2]",
            "[}",
            "{]",
            "}",
            "[\"\\x\"]",
            "[\"\\u12g\"]",
            "[01]",
            "[--1]",
        ] {
            assert!(
                serde_json::from_str::<serde_json::Value>(value).is_err(),
                "{value}"
            );
            assert!(
                matches!(Scanner::new().read(value.as_bytes()), Progress::Bad(_)),
                "{value}"
            );
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        assert_eq!(
            Scanner::new().read(deep.as_bytes()),
            Progress::Bad(MAX_DEPTH)
        );
    }
}
