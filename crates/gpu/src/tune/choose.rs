//! Chooses the fastest of several candidates from interleaved samples.
//!
//! Samples are compared only within a round, since a changing clock affects all samples of a round. No distribution is
//! assumed (sign test): a candidate that is not faster than the default by [`GAIN`] wins at most half of the rounds on
//! average, and wins almost all of them with a probability that is a sum of binomial coefficients. With more candidates
//! it is more likely that one of them is lucky, so each gets an equal share of the risk (Bonferroni).

/// Minimum gain: a smaller one is not worth deviating from the default.
const GAIN: f32 = 0.01;
/// The probability of choosing a candidate that is not faster.
const RISK: f64 = 0.05;

/// Returns the index of the fastest candidate. `samples` is `[candidates, rounds]` in any unit of time, the default
/// first. The default wins unless another candidate is significantly faster.
pub fn choose(samples: &[&[f32]]) -> usize {
    let Some((baseline, others)) = samples.split_first() else {
        return 0;
    };
    let n_rounds = samples.iter().map(|times| times.len()).min().unwrap_or(0);
    let Some(enough) = wins_needed(n_rounds, RISK / others.len().max(1) as f64) else {
        return 0;
    };
    let mut chosen = (0, 1.0);
    for (i, times) in others.iter().enumerate() {
        let pairs = || times[..n_rounds].iter().zip(&baseline[..n_rounds]);
        let wins = pairs().filter(|&(time, baseline)| *time < (1.0 - GAIN) * baseline);
        let mut ratios: Vec<f32> = pairs().map(|(time, baseline)| time / baseline).collect();
        ratios.sort_by(f32::total_cmp);
        let ratio = ratios[n_rounds / 2];
        if wins.count() >= enough && ratio < chosen.1 {
            chosen = (i + 1, ratio);
        }
    }
    chosen.0
}

/// Returns the least number of wins in `n` rounds that a candidate without advantage reaches with a probability of at
/// most `risk`; `None` if even winning all rounds is more likely.
fn wins_needed(n: usize, risk: f64) -> Option<usize> {
    // Probability of exactly `wins`, from `n` down.
    let mut exactly = 0.5f64.powi(n as i32);
    let (mut at_least, mut needed) = (0.0, None);
    for wins in (1..=n).rev() {
        at_least += exactly;
        if at_least > risk {
            break;
        }
        needed = Some(wins);
        exactly *= wins as f64 / (n - wins + 1) as f64;
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From tables of the binomial distribution with p = 1/2.
    #[test]
    fn significant_wins() {
        for (n, risk, needed) in [
            (4, 0.05, None),
            (5, 0.05, Some(5)),
            (10, 0.05, Some(9)),
            (15, 0.05, Some(12)),
            (15, 0.01, Some(13)),
            (15, 0.001, Some(14)),
            (20, 0.05, Some(15)),
            (0, 0.05, None),
        ] {
            assert_eq!(wins_needed(n, risk), needed, "{n} rounds, {risk}");
        }
    }

    /// Times as measured on a GPU with a drifting clock: 15 rounds around `base`.
    fn series(base: f32, noise: f32) -> Vec<f32> {
        let drift = (0..15).map(|i| 1.0 + 0.004 * i as f32);
        let wave = [0.0, 1.0, -1.0, 0.5, -0.5];
        let noise = (0..15).map(|i| 1.0 + noise * wave[i * 7 % 5]);
        drift.zip(noise).map(|(d, n)| base * d * n).collect()
    }

    #[test]
    fn takes_only_clear_gains() {
        let baseline = series(10.0, 0.001);
        let of = |others: &[Vec<f32>]| {
            let all: Vec<&[f32]> = [&baseline]
                .into_iter()
                .chain(others)
                .map(|w| &w[..])
                .collect();
            choose(&all)
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[series(9.0, 0.001)]), 1, "10 % faster");
        assert_eq!(of(&[series(9.95, 0.001)]), 0, "0.5 % is not worth it");
        assert_eq!(of(&[series(10.5, 0.001)]), 0, "slower");
        let three = [series(9.5, 0.001), series(9.0, 0.001), series(9.2, 0.001)];
        assert_eq!(of(&three), 2, "the fastest");
        let mut lucky = series(10.0, 0.001);
        lucky[..9].iter_mut().for_each(|ms| *ms *= 0.8);
        assert_eq!(of(&[lucky]), 0, "faster in 9 of 15 rounds");
        assert_eq!(of(&[series(9.8, 0.2)]), 0, "within the noise");
        let mut one_hiccup = series(9.0, 0.001);
        one_hiccup[7] = 50.0;
        assert_eq!(of(&[one_hiccup]), 1, "one interruption does not matter");
    }

    #[test]
    fn keeps_the_default_for_few_or_strange_samples() {
        assert_eq!(choose(&[]), 0);
        assert_eq!(choose(&[&[], &[]]), 0);
        assert_eq!(choose(&[&[1.0; 3], &[0.1; 3]]), 0, "too few");
        assert_eq!(choose(&[&[1.0; 15], &[f32::NAN; 15]]), 0);
        assert_eq!(
            choose(&[&[0.0; 15], &[0.0; 15]]),
            0,
            "the clock stands still"
        );
    }
}
