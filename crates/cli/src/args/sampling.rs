//! Sampling flags and the parsing of their values.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use rocmforge_plan::SamplerKind;

/// Sampling settings. Names and defaults are llama.cpp's.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0: greedy
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub temp: f32,
    /// Keep the K most likely tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens up to this cumulative probability (nucleus sampling); 1: all
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.95,
        allow_negative_numbers = true
    )]
    pub top_p: f32,
    /// Drop tokens below this fraction of the top token's probability; 0: off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.05,
        allow_negative_numbers = true
    )]
    pub min_p: f32,
    /// Locally typical sampling, up to this cumulative probability; 1: off
    #[arg(
        long,
        alias = "typical",
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub typical_p: f32,
    /// Drop tokens whose logit is more than N standard deviations below the top one; 0 or less: off
    #[arg(
        long,
        alias = "top-nsigma",
        value_name = "N",
        default_value_t = -1.0,
        allow_negative_numbers = true
    )]
    pub top_n_sigma: f32,
    /// Probability of excluding the top choices (XTC); 0: off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub xtc_probability: f32,
    /// Least probability of a top choice (XTC); above 0.5: off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    pub xtc_threshold: f32,
    /// Dynamic temperature range, plus or minus, by the candidates' entropy; 0: off
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub dynatemp_range: f32,
    /// Exponent of the normalized entropy in the dynamic temperature
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub dynatemp_exp: f32,
    /// Repetition penalty factor for recent tokens; 1: off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub repeat_penalty: f32,
    /// Presence penalty, subtracted for recent tokens; 0: off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub presence_penalty: f32,
    /// Frequency penalty: subtracted once per recent occurrence; 0: off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub frequency_penalty: f32,
    /// Recent tokens that the penalties consider; -1: all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    pub repeat_last_n: i64,
    /// DRY penalty multiplier, for tokens that extend a repetition; 0: off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub dry_multiplier: f32,
    /// DRY penalty base, raised to the repetition's length
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.75,
        allow_negative_numbers = true
    )]
    pub dry_base: f32,
    /// DRY does not penalize repetitions shorter than N tokens
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// Number of recent tokens that DRY considers; -1: all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    pub dry_penalty_last_n: i64,
    /// DRY sequence breaker, \n for a newline; may be repeated; none: no breakers [default: \n : " *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// Mirostat version: 0: off, 2: replaces all samplers except temperature and logit bias
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mirostat: u8,
    /// Mirostat target entropy (tau), in bits per token
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5.0,
        allow_negative_numbers = true
    )]
    pub mirostat_ent: f32,
    /// Mirostat learning rate (eta)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    pub mirostat_lr: f32,
    /// Add to a token's logit, as in 15043+1 or 15043-inf; may be repeated
    #[arg(short = 'l', long, value_name = "ID(+/-)BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Samplers to run, in order, separated by semicolons
    #[arg(long, value_name = "NAMES", default_value_t = SamplerOrder::default())]
    pub samplers: SamplerOrder,
    /// Random seed [default: random]
    #[arg(short, long, value_name = "N")]
    pub seed: Option<u64>,
}

/// The samplers in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerOrder(pub Vec<SamplerKind>);

impl Default for SamplerOrder {
    fn default() -> SamplerOrder {
        SamplerOrder(SamplerKind::ALL.to_vec())
    }
}

impl fmt::Display for SamplerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|kind| kind.name()).collect();
        f.write_str(&names.join(";"))
    }
}

impl FromStr for SamplerOrder {
    type Err = String;

    /// An empty text means no samplers.
    fn from_str(text: &str) -> Result<SamplerOrder, String> {
        if text.trim().is_empty() {
            return Ok(SamplerOrder(Vec::new()));
        }
        let names = text.trim_end_matches(';').split(';');
        let kinds: Result<Vec<SamplerKind>, _> = names.map(str::parse).collect();
        kinds.map(SamplerOrder).map_err(|error| error.to_string())
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let split = text.find(['+', '-']).map(|at| text.split_at(at));
    let parsed = split.and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "use ID+BIAS or ID-BIAS, as in 15043+1 or 15043-inf".to_string())
}

impl SamplingArgs {
    /// Returns DRY's sequence breakers; `None` if the flag was not given.
    pub fn sequence_breakers(&self) -> Option<Vec<String>> {
        match self.dry_sequence_breaker.as_slice() {
            [] => None,
            // Like llama.cpp: `none` discards the texts before it.
            texts => Some(
                texts
                    .rsplit(|text| text == "none")
                    .next()
                    .unwrap_or_default()
                    .iter()
                    .map(|text| unescape(text))
                    .collect(),
            ),
        }
    }
}

/// Resolves `\n`, `\t`, `\r`, `\"`, `\'` and `\\`; other escapes stay unchanged.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(c @ ('"' | '\'' | '\\')) => out.push(c),
            other => {
                out.push('\\');
                out.extend(other);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sampler_orders() {
        let all = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(SamplerOrder::default().to_string(), all);
        assert_eq!(all.parse(), Ok(SamplerOrder::default()));
        assert_eq!("".parse(), Ok(SamplerOrder(vec![])));
        let two = SamplerOrder(vec![SamplerKind::Temperature, SamplerKind::TopK]);
        assert_eq!("temp;top-k;".parse(), Ok(two));
        for bad in ["x", "top_k,top_p", ";top_k", "top_k;;top_p"] {
            assert!(bad.parse::<SamplerOrder>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parses_logit_biases() {
        assert_eq!(parse_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(parse_bias("7-0.5"), Ok((7, -0.5)));
        assert_eq!(parse_bias("7-1e-3"), Ok((7, -1e-3)));
        assert_eq!(parse_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for bad in [
            "",
            "7",
            "+1",
            "-1",
            "7+",
            "x+1",
            "7=1",
            "7+-1",
            "4294967296+1",
        ] {
            assert!(parse_bias(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn resolves_escapes() {
        for (text, expected) in [
            (r"\n", "\n"),
            (r"a\tb", "a\tb"),
            (r#"\""#, "\""),
            (r"\\n", r"\n"),
            (r"\x", r"\x"),
            ("\\", "\\"),
        ] {
            assert_eq!(unescape(text), expected, "{text:?}");
        }
    }
}
