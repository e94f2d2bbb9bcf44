//! Judges two programs that ran in turn, pair by pair.
//!
//! Whatever else happens on a machine happens to both runs of a pair, so their ratio is steady where their times are
//! not. The median ratio has an interval from order statistics (the sign test), which assumes nothing about the noise.

use rocmforge_profile::stats::{median_interval, percentile};

/// The ratios of pairs: current over baseline, above 1 is faster.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    sorted: Vec<f64>,
}

/// What pairs show about a loss of a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Worse,
    Better,
    /// Neither, and a loss of the threshold is excluded.
    Same,
    /// A loss of the threshold is neither shown nor excluded.
    NotJudged,
}

impl Pairs {
    /// Returns `None` without ratios, or if one is not above 0.
    pub fn of(ratios: &[f64]) -> Option<Pairs> {
        let is_sound = |ratio: &f64| *ratio > 0.0 && ratio.is_finite();
        if ratios.is_empty() || !ratios.iter().all(is_sound) {
            return None;
        }
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Pairs { sorted })
    }

    pub fn median(&self) -> f64 {
        percentile(&self.sorted, 0.5)
    }

    /// Returns the smallest and the largest ratio.
    pub fn range(&self) -> [f64; 2] {
        [self.sorted[0], self.sorted[self.sorted.len() - 1]]
    }

    /// Returns a confidence interval of the median of at least 95 %; `None` for fewer than six pairs.
    pub fn interval(&self) -> Option<[f64; 2]> {
        median_interval(&self.sorted)
    }

    /// Judges a loss by the factor `1 + threshold`, as [`super::compare_metrics`] does.
    pub fn verdict(&self, threshold: f64) -> Verdict {
        let Some([low, high]) = self.interval() else {
            return Verdict::NotJudged;
        };
        // As losses: above 1 is worse.
        let (low, high) = (1.0 / high, 1.0 / low);
        let reaches = |ratio: f64| ratio >= (1.0 + threshold) * (1.0 - 1e-9);
        match (low > 1.0, reaches(high)) {
            (true, true) => Verdict::Worse,
            (false, true) => Verdict::NotJudged,
            _ if high < 1.0 && reaches(1.0 / low) => Verdict::Better,
            _ => Verdict::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Pairs {
        Pairs::of(ratios).unwrap()
    }

    #[test]
    fn few_pairs_have_a_range_only() {
        let few = pairs(&[1.2, 0.9, 1.0]);
        assert_eq!(
            (few.median(), few.range(), few.interval()),
            (1.0, [0.9, 1.2], None)
        );
        assert_eq!(few.verdict(0.1), Verdict::NotJudged);
        for bad in [
            &[][..],
            &[1.0, 0.0],
            &[f64::NAN],
            &[f64::INFINITY, 1.0],
            &[-1.0],
        ] {
            assert_eq!(Pairs::of(bad), None);
        }
    }

    /// Ranks 2 and 9 of 10: scipy.stats.binom.cdf(1, 10, 0.5) is 0.0107, cdf(2, 10, 0.5) is 0.0547.
    #[test]
    fn ten_pairs_have_an_interval() {
        let ratios: Vec<f64> = (0..10).map(|i| 0.80 + 0.01 * f64::from(i)).collect();
        let [low, high] = pairs(&ratios).interval().unwrap();
        assert!((low - 0.81).abs() < 1e-12 && (high - 0.88).abs() < 1e-12);
    }

    #[test]
    fn judges_losses() {
        let around = |ratio: f64, spread: f64| {
            let ratios: Vec<f64> = (0..10)
                .map(|i| ratio * (1.0 + spread * f64::from(i - 4)))
                .collect();
            pairs(&ratios).verdict(0.1)
        };
        for (ratio, spread, expected) in [
            (1.0, 0.001, Verdict::Same),
            (0.97, 0.001, Verdict::Same),
            (1.0 / 1.2, 0.01, Verdict::Worse),
            (1.2, 0.01, Verdict::Better),
            (0.95, 0.05, Verdict::NotJudged),
        ] {
            assert_eq!(around(ratio, spread), expected, "{ratio} {spread}");
        }
        // One disturbed pair of ten changes nothing.
        let mut ratios = vec![1.0; 9];
        ratios.push(0.3);
        assert_eq!(pairs(&ratios).verdict(0.1), Verdict::Same);
    }
}
