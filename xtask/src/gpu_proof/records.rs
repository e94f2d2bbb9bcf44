//! The numbers that `rocmforge` prints as JSON.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The objects of a text, one a line.
pub(super) fn lines(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
        .collect()
}

/// A number of a record.
pub(super) fn number(record: &Value, key: &str) -> Result<f64> {
    let number = record.get(key).and_then(Value::as_f64);
    number.with_context(|| format!("no number {key} in {record}"))
}

/// The mean tokens per second of the records that `is_wanted` chooses.
///
/// # Errors
/// If there are none.
pub(super) fn mean_speed(records: &[Value], is_wanted: impl Fn(&Value) -> bool) -> Result<f64> {
    let speeds = records.iter().filter(|record| is_wanted(record));
    let speeds: Result<Vec<f64>> = speeds.map(|record| number(record, "avg_ts")).collect();
    let speeds = speeds?;
    let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
    mean.is_finite()
        .then_some(mean)
        .context("a test is missing in the output of bench")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_speeds_of_bench() {
        let text = "{\"n_gen\": 0, \"avg_ts\": 10.0}\n\n{\"n_gen\":128,\"avg_ts\":3}\n{\"n_gen\":128,\"avg_ts\":5}\n";
        let records = lines(text).unwrap();
        let with = |n_gen: u64| move |record: &Value| record["n_gen"] == n_gen;
        assert_eq!(mean_speed(&records, with(0)).unwrap(), 10.0);
        assert_eq!(mean_speed(&records, with(128)).unwrap(), 4.0);
        assert!(mean_speed(&records, with(1)).is_err());
        assert!(number(&records[0], "avg").is_err());
        assert!(lines("error: no model\n").is_err());
    }
}
