//! Building blocks of all pages: escaping, the document with style and security policy, tables, tiles.
//!
//! A page is one file that loads nothing. Its content security policy forbids every source and lists the hashes of its
//! own scripts, so that a name from a model file could not run as a script even if an escape were missing. A new page
//! is a [`Document`]: markup made of these pieces, data for its scripts, and the scripts.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::numbers::NOT_AVAILABLE;

/// Style for light and dark themes.
const STYLE: &str = include_str!("assets/page.css");

/// Sorts tables and shows tooltips; later scripts use it as `page`.
const COMMON_SCRIPT: &str = include_str!("assets/common.js");

/// A page.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// Title as text.
    pub title: &'a str,
    /// Markup, already escaped.
    pub body: &'a str,
    /// Scripts in order of execution. They find the data as `page.data`.
    pub scripts: &'a [&'a str],
}

impl Document<'_> {
    /// Writes the whole file, with `data` in a block that browsers do not execute.
    ///
    /// # Errors
    /// If writing to `out` fails, or `data` cannot be serialized.
    pub fn write(&self, data: &impl Serialize, mut out: impl Write) -> io::Result<()> {
        let data = embedded_json(data)?;
        let scripts = || std::iter::once(COMMON_SCRIPT).chain(self.scripts.iter().copied());
        let mut policy =
            "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; script-src".to_owned();
        for script in scripts() {
            policy += &format!(" 'sha256-{}'", base64(&Sha256::digest(script)));
        }
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n\
             <script type=\"application/json\" id=\"data\">{data}</script>\n",
            Escaped(self.title),
            self.body,
        )?;
        for script in scripts() {
            writeln!(out, "<script>{script}</script>")?;
        }
        write!(out, "</body>\n</html>\n")
    }
}

/// Returns JSON that is safe inside a `script` element: it cannot end the element or start a comment.
fn embedded_json(data: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(data)?;
    let mut embedded = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // These characters occur only within strings.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}' => {
                embedded += &format!("\\u{:04x}", u32::from(c));
            }
            c => embedded.push(c),
        }
    }
    Ok(embedded)
}

/// Encodes base64 with padding, RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= group.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

/// Displays text escaped for elements and quoted attributes of HTML and XML.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\t' | '\n' => f.write_char(c)?,
                // XML cannot represent these, and parsers reject them.
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                // These reverse the direction of the following text.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_char('\u{fffd}')?,
                c if c.is_control() => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A table that the reader can sort by column.
#[derive(Debug, Clone)]
pub struct Table<'a> {
    /// Caption, also for screen readers.
    pub caption: &'a str,
    pub columns: Vec<Column<'a>>,
    rows: String,
}

/// A column of a [`Table`].
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    pub label: &'a str,
    /// Tooltip; empty if the label is enough.
    pub title: &'a str,
    pub align: Align,
}

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Start,
    /// For numbers.
    End,
}

/// A cell of a [`Table`].
#[derive(Debug, Clone)]
pub struct Cell {
    markup: String,
    /// Sort key; cells without one come last.
    key: Option<f64>,
}

impl Cell {
    /// Creates a text cell, sorted alphabetically.
    pub fn text(text: &str) -> Cell {
        Cell {
            markup: Escaped(text).to_string(),
            key: None,
        }
    }

    /// Creates a number cell formatted by `show`; n/a if missing.
    pub fn number(value: Option<f64>, show: impl Fn(f64) -> String) -> Cell {
        let value = value.filter(|x| x.is_finite());
        Cell {
            markup: value.map_or_else(
                || NOT_AVAILABLE.to_owned(),
                |x| Escaped(&show(x)).to_string(),
            ),
            key: value,
        }
    }

    /// Creates a cell of markup that the caller escaped, with its sort key.
    pub fn markup(markup: String, key: Option<f64>) -> Cell {
        Cell { markup, key }
    }
}

