//! The samplers that a request may put in an order of its own. Names and default order are llama.cpp's
//! (`common_params_sampling::samplers`).

use std::fmt;
use std::str::FromStr;

/// One step on the way from logits to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

impl SamplerKind {
    /// Every sampler, in the default order.
    pub const ALL: [SamplerKind; 9] = [
        SamplerKind::Penalties,
        SamplerKind::Dry,
        SamplerKind::TopNSigma,
        SamplerKind::TopK,
        SamplerKind::TypicalP,
        SamplerKind::TopP,
        SamplerKind::MinP,
        SamplerKind::Xtc,
        SamplerKind::Temperature,
    ];

    pub fn name(self) -> &'static str {
        match self {
            SamplerKind::Penalties => "penalties",
            SamplerKind::Dry => "dry",
            SamplerKind::TopNSigma => "top_n_sigma",
            SamplerKind::TopK => "top_k",
            SamplerKind::TypicalP => "typ_p",
            SamplerKind::TopP => "top_p",
            SamplerKind::MinP => "min_p",
            SamplerKind::Xtc => "xtc",
            SamplerKind::Temperature => "temperature",
        }
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no sampler has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no sampler '{0}'; the samplers are {all}", all = SamplerKind::ALL.map(SamplerKind::name).join(";"))]
pub struct UnknownSampler(pub String);

impl FromStr for SamplerKind {
    type Err = UnknownSampler;

    /// The name, also with `-` for `_` and in the other spellings that llama.cpp reads.
    fn from_str(text: &str) -> Result<SamplerKind, UnknownSampler> {
        let name = text.trim().replace('-', "_");
        let name = match name.as_str() {
            "temp" => "temperature",
            "typical" | "typical_p" | "typ" => "typ_p",
            "nucleus" => "top_p",
            name => name,
        };
        SamplerKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownSampler(text.escape_default().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in SamplerKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.name().replace('_', "-").parse(), Ok(kind));
        }
        assert_eq!(" typical ".parse(), Ok(SamplerKind::TypicalP));
        for bad in ["", "topk", "top_k;top_p", "\u{1b}[2J"] {
            let message = bad.parse::<SamplerKind>().unwrap_err().to_string();
            assert!(message.contains("penalties;dry;top_n_sigma"), "{message}");
            assert!(!message.contains('\u{1b}'));
        }
    }
}
