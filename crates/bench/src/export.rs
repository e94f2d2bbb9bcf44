//! Writes rows as they come: as a terminal table, JSON (an array of rows, or one per line), CSV or Markdown. The output is complete
//! after [`Exporter::footer`], whatever the number of rows.

use serde_json::Value;

use crate::baseline::OTHER_LOAD;
use crate::load;
use crate::row::{BenchRow, NOISY};
use rocmforge_profile::schema::is_above_peak;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Table,
    Json,
    /// One JSON object per line.
    Jsonl,
    Csv,
    Markdown,
}

/// How much of a row the table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Short,
    /// All times, other measurements and the hardware.
    All,
}

/// Formats rows. Each returned text is empty or ends with a line break.
#[derive(Debug)]
pub struct Exporter {
    form: Form,
    detail: Detail,
    n_rows: usize,
    name_width: usize,
}

/// A table column: heading, width, cell.
type Column = (&'static str, usize, fn(&BenchRow) -> String);

const SHORT: [Column; 9] = [
    ("p50 ms", 10, |row| number(row.times.p50_ms)),
    ("95 % ±", 7, interval),
    ("runs", 8, |row| row.times.iterations.to_string()),
    ("GFLOP/s", 8, |row| rate(row.rates.gflop_s)),
    ("GB/s", 8, |row| rate(row.rates.gb_s)),
    ("Melem/s", 8, |row| {
        rate(row.rates.elements_s.map(|n| n / 1e6))
    }),
    ("tok/s", 9, |row| rate(row.rates.tokens_s)),
    ("of BW", 6, |row| {
        percent(row.rates.bandwidth_roofline_share)
    }),
    ("of peak", 7, |row| {
        percent(row.rates.compute_roofline_share)
    }),
];
const TIMES: [Column; 5] = [
    ("min ms", 10, |row| number(row.times.min_ms)),
    ("avg ms", 10, |row| number(row.times.avg_ms)),
    ("max ms", 10, |row| number(row.times.max_ms)),
    ("p95 ms", 10, |row| number(row.times.p95_ms)),
    ("p99 ms", 10, |row| number(row.times.p99_ms)),
];

/// Fields of a row without a CSV column: lists and objects.
const NOT_IN_CSV: [&str; 1] = ["samples_ms"];

impl Exporter {
    /// Creates an exporter for rows with these names, which determine the width of the first column.
    pub fn new(form: Form, detail: Detail, names: &[String]) -> Exporter {
        Exporter {
            form,
            detail,
            n_rows: 0,
            name_width: names.iter().map(String::len).max().unwrap_or(0).max(4),
        }
    }

    fn columns(&self) -> Vec<Column> {
        let mut columns = SHORT.to_vec();
        if self.form == Form::Markdown || self.detail == Detail::All {
            columns.extend(TIMES);
        }
        columns
    }

    /// Returns the text before the rows.
    pub fn header(&self) -> String {
        let columns = self.columns();
        match self.form {
            Form::Json => "[\n".to_string(),
            // CSV column names are written with the first row.
            Form::Csv | Form::Jsonl => String::new(),
            Form::Table => {
                let mut line = format!("{:width$}", "case", width = self.name_width);
                for (head, width, _) in columns {
                    line.push_str(&format!("  {head:>width$}"));
                }
                line + "\n"
            }
            Form::Markdown => {
                let heads = columns.iter().map(|(head, ..)| *head);
                let heads: Vec<&str> = heads.chain(["notes"]).collect();
                let rules = "---:|".repeat(columns.len());
                format!("| case | {} |\n|---|{rules}---|\n", heads.join(" | "))
            }
        }
    }

    pub fn row(&mut self, row: &BenchRow) -> String {
        let text = match self.form {
            Form::Json => {
                let json = to_value(row);
                let text = serde_json::to_string_pretty(&json).unwrap_or_default();
                let before = if self.n_rows > 0 { "," } else { "" };
                format!("{before}  {}\n", text.replace('\n', "\n  "))
            }
            Form::Jsonl => format!("{}\n", to_value(row)),
            Form::Csv => self.csv(row),
            Form::Table => self.table(row),
            Form::Markdown => {
                let columns = self.columns();
                let cells: Vec<String> = columns.iter().map(|(.., cell)| cell(row)).collect();
                let notes = notes(row).join("; ").replace('|', "\\|");
                format!("| {} | {} | {notes} |\n", row.name, cells.join(" | "))
            }
        };
        self.n_rows += 1;
        text
    }

    /// Returns the text after the rows.
    pub fn footer(&self) -> String {
        match self.form {
            Form::Json => "]\n".to_string(),
            Form::Jsonl | Form::Csv | Form::Table | Form::Markdown => String::new(),
        }
    }

    fn table(&self, row: &BenchRow) -> String {
        let mut text = format!("{:width$}", row.name, width = self.name_width);
        for (_, width, cell) in self.columns() {
            text.push_str(&format!("  {:>width$}", cell(row)));
        }
        text.push('\n');
        for note in notes(row) {
            text.push_str(&format!("    {note}\n"));
        }
        if self.detail == Detail::All {
            for (name, value) in &row.metrics {
                text.push_str(&format!("    {name} {value}\n"));
            }
        }
        text
    }

    fn csv(&self, row: &BenchRow) -> String {
        let mut names = Vec::new();
        let mut values = Vec::new();
        let Value::Object(fields) = to_value(row) else {
            return String::new();
        };
        for (name, value) in fields {
            if NOT_IN_CSV.contains(&name.as_str()) {
                continue;
            }
            match (name.as_str(), value) {
                ("hardware", Value::Object(fields)) => {
                    for (field, value) in fields {
                        names.push(field);
                        values.push(csv_value(&value));
                    }
                }
                (_, value) => {
                    values.push(csv_value(&value));
                    names.push(name);
                }
            }
        }
        let mut text = match self.n_rows {
            0 => names.join(",") + "\n",
            _ => String::new(),
        };
        text.push_str(&values.join(","));
        text + "\n"
    }
}

fn to_value(row: &BenchRow) -> Value {
    serde_json::to_value(row).unwrap_or_default()
}

/// Returns the remarks on a row: its notes, and whether it is emulated or noisy.
fn notes(row: &BenchRow) -> Vec<String> {
    let mut notes = row.notes.clone();
    if row.emulated {
        notes.push("emulated GPU: its times say nothing about real GPUs".to_string());
    }
    if let Some(share) = row
        .metrics
        .get(OTHER_LOAD)
        .filter(|share| **share >= load::BUSY)
    {
        notes.push(format!(
            "busy machine: other programs took {:.0} % of its cores",
            100.0 * share
        ));
    }
    if row
        .rates
        .bandwidth_roofline_share
        .is_some_and(is_above_peak)
    {
        notes.push("faster than memory: the data stays in a cache".to_string());
    }
    if row.rates.compute_roofline_share.is_some_and(is_above_peak) {
        notes.push("above the peak, which was measured at a slower moment".to_string());
    }
    if row.times.is_noisy() {
        notes.push(format!(
            "noisy: standard deviation is {:.0} % of the mean, above {:.0} %",
            100.0 * row.times.noise,
            100.0 * NOISY
        ));
    }
    notes
}

/// Formats a number with four significant digits; times of nanoseconds in milliseconds have them too.
fn number(x: f64) -> String {
    let magnitude = match x > 0.0 {
        true => x.log10().floor() as i32,
        false => 0,
    };
    let decimals = (3 - magnitude).clamp(0, 9) as usize;
    format!("{x:.decimals$}")
}

fn rate(x: Option<f64>) -> String {
    x.map_or_else(|| "-".to_string(), number)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_string(), |share| format!("{:.1}%", 100.0 * share))
}