impl<'a> Table<'a> {
    pub fn new(caption: &'a str, columns: &[Column<'a>]) -> Table<'a> {
        Table {
            caption,
            columns: columns.to_vec(),
            rows: String::new(),
        }
    }

    /// Adds a row. The first cell is its header.
    pub fn row(&mut self, cells: &[Cell]) {
        self.rows += "<tr>";
        for (i, cell) in cells.iter().enumerate() {
            let align = match self.columns.get(i).map(|column| column.align) {
                Some(Align::End) => " class=\"num\"",
                _ => "",
            };
            let key = cell
                .key
                .map_or_else(String::new, |key| format!(" data-key=\"{key}\""));
            let markup = &cell.markup;
            self.rows += &match i {
                0 => format!("<th scope=\"row\"{align}{key}>{markup}</th>"),
                _ => format!("<td{align}{key}>{markup}</td>"),
            };
        }
        self.rows += "</tr>\n";
    }

    /// Returns the markup, in a box that scrolls on narrow screens.
    pub fn finish(self) -> String {
        let caption = Escaped(self.caption);
        let mut head = String::new();
        for column in &self.columns {
            let class = match column.align {
                Align::Start => "",
                Align::End => " class=\"num\"",
            };
            let title = match column.title {
                "" => String::new(),
                title => format!(" title=\"{}\"", Escaped(title)),
            };
            head += &format!(
                "<th scope=\"col\"{class}{title}>{}</th>",
                Escaped(column.label)
            );
        }
        format!(
            "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n\
             <table class=\"sortable\"><caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n\
             <tbody>\n{}</tbody></table>\n</div>\n",
            self.rows
        )
    }
}

/// Returns a tile: a large number with a label above and an explanation below, both text.
pub fn tile(label: &str, value: &str, meaning: &str, verdict: Verdict) -> String {
    let (class, sign) = match verdict {
        Verdict::None => ("", ""),
        Verdict::Good => (
            " good",
            "<span class=\"sign\" aria-hidden=\"true\">✓</span> ",
        ),
        Verdict::Bad => (
            " bad",
            "<span class=\"sign\" aria-hidden=\"true\">✗</span> ",
        ),
    };
    format!(
        "<div class=\"tile{class}\"><dt>{}</dt><dd><strong>{}</strong><span>{sign}{}</span></dd></div>\n",
        Escaped(label),
        Escaped(value),
        Escaped(meaning)
    )
}

/// How a number is rated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    None,
    Good,
    Bad,
}

/// Returns a section with a linkable heading; `body` is markup.
pub fn section(id: &str, heading: &str, body: &str) -> String {
    format!(
        "<section id=\"{id}\" aria-labelledby=\"{id}-heading\">\n<h2 id=\"{id}-heading\">{}</h2>\n{body}</section>\n",
        Escaped(heading)
    )
}

/// Returns a paragraph that explains why there is nothing to show.
pub fn not_available(reason: &str) -> String {
    format!(
        "<p class=\"missing\">{NOT_AVAILABLE}: {}</p>\n",
        Escaped(reason)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::time_ms;

    #[test]
    fn escapes_text() {
        for (text, want) in [
            (
                "a < b && c > 'd\"",
                "a &lt; b &amp;&amp; c &gt; &#39;d&quot;",
            ),
            ("</script><b>", "&lt;/script&gt;&lt;b&gt;"),
            (
                "tab\tline\nnul\0bell\u{7}\u{9b}\u{ffff}",
                "tab\tline\nnul\u{fffd}bell\u{fffd}\u{fffd}\u{fffd}",
            ),
            ("größer 模型", "größer 模型"),
            ("a\u{202e}b\u{2069}c", "a\u{fffd}b\u{fffd}c"),
        ] {
            assert_eq!(Escaped(text).to_string(), want);
        }
    }

    #[test]
    fn embedded_data_cannot_end_its_element() {
        let hostile = "</script><!--<script>&amp;\u{2028}\"\\";
        let json = embedded_json(&[hostile]).unwrap();
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&json).unwrap(),
            [hostile]
        );
    }

    #[test]
    fn base64_matches_the_rfc() {
        // RFC 4648, section 10.
        for (text, want) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), want);
        }
    }

    #[test]
    fn escapes_cells_and_sorts_by_number() {
        let column = |label, align| Column {
            label,
            title: "a \"title\"",
            align,
        };
        let mut table = Table::new(
            "a <caption>",
            &[column("n & m", Align::Start), column("t", Align::End)],
        );
        table.row(&[Cell::text("<i>"), Cell::number(Some(1.5), time_ms)]);
        table.row(&[Cell::text("x"), Cell::number(None, time_ms)]);
        let markup = table.finish();
        for part in [
            "<caption>a &lt;caption&gt;</caption>",
            "<th scope=\"col\" title=\"a &quot;title&quot;\">n &amp; m</th>",
            "<th scope=\"row\">&lt;i&gt;</th><td class=\"num\" data-key=\"1.5\">1.50\u{a0}ms</td>",
            "<td class=\"num\">n/a</td>",
        ] {
            assert!(markup.contains(part), "{part} in {markup}");
        }
    }
}
