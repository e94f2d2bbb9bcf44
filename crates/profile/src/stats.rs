//! Statistics of samples: summary, percentiles, confidence interval of the median.

use serde::{Deserialize, Serialize};

/// Summary statistics of samples, in the unit of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub n: usize,
    pub min: f64,
    pub mean: f64,
    pub max: f64,
    /// Sample standard deviation; 0 for a single sample.
    pub std_dev: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Summary {
    /// Returns `None` without samples, or if one is NaN.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        if samples.is_empty() || samples.iter().any(|x| x.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
        Some(Summary {
            n,
            min: sorted[0],
            mean,
            max: sorted[n - 1],
            std_dev: match n {
                1 => 0.0,
                _ => (squares / (n - 1) as f64).sqrt(),
            },
            p50: percentile(&sorted, 0.50),
            p95: percentile(&sorted, 0.95),
            p99: percentile(&sorted, 0.99),
        })
    }

    /// Returns the standard deviation divided by the mean.
    pub fn noise(&self) -> f64 {
        self.std_dev / self.mean
    }
}

/// Returns the percentile `p` (0 to 1) of `sorted`, linearly interpolated as numpy does by default.
///
/// # Panics
/// If there are no samples.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    let at = p * (sorted.len() - 1) as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

/// Returns a confidence interval of the median, of at least 95 %. It uses order statistics and the binomial
/// distribution, so it assumes nothing about the distribution of the samples. `None` for fewer than 6 samples, which
/// are too few for this confidence.
pub fn median_interval(samples: &[f64]) -> Option<[f64; 2]> {
    let n = samples.len();
    // Logarithm of the probability that exactly `below` of `n` samples lie below the median. The logarithm, since 2^-n
    // underflows for long series.
    let mut ln_exactly = -(n as f64) * std::f64::consts::LN_2;
    let (mut at_most, mut rank) = (0.0, 0);
    for below in 0..n / 2 {
        at_most += f64::exp(ln_exactly);
        if at_most > 0.025 {
            break;
        }
        rank = below + 1;
        ln_exactly += f64::ln((n - below) as f64 / (below + 1) as f64);
    }
    if rank == 0 {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some([sorted[rank - 1], sorted[n - rank]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_match_numpy() {
        let odd = Summary::of(&[4.0, 1.0, 2.0, 10.0, 3.0]).unwrap();
        // numpy: percentile([1, 2, 3, 4, 10], [50, 95, 99]), std(ddof=1).
        assert_eq!((odd.min, odd.mean, odd.max, odd.p50), (1.0, 4.0, 10.0, 3.0));
        assert!((odd.p95 - 8.8).abs() < 1e-12 && (odd.p99 - 9.76).abs() < 1e-12);
        assert!((odd.std_dev - 3.535_533_905_932_737_8).abs() < 1e-12);
        let even = Summary::of(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(even.p50, 2.5);
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.std_dev, one.p50, one.p99), (0.0, 7.0, 7.0));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    /// Ranks computed from exact binomial coefficients; those for 20 and 30 match the tables of Conover, "Practical
    /// Nonparametric Statistics".
    #[test]
    fn median_intervals_match_published_ranks() {
        for (n, ranks) in [
            (5, None),
            (6, Some([1, 6])),
            (8, Some([1, 8])),
            (9, Some([2, 8])),
            (10, Some([2, 9])),
            (20, Some([6, 15])),
            (30, Some([10, 21])),
            (100, Some([40, 61])),
            (1000, Some([469, 532])),
        ] {
            // Unsorted input: ranks refer to the sorted samples.
            let samples: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            let expected = ranks.map(|ranks| ranks.map(f64::from));
            assert_eq!(median_interval(&samples), expected, "{n}");
        }
        // 2^-5000 underflows f64.
        assert!(median_interval(&vec![1.0; 5000]).is_some());
        assert_eq!(median_interval(&[]), None);
    }
}
