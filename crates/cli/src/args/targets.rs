//! `--target ttft_ms=200,tokens_s=40,vram_gb=6`.

use std::str::FromStr;

/// What is measured, and its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Milliseconds to the first token.
    TtftMs,
    /// Generated tokens per second.
    TokensS,
    /// 10^9 bytes of the GPU's memory.
    VramGb,
}

impl Metric {
    const ALL: [Metric; 3] = [Metric::TtftMs, Metric::TokensS, Metric::VramGb];

    pub fn name(self) -> &'static str {
        match self {
            Metric::TtftMs => "ttft_ms",
            Metric::TokensS => "tokens_s",
            Metric::VramGb => "vram_gb",
        }
    }
}

/// The limits given to a flag, each metric once.
#[derive(Debug, Clone, PartialEq)]
pub struct Targets(pub Vec<(Metric, f64)>);

impl FromStr for Targets {
    type Err = String;

    fn from_str(text: &str) -> Result<Targets, String> {
        let mut targets: Vec<(Metric, f64)> = Vec::new();
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not NAME=NUMBER, such as ttft_ms=200"))?;
            let name = name.trim();
            let Some(metric) = Metric::ALL.into_iter().find(|metric| metric.name() == name) else {
                return Err(format!(
                    "'{name}' is no target; there are {}",
                    Metric::ALL.map(Metric::name).join(", ")
                ));
            };
            let number = value.trim().parse::<f64>().ok();
            let Some(limit) = number.filter(|limit| limit.is_finite() && *limit > 0.0) else {
                return Err(format!("'{value}' of {name} is not a number above 0"));
            };
            if targets.iter().any(|(known, _)| *known == metric) {
                return Err(format!("{name} is given twice"));
            }
            targets.push((metric, limit));
        }
        Ok(Targets(targets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_targets() {
        let targets: Targets = "ttft_ms=200, tokens_s=40.5".parse().unwrap();
        assert_eq!(
            targets.0,
            [(Metric::TtftMs, 200.0), (Metric::TokensS, 40.5)]
        );
        for (bad, part) in [
            ("", "is not NAME=NUMBER"),
            ("ttft_ms", "is not NAME=NUMBER"),
            ("speed=3", "there are ttft_ms, tokens_s, vram_gb"),
            (
                "tokens_s=fast",
                "'fast' of tokens_s is not a number above 0",
            ),
            ("tokens_s=-1", "not a number above 0"),
            ("vram_gb=inf", "not a number above 0"),
            ("vram_gb=NaN", "not a number above 0"),
            ("vram_gb=1,vram_gb=2", "given twice"),
        ] {
            let error = bad.parse::<Targets>().unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
