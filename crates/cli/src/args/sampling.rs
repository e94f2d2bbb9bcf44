//! How the next token is chosen: the flags, and the few of their values that are more than a number.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use rocmforge_plan::SamplerKind;

/// How the next token is chosen. Names and defaults are llama.cpp's.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// 0 takes the best token every time, more makes the text more varied
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub temp: f32,
    /// Choose among the K best tokens; 0 means all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Choose among the best tokens that together have this probability; 1 means all
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.95,
        allow_negative_numbers = true
    )]
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the best one's probability; 0 means none
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.05,
        allow_negative_numbers = true
    )]
    pub min_p: f32,
    /// Choose among the tokens most typical of the distribution, up to this probability; 1 means all
    #[arg(
        long,
        alias = "typical",
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub typical_p: f32,
    /// Leave out tokens more than N standard deviations of the logits below the best; 0 or less means none
    #[arg(
        long,
        alias = "top-nsigma",
        value_name = "N",
        default_value_t = -1.0,
        allow_negative_numbers = true
    )]
    pub top_n_sigma: f32,
    /// How often the top choices are left out (XTC); 0 is off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub xtc_probability: f32,
    /// Probability from which a token is a top choice; above 0.5 turns XTC off
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    pub xtc_threshold: f32,
    /// Let the temperature go up and down by this, with the entropy of the candidates; 0 is off
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub dynatemp_range: f32,
    /// Power of the normalized entropy that sets the dynamic temperature
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub dynatemp_exp: f32,
    /// Make tokens of the last text less likely by this factor; 1 is off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub repeat_penalty: f32,
    /// Taken from the logit of a token that occurs in the last text; 0 is off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub presence_penalty: f32,
    /// Taken from the logit for every time the token occurs in the last text; 0 is off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub frequency_penalty: f32,
    /// Tokens that the penalties look back on; -1 means all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    pub repeat_last_n: i64,
    /// Make tokens that go on with a repetition less likely (DRY), by this factor; 0 is off
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub dry_multiplier: f32,
    /// Base of the DRY penalty, raised to the length of the repetition
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.75,
        allow_negative_numbers = true
    )]
    pub dry_base: f32,
    /// Repetitions shorter than N tokens are free of the DRY penalty
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// Tokens that DRY looks back on; -1 means all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    pub dry_penalty_last_n: i64,
    /// A text that DRY does not see repetitions across, \n for a newline; may be given more than once; none
    /// means no such text [default: \n : " *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// 2 keeps the surprise of the text steady (Mirostat 2.0) in place of all samplers but temperature and
    /// logit bias; 0 is off
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mirostat: u8,
    /// Surprise that Mirostat aims at, in bits a token (tau)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5.0,
        allow_negative_numbers = true
    )]
    pub mirostat_ent: f32,
    /// How fast Mirostat learns (eta)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    pub mirostat_lr: f32,
    /// Add to a token's logit, as in 15043+1 or 15043-inf; may be given more than once
    #[arg(short = 'l', long, value_name = "ID(+/-)BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The samplers in their order, with ; between them; those left out do not run
    #[arg(long, value_name = "NAMES", default_value_t = SamplerOrder::default())]
    pub samplers: SamplerOrder,
    /// Seed of the random numbers; the same seed gives the same text [default: random]
    #[arg(short, long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Samplers in the order in which they run.
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

    /// Nothing means no samplers.
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
    parsed.ok_or_else(|| {
        "give a token id, + or -, and a number, as in 15043+1 or 15043-inf".to_string()
    })
}

impl SamplingArgs {
    /// The texts for DRY; `None` if the flag was not given.
    pub fn sequence_breakers(&self) -> Option<Vec<String>> {
        match self.dry_sequence_breaker.as_slice() {
            [] => None,
            // As llama.cpp has it: the texts after the last `none` count.
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

/// Resolves `\n`, `\t`, `\r`, `\"`, `\'` and `\\`; others stay as they are.
fn unescape(text: &str) -> String {
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
    fn orders_are_lists_of_names() {
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
    fn a_bias_is_an_id_and_a_signed_number() {
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
    fn escapes_stand_for_characters() {
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
