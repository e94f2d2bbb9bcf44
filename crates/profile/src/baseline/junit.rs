//! A report as JUnit XML, as the test tabs of CI systems read it: a test case for each judged metric. A regression is a
//! failure, other hardware an error.

use std::fmt::Write as _;

use super::compare::ComparisonResult;
use super::report::{RegressionReport, change, method, number, result};
use crate::clock;

impl RegressionReport {
    pub fn to_junit(&self) -> String {
        let n = self.rows().count();
        let n_of = |wanted| {
            let results = self
                .rows()
                .map(|row| row.metric.map_or(row.of.result, |m| m.result));
            results.filter(|result| *result == wanted).count()
        };
        let failures = n_of(ComparisonResult::Regression);
        let errors = n_of(ComparisonResult::HardwareMismatch);
        let unmeasured = self.missing.len() + self.added.len();
        let incomparable = self.rows().filter(|row| row.metric.is_none()).count() - errors;
        let counts = format!(
            "tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{}\" time=\"0\"",
            n + unmeasured,
            incomparable + unmeasured
        );
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let name = escape(&format!("{} against {}", self.current, self.baseline));
        let now = clock::rfc_3339(clock::unix_now());
        let _ = writeln!(text, "<testsuites name=\"{name}\" {counts}>");
        let _ = writeln!(
            text,
            "  <testsuite name=\"{name}\" timestamp=\"{}\" {counts}>",
            now.trim_end_matches('Z')
        );
        for row in self.rows() {
            let of = escape(&row.of.name);
            let name = row.metric.map_or("hardware", |metric| &metric.metric);
            let _ = write!(
                text,
                "    <testcase classname=\"{of}\" name=\"{}\" time=\"0\">",
                escape(name)
            );
            match (row.metric, row.of.result) {
                (Some(metric), _) => {
                    let facts = format!(
                        "{} then, {} now, {}; threshold {:.1} %; by {}",
                        number(metric.baseline),
                        number(metric.current),
                        change(metric),
                        100.0 * metric.threshold,
                        method(metric.method)
                    );
                    let element = match metric.result {
                        ComparisonResult::Regression => "failure",
                        _ => "system-out",
                    };
                    let message = match element {
                        "failure" => format!(
                            " message=\"{}\" type=\"regression\"",
                            escape(&change(metric))
                        ),
                        _ => String::new(),
                    };
                    let says = escape(&format!("{}: {facts}", result(metric)));
                    let _ = write!(text, "<{element}{message}>{says}</{element}>");
                }
                (None, ComparisonResult::HardwareMismatch) => {
                    let facts: Vec<String> =
                        row.of.hardware.iter().map(ToString::to_string).collect();
                    let facts = escape(&facts.join("; "));
                    let _ = write!(
                        text,
                        "<error message=\"{facts}\" type=\"hardware_mismatch\">{facts}</error>"
                    );
                }
                (None, _) => text.push_str("<skipped message=\"no metric in common\"/>"),
            }
            text.push_str("</testcase>\n");
        }
        for (names, why) in [
            (&self.missing, "not measured now"),
            (&self.added, "not in the baseline"),
        ] {
            for name in names {
                let name = escape(name);
                let _ = writeln!(
                    text,
                    "    <testcase classname=\"{name}\" name=\"{name}\" time=\"0\"><skipped message=\"{why}\"/></testcase>"
                );
            }
        }
        text.push_str("  </testsuite>\n</testsuites>\n");
        text
    }
}

/// `text` for XML 1.0, in an element or an attribute. Characters that XML cannot have at all become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // In an attribute a parser makes spaces of them.
            '\t' | '\n' | '\r' => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use quick_xml::Reader;
    use quick_xml::events::{BytesStart, Event};

    use super::super::report::tests::{HOSTILE, report};
    use super::*;

    fn attribute(element: &BytesStart<'_>, name: &str) -> String {
        let found = element.try_get_attribute(name).unwrap();
        let found = found.unwrap_or_else(|| panic!("{name} in {element:?}"));
        found.unescape_value().unwrap().into_owned()
    }

    #[test]
    fn a_parser_finds_every_case() {
        let text = report().to_junit();
        let mut reader = Reader::from_str(&text);
        reader.config_mut().check_end_names = true;
        let mut cases = Vec::new();
        let mut children = Vec::new();
        let mut counts = Vec::new();
        loop {
            match reader.read_event().unwrap() {
                Event::Start(element) | Event::Empty(element) => {
                    for attribute in element.attributes() {
                        attribute.unwrap().unescape_value().unwrap();
                    }
                    match element.name().as_ref() {
                        b"testsuites" | b"testsuite" => counts.push(
                            ["tests", "failures", "errors", "skipped"]
                                .map(|name| attribute(&element, name)),
                        ),
                        b"testcase" => cases.push((
                            attribute(&element, "classname"),
                            attribute(&element, "name"),
                        )),
                        other => children.push(String::from_utf8(other.to_vec()).unwrap()),
                    }
                }
                Event::Text(text) => {
                    text.decode().unwrap();
                }
                Event::Eof => break,
                _ => {}
            }
        }
        let counted = ["7", "1", "1", "2"].map(String::from);
        assert_eq!(counts, [counted.clone(), counted]);
        let names: Vec<(&str, &str)> = cases
            .iter()
            .map(|(class, name)| (class.as_str(), name.as_str()))
            .collect();
        let hostile = HOSTILE.replace('\u{1b}', "\u{fffd}");
        assert_eq!(
            names,
            [
                (hostile.as_str(), "p50_ms"),
                ("quick", "p50_ms"),
                ("same", "p50_ms"),
                ("noisy", "p50_ms"),
                ("foreign", "hardware"),
                ("gone", "gone"),
                ("new", "new"),
            ]
        );
        assert_eq!(
            children,
            [
                "failure",
                "system-out",
                "system-out",
                "system-out",
                "error",
                "skipped",
                "skipped"
            ]
        );
    }

    #[test]
    fn text_without_a_form_in_xml_is_replaced() {
        assert_eq!(
            escape("a\u{0}\u{8}\u{ffff}b\n<"),
            "a\u{fffd}\u{fffd}\u{fffd}b&#10;&lt;"
        );
    }
}
