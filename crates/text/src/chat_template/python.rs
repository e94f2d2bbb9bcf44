//! Python features that templates use and minijinja lacks: `tojson` with the output of `json.dumps`, and more methods
//! of strings and mappings.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Maximum nesting of lists and mappings to write.
const MAX_DEPTH: usize = 128;

/// Formatting options of `json.dumps`.
struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// What limits the output of [`tojson`].
pub(super) struct JsonLimits<'m> {
    pub(super) max_bytes: usize,
    /// Characters that `ensure_ascii` treats as ASCII.
    pub(super) unescaped: &'m str,
}

/// The filter `tojson` as Hugging Face transformers defines it: `json.dumps` without `ensure_ascii`. Returns at most
/// `max_bytes`.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    options: &Kwargs,
    limits: JsonLimits<'_>,
) -> Result<Value, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(ensure_ascii) => ensure_ascii,
        None => options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
    };
    let indent = options
        .get::<Option<Value>>("indent")?
        .filter(|v| !v.is_none());
    let indent = indent.map(|v| indentation(&v)).transpose()?;
    let item_separator = if indent.is_some() { "," } else { ", " };
    let mut style = JsonStyle {
        ensure_ascii,
        indent,
        item_separator: item_separator.into(),
        key_separator: ": ".into(),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    if let Some(pair) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(pair)
            .map_err(|_| invalid("tojson takes a pair of separators"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    let mut writer = Writer {
        out: String::new(),
        limits,
    };
    writer.json(value, &style, 0)?;
    // As in transformers, a plain string, which `escape` escapes.
    Ok(writer.out.into())
}

/// Returns the indentation per level, given as a number of spaces or a text.
fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.into());
    }
    let spaces = usize::try_from(value.clone())?;
    if spaces > 100 {
        return Err(invalid("tojson indents by at most 100 spaces"));
    }
    Ok(" ".repeat(spaces))
}

/// Calls a method of a Python value: those of minijinja-contrib, and some more.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return match (value.kind(), name) {
            (ValueKind::Map, "copy") => from_args(args).map(|()| value.clone()),
            _ => pycompat::unknown_method_callback(state, value, name, args),
        };
    };
    Ok(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            match text.split_once(separator) {
                Some((before, after)) => tuple([before, separator, after]),
                None => tuple([text, "", ""]),
            }
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            match text.rsplit_once(separator) {
                Some((before, after)) => tuple([before, separator, after]),
                None => tuple(["", "", text]),
            }
        }
        "rsplit" => {
            let (separator, max): (Option<&str>, Option<i64>) = from_args(args)?;
            let n = max
                .and_then(|max| usize::try_from(max).ok())
                .map_or(usize::MAX, |max| max + 1);
            let mut parts: Vec<&str> = match separator {
                Some("") => return Err(invalid("rsplit needs a non-empty separator")),
                Some(separator) => text.rsplitn(n, separator).collect(),
                None => rsplit_blanks(text, n),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            zfill(text, width)?.into()
        }
        "index" => match pycompat::unknown_method_callback(state, value, "find", args)? {
            at if at.as_i64() == Some(-1) => return Err(invalid("substring not found")),
            at => at,
        },
        _ => return pycompat::unknown_method_callback(state, value, name, args),
    })
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from).to_vec()))
}

/// Splits at runs of white space from the right, into at most `n` parts.
fn rsplit_blanks(text: &str, n: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let start = rest
            .rfind(char::is_whitespace)
            .filter(|_| parts.len() + 1 < n);
        let Some(blank) = start else {
            parts.push(rest.trim_start());
            break;
        };
        let part = rest[blank..].trim_start();
        parts.push(part);
        rest = rest[..blank].trim_end();
    }
    parts
}

struct Writer<'m> {
    out: String,
    limits: JsonLimits<'m>,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) -> Result<(), Error> {
        if self.out.len() + text.len() > self.limits.max_bytes {
            return Err(invalid("a value is too long to be written"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn json(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => self.push("null"),
            ValueKind::Bool => self.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.push(&number(value)),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                self.json_string(text, style.ensure_ascii)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.json_items('[', ']', &items, style, depth, |w, item| {
                    w.json(item, style, depth + 1)
                })
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if style.sort_keys {
                    keys.sort();
                }
                self.json_items('{', '}', &keys, style, depth, |w, key| {
                    w.json_key(key, style)?;
                    w.push(&style.key_separator)?;
                    w.json(&value.get_item(key)?, style, depth + 1)
                })
            }
            kind => Err(invalid(format!(
                "a value of type {kind} cannot be written as JSON"
            ))),
        }
    }

    fn json_items(
        &mut self,
        open: char,
        close: char,
        items: &[Value],
        style: &JsonStyle,
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.push(open.encode_utf8(&mut [0; 4]))?;
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.push(&style.item_separator)?;
            }
            self.json_line(style, depth + 1)?;
            write(self, item)?;
        }
        if !items.is_empty() {
            self.json_line(style, depth)?;
        }
        self.push(close.encode_utf8(&mut [0; 4]))
    }

    fn json_line(&mut self, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        let Some(indent) = &style.indent else {
            return Ok(());
        };
        self.push("\n")?;
        (0..depth).try_for_each(|_| self.push(indent))
    }

    /// Writes a mapping key; JSON keys are strings.
    fn json_key(&mut self, key: &Value, style: &JsonStyle) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            return self.json_string(text, style.ensure_ascii);
        }
        self.push("\"")?;
        self.json(key, style, MAX_DEPTH)?;
        self.push("\"")
    }

    fn json_string(&mut self, text: &str, ensure_ascii: bool) -> Result<(), Error> {
        self.push("\"")?;
        let mut plain = 0;
        for (i, c) in text.char_indices() {
            let escaped = match c {
                '"' => "\\\"".into(),
                '\\' => "\\\\".into(),
                '\n' => "\\n".into(),
                '\r' => "\\r".into(),
                '\t' => "\\t".into(),
                '\u{8}' => "\\b".into(),
                '\u{c}' => "\\f".into(),
                '\0'..'\u{20}' => format!("\\u{:04x}", u32::from(c)),
                _ if ensure_ascii && !c.is_ascii() && !self.limits.unescaped.contains(c) => c
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .fold(String::new(), |mut out, unit| {
                        let _ = write!(out, "\\u{unit:04x}");
                        out
                    }),
                _ => continue,
            };
            self.push(&text[plain..i])?;
            self.push(&escaped)?;
            plain = i + c.len_utf8();
        }
        self.push(&text[plain..])?;
        self.push("\"")
    }
}

/// Returns `text` with zeros before its digits, `width` characters long.
fn zfill(text: &str, width: usize) -> Result<String, Error> {
    const MAX_WIDTH: usize = 1 << 20;
    if width > MAX_WIDTH {
        return Err(invalid("zfill writes at most 1048576 characters"));
    }
    let n_zeros = width.saturating_sub(text.chars().count());
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = &text[..text.len() - digits.len()];
    Ok(format!("{sign}{}{digits}", "0".repeat(n_zeros)))
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("a value is nested too deeply to be written"));
    }
    Ok(())
}

/// Returns the text of an integer, or of a float as Python's `json` writes it.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if float.is_nan() {
        return "NaN".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // Rust and Python both write the shortest text that parses to the same float, but Python writes exponents with a
    // sign and at least two digits.
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