/// Formats half the width of the median's confidence interval.
fn interval(row: &BenchRow) -> String {
    let times = &row.times;
    match (times.ci95_low_ms, times.ci95_high_ms) {
        (Some(low), Some(high)) if times.p50_ms > 0.0 => {
            format!("{:.1}%", 50.0 * (high - low) / times.p50_ms)
        }
        _ => "-".to_string(),
    }
}

/// Formats a CSV field: text is quoted, objects become `name=value` pairs, missing numbers are empty.
fn csv_value(value: &Value) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let texts = items.iter().map(|item| item.as_str().unwrap_or_default());
            quoted(&texts.collect::<Vec<_>>().join("; "))
        }
        Value::Object(fields) => {
            let pair = |(name, value): (&String, &Value)| match value {
                Value::String(text) => format!("{name}={text}"),
                other => format!("{name}={other}"),
            };
            quoted(&fields.iter().map(pair).collect::<Vec<_>>().join("; "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::row;

    fn exported(form: Form, n_rows: usize) -> String {
        let row = row();
        let mut exporter = Exporter::new(form, Detail::Short, std::slice::from_ref(&row.name));
        let mut text = exporter.header();
        for _ in 0..n_rows {
            text.push_str(&exporter.row(&row));
        }
        text + &exporter.footer()
    }

    #[test]
    fn json_is_an_array_of_any_number_of_rows() {
        for n_rows in 0..3 {
            let rows: Vec<BenchRow> = serde_json::from_str(&exported(Form::Json, n_rows)).unwrap();
            assert_eq!(rows, vec![row(); n_rows]);
        }
    }

    #[test]
    fn csv_has_a_value_per_column() {
        let text = exported(Form::Csv, 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let names: Vec<&str> = lines[0].split(',').collect();
        for name in [
            "name",
            "p50_ms",
            "iterations",
            "gflop_s",
            "cpu_arch",
            "notes",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        // Quoted by the rules of RFC 4180.
        let (mut cells, mut quoted) = (1, false);
        for c in lines[1].chars() {
            match c {
                '"' => quoted = !quoted,
                ',' if !quoted => cells += 1,
                _ => {}
            }
        }
        assert_eq!(cells, names.len(), "{}", lines[1]);
        assert!(
            lines[1].contains("\"slow, \"\"really\"\"\""),
            "{}",
            lines[1]
        );
    }

    #[test]
    fn table_cells_match_their_headings() {
        let text = exported(Form::Markdown, 1);
        let cells: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert!(
            cells.len() == 3 && cells.iter().all(|n| *n == cells[0]),
            "{text}"
        );
        let text = exported(Form::Table, 1);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].chars().count(), lines[1].chars().count(), "{text}");
        assert!(lines[1].starts_with("matmul/dense/F32/1x2x3/cpu") && lines[1].contains(" 3.000 "));
        assert!(
            lines[2].contains("slow") && lines[3].contains("noisy"),
            "{text}"
        );
    }

    #[test]
    fn rows_say_what_to_think_of_them() {
        let told = |bandwidth: f64, ops: f64, load: f64| {
            let mut row = row();
            row.notes.clear();
            row.times.noise = 0.0;
            row.rates.bandwidth_roofline_share = Some(bandwidth);
            row.rates.compute_roofline_share = Some(ops);
            row.metrics.insert(OTHER_LOAD.to_string(), load);
            notes(&row)
        };
        assert_eq!(told(1.0, 0.9, 0.04), Vec::<String>::new());
        assert_eq!(
            told(2.45, 1.1, 0.4),
            [
                "busy machine: other programs took 40 % of its cores",
                "faster than memory: the data stays in a cache",
                "above the peak, which was measured at a slower moment",
            ]
        );
    }

    #[test]
    fn numbers_have_four_significant_digits() {
        for (x, text) in [
            (0.0, "0.000"),
            (1234.5678, "1235"),
            (12.345678, "12.35"),
            (0.00123456, "0.001235"),
            (0.0000012, "0.000001200"),
            (0.000_000_000_4, "0.000000000"),
        ] {
            assert_eq!(number(x), text);
        }
    }
}
