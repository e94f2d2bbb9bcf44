//! Which of several ways is the fastest, by samples that were taken in turn.
//!
//! Samples of a round are compared with each other, since a clock that changes during the measurement changes all of a
//! round. How samples are spread is not assumed (sign test): if a way were not faster than the usual one by [`GAIN`], it
//! would be so in half of the rounds at most, and in almost all of them with a probability that is a sum of binomial
//! coefficients. The more ways there are, the more often one of them is lucky, so that each has a part of that risk
//! (Bonferroni).

/// A way has to be faster by this part: less is not worth another kernel than the usual one.
const GAIN: f32 = 0.01;
/// The probability that a way is taken which is none the faster.
const RISK: f64 = 0.05;

/// The place of the fastest way among `samples`, `[ways, rounds]`, any unit of time, the usual way first. The usual one
/// stays unless another is faster beyond doubt.
pub fn choose(samples: &[&[f32]]) -> usize {
    let Some((usual, others)) = samples.split_first() else {
        return 0;
    };
    let n_rounds = samples.iter().map(|of_way| of_way.len()).min().unwrap_or(0);
    let Some(enough) = wins_needed(n_rounds, RISK / others.len().max(1) as f64) else {
        return 0;
    };
    let mut chosen = (0, 1.0);
    for (i, of_way) in others.iter().enumerate() {
        let pairs = || of_way[..n_rounds].iter().zip(&usual[..n_rounds]);
        let wins = pairs().filter(|&(way, usual)| *way < (1.0 - GAIN) * usual);
        let mut ratios: Vec<f32> = pairs().map(|(way, usual)| way / usual).collect();
        ratios.sort_by(f32::total_cmp);
        let ratio = ratios[n_rounds / 2];
        if wins.count() >= enough && ratio < chosen.1 {
            chosen = (i + 1, ratio);
        }
    }
    chosen.0
}

/// The fewest of `n` rounds that a way which is no faster wins with at most this probability; `None` if it may win all of
/// them so.
fn wins_needed(n: usize, risk: f64) -> Option<usize> {
    // Of exactly `wins`, from all down.
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
    fn wins_that_cannot_be_luck() {
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

    /// Times as a GPU with a drifting clock might give them: 15 rounds around `base`.
    fn series(base: f32, noise: f32) -> Vec<f32> {
        let drift = (0..15).map(|i| 1.0 + 0.004 * i as f32);
        let wave = [0.0, 1.0, -1.0, 0.5, -0.5];
        let noise = (0..15).map(|i| 1.0 + noise * wave[i * 7 % 5]);
        drift.zip(noise).map(|(d, n)| base * d * n).collect()
    }

    #[test]
    fn only_a_clear_gain_is_taken() {
        let usual = series(10.0, 0.001);
        let of = |ways: &[Vec<f32>]| {
            let ways: Vec<&[f32]> = [&usual].into_iter().chain(ways).map(|w| &w[..]).collect();
            choose(&ways)
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[series(9.0, 0.001)]), 1, "a tenth faster");
        assert_eq!(
            of(&[series(9.95, 0.001)]),
            0,
            "half a percent is not worth it"
        );
        assert_eq!(of(&[series(10.5, 0.001)]), 0, "slower");
        let three = [series(9.5, 0.001), series(9.0, 0.001), series(9.2, 0.001)];
        assert_eq!(of(&three), 2, "the best of those that are faster");
        let mut lucky = series(10.0, 0.001);
        lucky[..9].iter_mut().for_each(|ms| *ms *= 0.8);
        assert_eq!(of(&[lucky]), 0, "in 9 of 15 rounds");
        assert_eq!(of(&[series(9.8, 0.2)]), 0, "within the noise");
        let mut one_hiccup = series(9.0, 0.001);
        one_hiccup[7] = 50.0;
        assert_eq!(of(&[one_hiccup]), 1, "an interruption is not the way's");
    }

    #[test]
    fn few_or_strange_samples_change_nothing() {
        assert_eq!(choose(&[]), 0);
        assert_eq!(choose(&[&[], &[]]), 0);
        assert_eq!(choose(&[&[1.0; 3], &[0.1; 3]]), 0, "too few");
        assert_eq!(choose(&[&[1.0; 15], &[f32::NAN; 15]]), 0);
        assert_eq!(
            choose(&[&[0.0; 15], &[0.0; 15]]),
            0,
            "a clock that stands still"
        );
    }
}
