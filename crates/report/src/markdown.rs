//! Writes a comparison as a GitHub Markdown table, for pull requests and issues.

use std::fmt::Write as _;

use rocmforge_bench::baseline::{ComparisonResult, RegressionReport};

/// Formats the report as Markdown.
pub fn text(report: &RegressionReport) -> String {
    let mut text = format!(
        "## {} against {}\n\n**{}**\n\n",
        escape(&report.current),
        escape(&report.baseline),
        report.totals()
    );
    text.push_str("| benchmark | metric | baseline | now | change | result |\n");
    text.push_str("| --- | --- | ---: | ---: | ---: | --- |\n");
    for row in report.rows() {
        let mut cells = row.cells().map(|cell| escape(&cell));
        let is_grave = row.metric.map_or(row.of.result, |metric| metric.result)
            == ComparisonResult::Regression;
        if is_grave {
            cells[5] = format!("**{}**", cells[5]);
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    for (i, line) in report.remarks().iter().enumerate() {
        let before = if i == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{before}- {}", escape(line));
    }
    text
}

/// Escapes text for a cell or a line: no markup, tags or line breaks.
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
    // GitHub would turn addresses into links and @names into notifications.
    out.replace("://", ":&#47;/").replace('@', "&#64;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with every character that means something in Markdown or HTML.
    const NAME: &str = "a|b <&\"'> `x` [y](z) @me https://z\u{1b}[2J\n]]>-->";

    #[test]
    fn escapes_are_reversible() {
        let undone = escape(NAME)
            .replace("&#47;", "/")
            .replace("&#64;", "@")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&")
            .replace('\\', "");
        assert_eq!(undone, NAME.replace(['\n', '\u{1b}'], " "));
    }
}
