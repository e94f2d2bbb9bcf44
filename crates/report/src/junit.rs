//! Writes a comparison as JUnit XML for the test tabs of CI systems: a test case per compared metric. A regression is a
//! failure, other hardware an error.

use std::fmt::Write as _;

use rocmforge_bench::baseline::{ComparisonResult, RegressionReport, four_digits};
use rocmforge_profile::clock;

/// Formats the report as JUnit XML.
pub fn text(report: &RegressionReport) -> String {
    let n = report.rows().count();
    let n_of = |wanted| {
        let results = report
            .rows()
            .map(|row| row.metric.map_or(row.of.result, |m| m.result));
        results.filter(|result| *result == wanted).count()
    };
    let failures = n_of(ComparisonResult::Regression);
    let errors = n_of(ComparisonResult::HardwareMismatch);
    let unmeasured = report.missing.len() + report.added.len();
    let incomparable = report.rows().filter(|row| row.metric.is_none()).count() - errors;
    let counts = format!(
        "tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{}\" time=\"0\"",
        n + unmeasured,
        incomparable + unmeasured
    );
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let name = escape(&format!("{} against {}", report.current, report.baseline));
    let now = clock::rfc_3339(clock::unix_now());
    let _ = writeln!(xml, "<testsuites name=\"{name}\" {counts}>");
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{name}\" timestamp=\"{}\" {counts}>",
        now.trim_end_matches('Z')
    );
    for row in report.rows() {
        let of = escape(&row.of.name);
        let name = row.metric.map_or("hardware", |metric| &metric.metric);
        let _ = write!(
            xml,
            "    <testcase classname=\"{of}\" name=\"{}\" time=\"0\">",
            escape(name)
        );
        match (row.metric, row.of.result) {
            (Some(metric), _) => {
                let facts = format!(
                    "was {}, is {}, {}; threshold {:.1} %; by {}",
                    four_digits(metric.baseline),
                    four_digits(metric.current),
                    metric.change_text(),
                    100.0 * metric.threshold,
                    metric.method.text()
                );
                let element = match metric.result {
                    ComparisonResult::Regression => "failure",
                    _ => "system-out",
                };
                let message = match element {
                    "failure" => format!(
                        " message=\"{}\" type=\"regression\"",
                        escape(&metric.change_text())
                    ),
                    _ => String::new(),
                };
                let says = escape(&format!("{}: {facts}", metric.result_text()));
                let _ = write!(xml, "<{element}{message}>{says}</{element}>");
            }
            (None, ComparisonResult::HardwareMismatch) => {
                let facts: Vec<String> = row.of.hardware.iter().map(ToString::to_string).collect();
                let facts = escape(&facts.join("; "));
                let _ = write!(
                    xml,
                    "<error message=\"{facts}\" type=\"hardware_mismatch\">{facts}</error>"
                );
            }
            (None, _) => xml.push_str("<skipped message=\"no metric in common\"/>"),
        }
        xml.push_str("</testcase>\n");
    }
    for (names, why) in [
        (&report.missing, "not measured now"),
        (&report.added, "not in the baseline"),
    ] {
        for name in names {
            let name = escape(name);
            let _ = writeln!(
                xml,
                "    <testcase classname=\"{name}\" name=\"{name}\" time=\"0\"><skipped message=\"{why}\"/></testcase>"
            );
        }
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// Escapes text for elements and attributes of XML 1.0. Characters that XML cannot represent become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // Parsers turn these into spaces in attributes.
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
    use super::*;

    #[test]
    fn replaces_characters_that_xml_cannot_represent() {
        assert_eq!(
            escape("a\u{0}\u{8}\u{ffff}b\n<"),
            "a\u{fffd}\u{fffd}\u{fffd}b&#10;&lt;"
        );
    }
}
