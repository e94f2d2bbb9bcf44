//! Samples in a few numbers.

use serde::{Deserialize, Serialize};

/// What a set of samples looks like; all in the unit of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub n: usize,
    pub min: f64,
    pub mean: f64,
    pub max: f64,
    /// Sample standard deviation; 0 of one sample.
    pub std_dev: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Summary {
    /// `None` without samples, or if one is not a number.
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

    /// Standard deviation over mean.
    pub fn noise(&self) -> f64 {
        self.std_dev / self.mean
    }
}

/// The value below which the part `p` of `sorted` lies, interpolated between neighbours as numpy does by default.
///
/// # Panics
/// Without samples.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    let at = p * (sorted.len() - 1) as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_numpy_s() {
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
}
