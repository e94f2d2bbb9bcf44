//! Computes confidence intervals of the ratio of two sets of samples.
//!
//! With samples on both sides, all ratios of a sample of one side to a sample of the other are formed. Their median is
//! the estimate (Hodges and Lehmann 1963), and the k-th from either end are the interval, with k from the null
//! distribution of Mann and Whitney's U (1947): the interval contains 1 exactly if their rank test finds no difference.
//! It assumes no distribution of the noise, and is robust against single slow samples. (Hollander, Wolfe and Chicken,
//! "Nonparametric Statistical Methods", 3rd edition, 4.2 and 4.3.)
//!
//! With a spread instead of samples, the logarithm is taken as normally distributed. For statistics that ranks do not
//! cover, such as p95, it is a percentile bootstrap (Efron and Tibshirani 1993, 13.3).

use serde::Serialize;

use super::metric::Statistic;

/// Share of intervals that contain the true ratio. Of 200 comparisons without a change, one lies above 1 and one below.
pub(super) const CONFIDENCE: f64 = 0.99;
/// Normal quantile for [`CONFIDENCE`].
const Z: f64 = 2.575_829_303_548_900_4;
/// Above this total number of samples, the normal approximation of U is used. Up to it, all counts are exact in f64.
const MAX_EXACT: usize = 50;
const N_RESAMPLES: usize = 2000;

/// A ratio and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Returns the inverse ratio.
    pub fn inverse(self) -> Interval {
        Interval {
            estimate: 1.0 / self.estimate,
            low: 1.0 / self.high,
            high: 1.0 / self.low,
        }
    }
}

/// Returns the ratio of `current` to `baseline` by ranks. `None` if there are too few samples for [`CONFIDENCE`] (five
/// per side, or four and more on the other), or one is not above 0.
pub(super) fn by_ranks(baseline: &[f64], current: &[f64]) -> Option<Interval> {
    if !baseline
        .iter()
        .chain(current)
        .all(|sample| *sample > 0.0 && sample.is_finite())
    {
        return None;
    }
    let k = rank(baseline.len(), current.len())?;
    let mut ratios = Vec::with_capacity(baseline.len() * current.len());
    for b in baseline {
        ratios.extend(current.iter().map(|c| c / b));
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let n = ratios.len();
    // The geometric mean of the middle two, so that swapping the sides inverts it.
    let middle = (ratios[(n - 1) / 2] * ratios[n / 2]).sqrt();
    Some(Interval {
        estimate: middle,
        low: ratios[k - 1],
        high: ratios[n - k],
    })
}

/// Returns the largest k >= 1 with P(U <= k - 1) <= (1 - [`CONFIDENCE`]) / 2.
fn rank(n: usize, m: usize) -> Option<usize> {
    if n == 0 || m == 0 {
        return None;
    }
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let k = match n + m <= MAX_EXACT {
        true => {
            let counts = u_counts(n, m);
            let all: f64 = counts.iter().sum();
            let mut below = 0.0;
            let within = counts.iter().take_while(|count| {
                below += **count / all;
                below <= tail
            });
            within.count()
        }
        false => {
            let (n, m) = (n as f64, m as f64);
            let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
            // Negative numbers become 0.
            (n * m / 2.0 - Z * deviation + 0.5).floor() as usize
        }
    };
    (k > 0).then_some(k)
}

/// Returns the number of orders of n and m distinct values for each U: the coefficients of the Gaussian binomial of n +
/// m over n.
fn u_counts(n: usize, m: usize) -> Vec<f64> {
    let mut counts = vec![0.0; n * m + 1];
    counts[0] = 1.0;
    for i in 1..=n {
        // Multiply by (1 - q^(m + i)), divide by (1 - q^i).
        for u in (m + i..=n * m).rev() {
            counts[u] -= counts[u - m - i];
        }
        for u in i..=n * m {
            counts[u] += counts[u - i];
        }
    }
    counts
}

/// A value and its relative standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Uncertain {
    pub value: f64,
    pub relative_error: f64,
}

/// Returns the ratio of `current` to `baseline` by their spreads. `None` if one is not above 0.
pub(super) fn by_spread(baseline: Uncertain, current: Uncertain) -> Option<Interval> {
    let estimate = current.value / baseline.value;
    let error = baseline.relative_error.hypot(current.relative_error);
    let factor = (Z * error).exp();
    (estimate > 0.0 && estimate.is_finite() && factor.is_finite()).then_some(Interval {
        estimate,
        low: estimate / factor,
        high: estimate * factor,
    })
}

/// Returns the ratio of a statistic of `current` to that of `baseline`, by resampling both. Deterministic. `None` with
/// fewer than ten samples on a side, or if one is not above 0.
pub(super) fn by_bootstrap(
    baseline: &[f64],
    current: &[f64],
    statistic: Statistic,
) -> Option<Interval> {
    let usable = |samples: &[f64]| {
        samples.len() >= 10
            && samples
                .iter()
                .all(|sample| *sample > 0.0 && sample.is_finite())
    };
    if !usable(baseline) || !usable(current) {
        return None;
    }
    let mut random = Random(0);
    let mut of_resampled = |samples: &[f64]| statistic.of(&mut random.resample(samples));
    let mut ratios: Vec<f64> = (0..N_RESAMPLES)
        .map(|_| of_resampled(current) / of_resampled(baseline))
        .collect();
    let tail = (1.0 - CONFIDENCE) / 2.0;
    Some(Interval {
        estimate: statistic.of(&mut current.to_vec()) / statistic.of(&mut baseline.to_vec()),
        low: Statistic::Quantile(tail).of(&mut ratios),
        high: Statistic::Quantile(1.0 - tail).of(&mut ratios),
    })
}

