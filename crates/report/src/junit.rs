//! Writes a comparison as JUnit XML for the test tabs of CI systems: a test case per compared metric. A regression is a
//! failure, other hardware an error.

use std::fmt::Write as _;

use rocmforge_bench::baseline::{ComparisonResult, RegressionReport, Row, four_digits};
use rocmforge_profile::clock;

/// Formats the report as JUnit XML.
pub fn text(report: &RegressionReport) -> String {
    let counts = counts(report);
    let name = escape(&format!("{} against {}", report.current, report.baseline));
    let now = clock::rfc_3339(clock::unix_now());
    let now = now.trim_end_matches('Z');
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(xml, "<testsuites name=\"{name}\" {counts}>");
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{name}\" timestamp=\"{now}\" {counts}>"
    );
    for row in report.rows() {
        let name = row.metric.map_or("hardware", |metric| &metric.metric);
        case(&mut xml, &row.of.name, name, &outcome(&row));
    }
    for (names, why) in [
        (&report.missing, "not measured now"),
        (&report.added, "not in the baseline"),
    ] {
        for name in names {
            case(
                &mut xml,
                name,
                name,
                &format!("<skipped message=\"{why}\"/>"),
            );
        }
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// Returns the attributes with the numbers of test cases.
fn counts(report: &RegressionReport) -> String {
    let n_unmeasured = report.missing.len() + report.added.len();
    let [mut n_tests, mut n_failures, mut n_errors, mut n_skipped] =
        [n_unmeasured, 0, 0, n_unmeasured];
    for row in report.rows() {
        n_tests += 1;
        match (
            row.metric.map_or(row.of.result, |metric| metric.result),
            row.metric,
        ) {
            (ComparisonResult::Regression, _) => n_failures += 1,
            (ComparisonResult::HardwareMismatch, _) => n_errors += 1,
            (_, None) => n_skipped += 1,
            (_, Some(_)) => {}
        }
    }
    format!(
        "tests=\"{n_tests}\" failures=\"{n_failures}\" errors=\"{n_errors}\" skipped=\"{n_skipped}\" time=\"0\""
    )
}

/// Writes a test case with the element of its outcome.
fn case(xml: &mut String, benchmark: &str, name: &str, outcome: &str) {
    let (benchmark, name) = (escape(benchmark), escape(name));
    let _ = writeln!(
        xml,
        "    <testcase classname=\"{benchmark}\" name=\"{name}\" time=\"0\">{outcome}</testcase>"
    );
}

/// Returns the element that tells the outcome of a row: a failure, an error, a skip, or output.
fn outcome(row: &Row<'_>) -> String {
    match (row.metric, row.of.result) {
        (Some(metric), _) => {
            let change = metric.change_text();
            let facts = escape(&format!(
                "{}: was {}, is {}, {change}; threshold {:.1} %; by {}",
                metric.result_text(),
                four_digits(metric.baseline),
                four_digits(metric.current),
                100.0 * metric.threshold,
                metric.method.text()
            ));
            match metric.result {
                ComparisonResult::Regression => {
                    let change = escape(&change);
                    format!("<failure message=\"{change}\" type=\"regression\">{facts}</failure>")
                }
                _ => format!("<system-out>{facts}</system-out>"),
            }
        }
        (None, ComparisonResult::HardwareMismatch) => {
            let facts: Vec<String> = row.of.hardware.iter().map(ToString::to_string).collect();
            let facts = escape(&facts.join("; "));
            format!("<error message=\"{facts}\" type=\"hardware_mismatch\">{facts}</error>")
        }
        (None, _) => "<skipped message=\"no metric in common\"/>".to_string(),
    }
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
