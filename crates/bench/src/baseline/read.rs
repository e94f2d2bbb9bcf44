//! Reads baselines from untrusted text: schema A (with or without our additions) and schema B, whose benchmarks are
//! flat metrics below one `timestamp` and one `hardware`. Both may have `//` comments.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rocmforge_profile::clock;
use serde_json::{Map, Value as Json};

use super::error::SchemaError;
use super::hardware::Hardware;
use super::schema::{Benchmark, FORM, Measurement, PerformanceBaseline};

/// Limits on benchmarks per file, metrics per benchmark, samples per metric and bytes per name, far above any real
/// baseline.
const MAX_BENCHMARKS: usize = 10_000;
const MAX_METRICS: usize = 1_000;
const MAX_READ_SAMPLES: usize = 100_000;
const MAX_TEXT: usize = 1_000;

/// Metric names of schema B and their names in schema A.
const OLD_NAMES: [(&str, &str); 3] = [
    ("tokens_per_sec", "tokens_s"),
    ("ops_per_sec", "ops_s"),
    ("elements_per_sec", "elements_s"),
];

impl PerformanceBaseline {
    /// Parses a baseline in schema A or B.
    ///
    /// # Errors
    /// If the text is not a valid baseline; the error names the place.
    pub fn from_json(text: &str) -> Result<PerformanceBaseline, SchemaError> {
        let json: Json = serde_json::from_str(&without_comments(text))
            .map_err(|error| SchemaError::NotJson(error.to_string()))?;
        let Json::Object(top) = &json else {
            return Err(SchemaError::UnknownForm(format!(
                "it is {}",
                kind(Some(&json))
            )));
        };
        let Some(entries) = top.get("baselines") else {
            return Err(SchemaError::UnknownForm(
                "`baselines` is missing".to_string(),
            ));
        };
        let entries = object(Some(entries), "baselines")?;
        limit(entries.len(), MAX_BENCHMARKS, "baselines")?;
        let metadata = match top.get("metadata") {
            None => BTreeMap::new(),
            Some(json) => texts(json, "metadata")?,
        };
        if let Some(form) = metadata.get("form").and_then(|form| form.parse().ok())
            && form > FORM
        {
            return Err(SchemaError::Newer(form, FORM));
        }
        let b = ["timestamp", "hardware"]
            .iter()
            .any(|field| top.contains_key(*field));
        let common = match b {
            true => Some((
                timestamp(top.get("timestamp"), "timestamp")?,
                hardware(top.get("hardware"), "hardware")?,
            )),
            false => None,
        };
        let mut baseline = PerformanceBaseline {
            metadata,
            ..PerformanceBaseline::default()
        };
        for (name, json) in entries {
            let at = format!("baselines.{}", text_of(name, "a name in baselines")?);
            let entry = object(Some(json), &at)?;
            let mut benchmark = match &common {
                Some((timestamp, hardware)) => Benchmark {
                    measured: flat(name, entry, &at)?,
                    timestamp: *timestamp,
                    hardware: hardware.clone(),
                },
                None => nested(name, entry, &at)?,
            };
            benchmark.thin();
            // Names in an object are unique.
            baseline.benchmarks.push(benchmark);
        }
        Ok(baseline)
    }
}

/// Blanks out `//` comments to the end of their lines, so that places in errors stay right.
fn without_comments(text: &str) -> Cow<'_, str> {
    if !text.contains("//") {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let (mut in_text, mut in_comment, mut is_escaped) = (false, false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => in_comment = false,
            _ if in_comment => {
                plain.push(' ');
                continue;
            }
            '/' if !in_text && chars.peek() == Some(&'/') => {
                in_comment = true;
                plain.push(' ');
                continue;
            }
            '"' if !is_escaped => in_text = !in_text,
            _ => {}
        }
        is_escaped = c == '\\' && in_text && !is_escaped;
        plain.push(c);
    }
    Cow::Owned(plain)
}

/// Parses a benchmark of schema A.
fn nested(name: &str, entry: &Map<String, Json>, at: &str) -> Result<Benchmark, SchemaError> {
    let mut samples = BTreeMap::new();
    if let Some(json) = entry.get("samples") {
        let at = format!("{at}.samples");
        for (name, json) in object(Some(json), &at)? {
            let at = format!("{at}.{}", text_of(name, &at)?);
            let Json::Array(list) = json else {
                return Err(wrong(&at, "a list of numbers", Some(json)));
            };
            limit(list.len(), MAX_READ_SAMPLES, &at)?;
            let numbers = list.iter().map(|json| number(json, &at));
            samples.insert(name.clone(), numbers.collect::<Result<_, _>>()?);
        }
    }
    let metrics = object(entry.get("metrics"), &format!("{at}.metrics"))?;
    let metadata = match entry.get("metadata") {
        None => BTreeMap::new(),
        Some(json) => texts(json, &format!("{at}.metadata"))?,
    };
    Ok(Benchmark {
        measured: Measurement {
            name: name.to_string(),
            metrics: numbers(metrics, &format!("{at}.metrics"))?,
            samples,
            metadata,
        },
        timestamp: timestamp(entry.get("timestamp"), &format!("{at}.timestamp"))?,
        hardware: hardware(entry.get("hardware"), &format!("{at}.hardware"))?,
    })
}

