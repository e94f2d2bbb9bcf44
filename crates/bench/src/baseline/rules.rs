//! The rules of a comparison: thresholds and the hardware rule, as given on the command line.

use std::str::FromStr;

/// The smallest loss that matters, as a share: 1.1 times the duration is a loss of 0.1, and so is 1 / 1.1 of a rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// For metrics without a threshold of their own.
    pub default: f64,
    pub per_metric: Vec<(String, f64)>,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            default: 0.10,
            per_metric: Vec::new(),
        }
    }
}

impl Thresholds {
    pub fn of(&self, metric: &str) -> f64 {
        self.own(metric).unwrap_or(self.default)
    }

    /// Returns the threshold given for this metric, the last if there are several.
    pub(super) fn own(&self, metric: &str) -> Option<f64> {
        let mut given = self.per_metric.iter().rev();
        let (_, threshold) = given.find(|(name, _)| name == metric)?;
        Some(*threshold)
    }
}

/// Parses percentages: `5`, `p50_ms=5,tokens_s=3`, `20,p50_ms=5`.
impl FromStr for Thresholds {
    type Err = String;

    fn from_str(text: &str) -> Result<Thresholds, String> {
        let mut thresholds = Thresholds::default();
        for part in text.split(',') {
            let (metric, percent) = match part.split_once('=') {
                Some((metric, percent)) => (Some(metric.trim()), percent),
                None => (None, part),
            };
            let share = percent.trim().trim_end_matches('%').parse::<f64>();
            let share = share.ok().map(|percent| percent / 100.0);
            let Some(share) = share.filter(|share| *share > 0.0 && *share <= 100.0) else {
                return Err(format!(
                    "'{part}' has no percentage above 0; write 5, or p50_ms=5,tokens_s=3"
                ));
            };
            match metric {
                None => thresholds.default = share,
                Some("") => return Err(format!("'{part}' names no metric; write p50_ms=5")),
                Some(name) => thresholds.per_metric.push((name.to_string(), share)),
            }
        }
        Ok(thresholds)
    }
}

/// Whether measurements from other hardware are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HardwareRule {
    #[default]
    Same,
    Any,
}

/// Whether the mean and the 95th percentile are judged besides the median, which slow outliers do not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tails {
    /// Worse tails are only remarked.
    #[default]
    Remarked,
    Judged,
}

/// The rules of a comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    pub thresholds: Thresholds,
    pub hardware: HardwareRule,
    pub tails: Tails,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_percentages() {
        let given: Thresholds = "20,p50_ms=5, tokens_s=2.5%,p50_ms=4".parse().unwrap();
        for (metric, expected) in [("p50_ms", 0.04), ("tokens_s", 0.025), ("gb_s", 0.2)] {
            assert_eq!(given.of(metric), expected, "{metric}");
        }
        assert_eq!(Thresholds::default().of("p50_ms"), 0.1);
        for bad in [
            "", "x", "p50_ms", "p50_ms=", "=5", "p50_ms=x", "0", "-5", "nan", "inf", "5,", "a=1=2",
        ] {
            assert!(bad.parse::<Thresholds>().is_err(), "{bad:?}");
        }
    }
}