/// A deterministic pseudo-random generator (splitmix64).
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Draws `samples.len()` samples with replacement.
    fn resample(&mut self, samples: &[f64]) -> Vec<f64> {
        let n = samples.len() as u64;
        (0..n)
            .map(|_| samples[(self.next() % n) as usize])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u_matches_published_critical_values() {
        // Two-sided 0.01: the largest significant U, as in published tables.
        for (n, m, expected) in [
            (4, 4, None),
            (4, 6, Some(0)),
            (5, 5, Some(0)),
            (5, 8, Some(2)),
            (6, 6, Some(2)),
            (7, 7, Some(4)),
            (8, 8, Some(7)),
            (9, 9, Some(11)),
            (10, 10, Some(16)),
            (10, 20, Some(42)),
            (20, 20, Some(105)),
        ] {
            // U = k - 1 is the largest.
            assert_eq!(rank(n, m).map(|k| k - 1), expected, "{n} and {m}");
            assert_eq!(rank(m, n), rank(n, m));
        }
        assert_eq!(rank(0, 9), None);
        // There is no step where the approximation takes over.
        let exact = u_counts(26, 26);
        let all: f64 = exact.iter().sum();
        let k = rank(26, 26).unwrap();
        let below: f64 = exact[..k].iter().sum();
        let above: f64 = exact[..k + 2].iter().sum();
        assert!(below / all < 0.0052 && above / all > 0.0049, "{k}");
    }

    #[test]
    fn u_counts_match_enumeration() {
        // All choices of n places among n + m.
        for (n, m) in [(1, 1), (2, 3), (4, 4), (3, 6)] {
            let mut counted = vec![0.0; n * m + 1];
            for places in 0u32..1 << (n + m) {
                if places.count_ones() as usize != n {
                    continue;
                }
                let mut u = 0;
                let mut below = 0;
                for place in 0..n + m {
                    match places >> place & 1 {
                        1 => u += below,
                        _ => below += 1,
                    }
                }
                counted[u] += 1.0;
            }
            assert_eq!(u_counts(n, m), counted, "{n} and {m}");
        }
    }

    #[test]
    fn computes_ratios_by_ranks() {
        // With five and five samples, the interval spans all 25 ratios, and the estimate is the 13th.
        let a = [1.0, 1.1, 1.2, 1.3, 1.4];
        let b = [2.0, 2.1, 2.2, 2.3, 2.4];
        let interval = by_ranks(&a, &b).unwrap();
        let mut all: Vec<f64> = a.iter().flat_map(|a| b.map(|b| b / a)).collect();
        all.sort_by(f64::total_cmp);
        assert_eq!(interval.low, 2.0 / 1.4);
        assert_eq!(interval.high, 2.4);
        assert!((interval.estimate / all[12] - 1.0).abs() < 1e-12);
        let back = by_ranks(&b, &a).unwrap().inverse();
        assert!((back.low / interval.low - 1.0).abs() < 1e-12);
        assert!((back.estimate / interval.estimate - 1.0).abs() < 1e-12);
        assert_eq!(by_ranks(&a[..4], &b[..4]), None);
        assert_eq!(by_ranks(&[0.0; 9], &b), None);
        assert_eq!(by_ranks(&a, &[f64::NAN; 9]), None);
    }

    #[test]
    fn bootstrap_is_deterministic_and_contains_the_estimate() {
        let a: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i % 7)).collect();
        let b: Vec<f64> = a.iter().map(|a| 2.0 * a).collect();
        let interval = by_bootstrap(&a, &b, Statistic::Quantile(0.95)).unwrap();
        assert_eq!(
            by_bootstrap(&a, &b, Statistic::Quantile(0.95)),
            Some(interval)
        );
        assert!((interval.estimate - 2.0).abs() < 1e-12, "{interval:?}");
        assert!(interval.low > 1.9 && interval.low <= 2.0, "{interval:?}");
        assert!(interval.high >= 2.0 && interval.high < 2.1, "{interval:?}");
        assert_eq!(by_bootstrap(&a[..9], &b, Statistic::Mean), None);
    }

    #[test]
    fn spreads_widen_the_interval() {
        let at = |value, relative_error| Uncertain {
            value,
            relative_error,
        };
        let exact = by_spread(at(10.0, 0.0), at(11.0, 0.0)).unwrap();
        assert_eq!((exact.low, exact.estimate, exact.high), (1.1, 1.1, 1.1));
        let wide = by_spread(at(10.0, 0.03), at(11.0, 0.04)).unwrap();
        // exp(2.5758 * 0.05) = 1.13745.
        assert!((wide.high / 1.1 - 1.137_45).abs() < 1e-4, "{wide:?}");
        assert!((1.1 / wide.low - 1.137_45).abs() < 1e-4, "{wide:?}");
        assert_eq!(by_spread(at(0.0, 0.1), at(1.0, 0.1)), None);
        assert_eq!(by_spread(at(1.0, f64::INFINITY), at(1.0, 0.1)), None);
    }
}