/// Parses a benchmark of schema B.
fn flat(name: &str, entry: &Map<String, Json>, at: &str) -> Result<Measurement, SchemaError> {
    let mut metrics = numbers(entry, at)?;
    for (old, new) in OLD_NAMES {
        if let Some(value) = metrics.remove(old) {
            metrics.insert(new.to_string(), value);
        }
    }
    Ok(Measurement {
        name: name.to_string(),
        metrics,
        ..Measurement::default()
    })
}

fn hardware(json: Option<&Json>, at: &str) -> Result<Hardware, SchemaError> {
    let fields = object(json, at)?;
    let text = |names: &[&str]| {
        let found = names
            .iter()
            .find_map(|name| Some((name, fields.get(*name)?)));
        match found {
            None | Some((_, Json::Null)) => Ok(None),
            Some((name, Json::String(text))) => {
                text_of(text, &format!("{at}.{name}")).map(|text| Some(text.to_string()))
            }
            Some((name, other)) => Err(wrong(&format!("{at}.{name}"), "a text", Some(other))),
        }
    };
    let n_threads = match fields.get("n_threads") {
        None | Some(Json::Null) => None,
        Some(json) => match json.as_u64() {
            Some(n) => Some(n),
            None => {
                return Err(wrong(
                    &format!("{at}.n_threads"),
                    "a whole number",
                    Some(json),
                ));
            }
        },
    };
    Ok(Hardware {
        // The second names are those of schema B.
        gpu_name: text(&["gpu_name", "gpu"])?,
        gpu_architecture: text(&["gpu_architecture", "architecture"])?,
        rocm_version: text(&["rocm_version"])?,
        cpu_arch: text(&["cpu_arch"])?,
        os: text(&["os"])?,
        rustc_version: text(&["rustc_version"])?,
        driver: text(&["driver"])?,
        cpu_model: text(&["cpu_model"])?,
        n_threads,
        program_version: text(&["program_version"])?,
        program_commit: text(&["program_commit"])?,
    })
}

/// Parses seconds since 1970 or RFC 3339.
fn timestamp(json: Option<&Json>, at: &str) -> Result<u64, SchemaError> {
    // A year above 9999 has more than four digits.
    let seconds = match json {
        Some(Json::String(text)) => clock::parse_rfc_3339(text),
        Some(json) => json.as_u64(),
        None => None,
    };
    seconds
        .filter(|seconds| *seconds < 253_402_300_800)
        .ok_or_else(|| {
            wrong(
                at,
                "seconds since 1970 or a date such as \"2026-01-18T00:00:00Z\"",
                json,
            )
        })
}

fn numbers(fields: &Map<String, Json>, at: &str) -> Result<BTreeMap<String, f64>, SchemaError> {
    limit(fields.len(), MAX_METRICS, at)?;
    let pairs = fields.iter().map(|(name, json)| {
        let at = format!("{at}.{}", text_of(name, at)?);
        Ok((name.clone(), number(json, &at)?))
    });
    pairs.collect()
}

/// Parses a measured value.
fn number(json: &Json, at: &str) -> Result<f64, SchemaError> {
    match json.as_f64() {
        Some(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(wrong(at, "a number of 0 or more", Some(json))),
    }
}

fn texts(json: &Json, at: &str) -> Result<BTreeMap<String, String>, SchemaError> {
    let fields = object(Some(json), at)?;
    limit(fields.len(), MAX_METRICS, at)?;
    let mut texts = BTreeMap::new();
    for (name, json) in fields {
        let at = format!("{at}.{}", text_of(name, at)?);
        let text = match json {
            Json::Null => continue,
            Json::String(text) => text_of(text, &at)?.to_string(),
            Json::Number(_) | Json::Bool(_) => json.to_string(),
            other => return Err(wrong(&at, "a text", Some(other))),
        };
        texts.insert(name.clone(), text);
    }
    Ok(texts)
}

fn object<'a>(json: Option<&'a Json>, at: &str) -> Result<&'a Map<String, Json>, SchemaError> {
    match json {
        Some(Json::Object(fields)) => Ok(fields),
        other => Err(wrong(at, "an object", other)),
    }
}

fn text_of<'a>(text: &'a str, at: &str) -> Result<&'a str, SchemaError> {
    limit(text.len(), MAX_TEXT, at)?;
    Ok(text)
}

fn limit(n: usize, max: usize, at: &str) -> Result<(), SchemaError> {
    match n > max {
        true => Err(SchemaError::TooMany {
            at: at.to_string(),
            n,
            max,
        }),
        false => Ok(()),
    }
}

fn wrong(at: &str, expected: &'static str, found: Option<&Json>) -> SchemaError {
    SchemaError::Wrong {
        at: at.to_string(),
        expected,
        found: kind(found),
    }
}

/// Describes a JSON value for an error message.
fn kind(json: Option<&Json>) -> String {
    match json {
        None => "missing".to_string(),
        Some(Json::Null) => "null".to_string(),
        Some(Json::Bool(_)) => "true or false".to_string(),
        Some(Json::Number(number)) => number.to_string(),
        Some(Json::String(text)) => {
            let start: String = text.chars().take(40).collect();
            format!("the text \"{start}\"")
        }
        Some(Json::Array(_)) => "a list".to_string(),
        Some(Json::Object(_)) => "an object".to_string(),
    }
}

#[cfg(test)]
mod tests;
