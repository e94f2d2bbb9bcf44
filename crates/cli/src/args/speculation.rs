//! The flag for drafts of the next tokens.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use rocmforge_engine::speculate::MAX_DRAFT;

/// The most tokens of a draft by layers that predict further tokens ahead: a model with states keeps one for each.
const MTP_DRAFT: usize = 3;

/// Drafts of the next tokens.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Device")]
pub struct SpeculationArgs {
    /// Draft tokens and check them in one step: auto, off, ngram, mtp or draft:FILE (a smaller model); ,n=K: at most K
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        env = "ROCMFORGE_SPECULATE",
        hide_env_values = true
    )]
    pub speculate: Speculation,
}

/// How tokens are drafted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Speculation {
    pub by: DraftBy,
    /// The most tokens of a draft, if that is stated.
    pub stated: Option<usize>,
}

impl Speculation {
    /// Returns the most tokens of a draft.
    pub fn n_most(&self) -> usize {
        let usual = match self.by {
            DraftBy::Auto | DraftBy::Mtp => MTP_DRAFT,
            DraftBy::Nothing | DraftBy::Ngram | DraftBy::Model(_) => MAX_DRAFT,
        };
        self.stated.unwrap_or(usual)
    }

    /// As [`Speculation::n_most`], where the tokens of a draft take neither time nor memory each.
    pub fn n_most_at_once(&self) -> usize {
        self.stated.unwrap_or(MAX_DRAFT)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DraftBy {
    /// The layers of the model's file that predict further tokens ahead, or the drafter in a file beside it, if there are any.
    #[default]
    Auto,
    Nothing,
    Ngram,
    /// These layers.
    Mtp,
    /// The model in this file.
    Model(PathBuf),
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(text: &str) -> Result<Speculation, String> {
        let (how, stated) = match text.rsplit_once(",n=") {
            None => (text, None),
            Some((how, n)) => match n.parse() {
                Ok(n @ 1..=MAX_DRAFT) => (how, Some(n)),
                _ => return Err(format!("n={n}: use a number from 1 to {MAX_DRAFT}")),
            },
        };
        let by = match (how, how.strip_prefix("draft:")) {
            ("auto", _) => DraftBy::Auto,
            ("off", _) => DraftBy::Nothing,
            ("ngram", _) => DraftBy::Ngram,
            ("mtp", _) => DraftBy::Mtp,
            (_, Some(file)) if !file.is_empty() => DraftBy::Model(file.into()),
            _ => {
                return Err(
                    "use auto, off, ngram, mtp or draft:FILE, and ,n=K for at most K tokens".into(),
                );
            }
        };
        Ok(Speculation { by, stated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_how_to_draft() {
        let parsed = |text: &str| text.parse::<Speculation>();
        let read = |text: &str| parsed(text).map(|read| (read.n_most(), read.by));
        let by = |by, n_most| Ok((n_most, by));
        assert_eq!(read("auto"), by(DraftBy::Auto, MTP_DRAFT));
        assert_eq!(read("off"), by(DraftBy::Nothing, MAX_DRAFT));
        assert_eq!(read("ngram"), by(DraftBy::Ngram, MAX_DRAFT));
        assert_eq!(read("ngram,n=3"), by(DraftBy::Ngram, 3));
        assert_eq!(read("mtp,n=2"), by(DraftBy::Mtp, 2));
        let small = || DraftBy::Model("a,b.gguf".into());
        assert_eq!(read("draft:a,b.gguf"), by(small(), MAX_DRAFT));
        assert_eq!(read("draft:a,b.gguf,n=5"), by(small(), 5));
        let at_once = |text: &str| parsed(text).map(|read| read.n_most_at_once());
        assert_eq!(["auto", "auto,n=3"].map(at_once), [Ok(MAX_DRAFT), Ok(3)]);
        for (text, part) in [
            ("ngram,n=0", "from 1 to 16"),
            ("ngram,n=17", "from 1 to 16"),
            ("ngram,n=x", "n=x"),
            ("draft:", "draft:FILE"),
            ("n-gram", "use auto, off, ngram"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
