//! A report as a Markdown table (GitHub's), for pull requests and issues.

use std::fmt::Write as _;

use super::compare::ComparisonResult;
use super::report::RegressionReport;

impl RegressionReport {
    pub fn to_markdown(&self) -> String {
        let mut text = format!(
            "## {} against {}\n\n**{}**\n\n",
            escape(&self.current),
            escape(&self.baseline),
            self.totals()
        );
        text.push_str("| benchmark | metric | then | now | change | result |\n");
        text.push_str("| --- | --- | ---: | ---: | ---: | --- |\n");
        for row in self.rows() {
            let mut cells = row.cells().map(|cell| escape(&cell));
            let is_grave = row.metric.map_or(row.of.result, |metric| metric.result)
                == ComparisonResult::Regression;
            if is_grave {
                cells[5] = format!("**{}**", cells[5]);
            }
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        for (i, line) in self.remarks().iter().enumerate() {
            let before = if i == 0 { "\n" } else { "" };
            let _ = writeln!(text, "{before}- {}", escape(line));
        }
        text
    }
}

/// `text` as itself, in a cell or a line: no markup, no tags, no line breaks.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '~' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => out.push(' '),
            c => out.push(c),
        }
    }
    // An address or a name after @ becomes a link or a message to somebody.
    out.replace("://", ":&#47;/").replace('@', "&#64;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{HOSTILE, report};
    use super::*;

    #[test]
    fn names_stay_in_their_cells() {
        let text = report().to_markdown();
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 2 + 5, "{text}");
        for line in &table {
            // Bars that end a cell are those without a backslash.
            let bars = line.replace("\\|", "").matches('|').count();
            assert_eq!(bars, 7, "{line}");
        }
        assert!(table[2].ends_with("| **REGRESSION** |"), "{text}");
        for part in ["<&", "<C", "@me", "https://", "\u{1b}"] {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn escapes_are_undone_by_a_reader() {
        let undone = escape(HOSTILE)
            .replace("&#47;", "/")
            .replace("&#64;", "@")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&")
            .replace('\\', "");
        assert_eq!(undone, HOSTILE.replace(['\n', '\u{1b}'], " "));
    }
}
