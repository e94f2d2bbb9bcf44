//! Parses the rows of `llama-bench -o json`, a format that `rocmforge bench` shares.

use anyhow::{Context as _, Result, bail};
use serde_json::Value as Json;

use crate::output;

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    pub n_prompt: u64,
    pub n_gen: u64,
    pub n_depth: u64,
}

impl Test {
    /// Returns the name that both programs use.
    pub fn name(self) -> String {
        let Test {
            n_prompt,
            n_gen,
            n_depth,
        } = self;
        let mut name = match n_gen {
            0 => format!("pp{n_prompt}"),
            n_gen => format!("tg{n_gen}"),
        };
        if n_depth > 0 {
            name.push_str(&format!(" @ d{n_depth}"));
        }
        name
    }
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub test: Test,
    /// Median tokens per second.
    pub tokens_s: f64,
    /// Program and model, as printed by the program.
    pub build: String,
    pub backends: String,
    pub model: String,
}

/// Parses the output of `program`.
///
/// # Errors
/// The output has another format.
pub fn rows(text: &str, program: &str) -> Result<Vec<Row>> {
    let start: String = text.trim().chars().take(60).collect();
    let unexpected = || {
        format!(
            "{program} did not print llama-bench JSON, but: {}",
            match start.is_empty() {
                true => "nothing".to_string(),
                false => output::for_terminal(&start.replace(['\n', '\t'], " ")),
            }
        )
    };
    let json: Json = serde_json::from_str(text).with_context(unexpected)?;
    let Json::Array(rows) = json else {
        bail!(unexpected());
    };
    rows.iter()
        .map(|json| row(json).with_context(unexpected))
        .collect()
}

fn row(json: &Json) -> Result<Row> {
    let count = |field: &str| json[field].as_u64();
    let text = |field: &str| match &json[field] {
        Json::String(text) => output::for_terminal(text).replace(['\n', '\t'], " "),
        other => other.to_string(),
    };
    let missing = |field: &str| format!("`{field}` is missing or has the wrong type");
    let samples = json["samples_ts"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut samples: Vec<f64> = samples
        .iter()
        .map(|sample| {
            sample
                .as_f64()
                .filter(|speed| *speed > 0.0 && speed.is_finite())
        })
        .collect::<Option<_>>()
        .with_context(|| missing("samples_ts"))?;
    samples.sort_by(f64::total_cmp);
    let median = match samples.len() {
        0 => bail!(missing("samples_ts")),
        n => (samples[(n - 1) / 2] + samples[n / 2]) / 2.0,
    };
    Ok(Row {
        test: Test {
            n_prompt: count("n_prompt").with_context(|| missing("n_prompt"))?,
            n_gen: count("n_gen").with_context(|| missing("n_gen"))?,
            // Older versions of llama-bench have no depth.
            n_depth: count("n_depth").unwrap_or(0),
        },
        tokens_s: median,
        build: format!("{} ({})", text("build_commit"), text("build_number")),
        backends: text("backends"),
        model: text("model_type"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_rows() {
        let text = r#"[{"build_commit": "abc", "build_number": 7, "backends": "CPU", "model_type": "llama 1B",
            "n_prompt": 0, "n_gen": 64, "n_depth": 32, "samples_ts": [3.0, 1.0, 2.0, 10.0]}]"#;
        let rows = rows(text, "x").unwrap();
        assert_eq!(
            (rows[0].tokens_s, rows[0].test.name().as_str()),
            (2.5, "tg64 @ d32")
        );
        assert_eq!(
            (rows[0].build.as_str(), rows[0].backends.as_str()),
            ("abc (7)", "CPU")
        );
    }

    #[test]
    fn reports_malformed_rows() {
        for (text, part) in [
            ("", "nothing"),
            ("llama-bench: error\u{1b}[2J", "llama-bench: error"),
            ("{}", "{}"),
            ("[1]", "`samples_ts`"),
            (r#"[{"n_prompt": 1, "n_gen": 0}]"#, "`samples_ts`"),
            (
                r#"[{"n_prompt": 1, "n_gen": 0, "samples_ts": []}]"#,
                "`samples_ts`",
            ),
            (
                r#"[{"n_prompt": 1, "n_gen": 0, "samples_ts": [0]}]"#,
                "`samples_ts`",
            ),
            (
                r#"[{"n_prompt": -1, "n_gen": 0, "samples_ts": [1]}]"#,
                "`n_prompt`",
            ),
        ] {
            let error = format!("{:#}", rows(text, "llama-bench").unwrap_err());
            assert!(
                error.contains(part) && !error.contains('\u{1b}'),
                "{text}: {error}"
            );
        }
    }
}
