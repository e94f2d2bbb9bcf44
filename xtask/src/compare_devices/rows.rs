//! How far rows of logits are apart: the mean squared difference over the variance of the expected logits.
//!
//! A mixture sends a token that is nearly between two experts to either, and what the wrong one adds is nothing like
//! what the right one would have. Such rows are counted and left out, where the expected routing says that they are.

/// A gap between the last expert that is taken and the first that is not, in standard deviations of the router's logits,
/// that rounding of activations to codes can close: these move logits of later layers by some hundredths.
const NEAR: f64 = 0.1;
/// The part of rows that may be left out, as 1 of so many; of mixtral-8x7b about 1 of 100 is, between AVX2 and AVX-512.
/// Where experts are computed wrongly, nearly all rows are outside of the bound, also those of clear routers.
const MOST_REROUTED: usize = 8;

/// What was compared at one place of a text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Row {
    /// Of the expected logits: how many, their sum, and that of their squares.
    n: usize,
    sum: f64,
    squares: f64,
    /// Values that were compared, and the sum of their squared differences.
    n_compared: usize,
    squared: f64,
    /// The least gap of a router here, in standard deviations; infinite without a mixture.
    margin: f64,
}

/// How far rows are apart.
#[derive(Debug, PartialEq)]
pub(super) struct Difference {
    /// Not a number if nothing could be compared.
    pub(super) error: f64,
    /// Rows that went to other experts and are not in `error`.
    pub(super) n_rerouted: usize,
    pub(super) is_within: bool,
}

impl Row {
    /// A row that is expected to have these logits, and differences of what was found.
    pub(super) fn new(logits: &[f32], margin: f64, differences: impl Iterator<Item = f64>) -> Row {
        let mut row = Row {
            n: logits.len(),
            margin,
            ..Row::default()
        };
        for &logit in logits {
            row.sum += f64::from(logit);
            row.squares += f64::from(logit).powi(2);
        }
        for difference in differences {
            row.squared += difference.powi(2);
            row.n_compared += 1;
        }
        row
    }

    /// As [`Row::new`], where what was found is known up to a constant.
    pub(super) fn up_to_constant(logits: &[f32], margin: f64, differences: &[f64]) -> Row {
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let row = Row::new(logits, margin, differences.iter().map(|x| x - mean));
        Row {
            // The constant takes one of them.
            n_compared: row.n_compared.saturating_sub(1),
            ..row
        }
    }
}

impl Difference {
    /// No rows are within any bound; what is not a number is outside of all.
    pub(super) fn of(rows: &[Row], bound: f64) -> Difference {
        if rows.is_empty() {
            return Difference {
                error: 0.0,
                n_rerouted: 0,
                is_within: true,
            };
        }
        let n = rows.iter().map(|row| row.n).sum::<usize>() as f64;
        let mean = rows.iter().map(|row| row.sum).sum::<f64>() / n;
        let variance = rows.iter().map(|row| row.squares).sum::<f64>() / n - mean * mean;
        let error = |rows: &[&Row]| {
            let squared = rows.iter().map(|row| row.squared).sum::<f64>();
            let n_compared = rows.iter().map(|row| row.n_compared).sum::<usize>();
            squared / n_compared as f64 / variance
        };
        let (rerouted, kept): (Vec<&Row>, Vec<&Row>) = rows
            .iter()
            .partition(|row| row.margin < NEAR && error(&[row]) >= bound);
        let error = error(&kept);
        Difference {
            error,
            n_rerouted: rerouted.len(),
            is_within: error < bound && MOST_REROUTED * rerouted.len() <= rows.len(),
        }
    }
}

/// How clearly a router takes `n_used` experts: the gap between the logits of the last of them and of the next, in
/// standard deviations of all. Infinite if it takes all.
pub(super) fn margin(logits: &[f32], n_used: usize) -> f64 {
    let n = logits.len() as f64;
    let mut sorted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (Some(taken), Some(next)) = (sorted.get(n_used.wrapping_sub(1)), sorted.get(n_used)) else {
        return f64::INFINITY;
    };
    let mean = sorted.iter().sum::<f64>() / n;
    let variance = sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (taken - next) / variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAR: f64 = f64::INFINITY;
    const CLOSE: f64 = 0.01;

    /// Logits of variance 1, and every value off by `error.sqrt()`.
    fn row(error: f64, margin: f64) -> Row {
        let expected = [1.0f32, -1.0, 1.0, -1.0];
        Row::new(&expected, margin, [error.sqrt(); 4].into_iter())
    }

    /// Eight rows, of which these are the first; the errors of the others are 1e-4.
    fn with(first: &[Row]) -> Vec<Row> {
        let mut rows = vec![row(1e-4, CLEAR); 8];
        rows[..first.len()].copy_from_slice(first);
        rows
    }

    #[test]
    fn rows_are_left_out_only_where_the_router_was_undecided() {
        for (rows, error, n_rerouted, is_within) in [
            (vec![], 0.0, 0, true),
            (vec![row(1e-4, CLEAR); 4], 1e-4, 0, true),
            (vec![row(1e-2, CLEAR); 4], 1e-2, 0, false),
            // A mean within the bound, as one row counts with the others.
            (
                vec![row(2e-3, CLEAR), row(0.0, CLEAR), row(1e-3, CLEAR)],
                1e-3,
                0,
                false,
            ),
            (
                vec![row(2e-3, CLEAR), row(0.0, CLEAR), row(4e-4, CLEAR)],
                8e-4,
                0,
                true,
            ),
            // One of eight went elsewhere; two are too many; and one whose router was decided is wrong.
            (with(&[row(0.5, CLOSE), row(1e-4, CLOSE)]), 1e-4, 1, true),
            (with(&[row(0.5, CLOSE), row(0.5, CLOSE)]), 1e-4, 2, false),
            (
                with(&[row(0.8001, CLEAR), row(1e-4, CLOSE)]),
                0.1001,
                0,
                false,
            ),
        ] {
            let found = Difference::of(&rows, 1e-3);
            assert!((found.error - error).abs() < 1e-9, "{rows:?}: {found:?}");
            assert_eq!(
                (found.n_rerouted, found.is_within),
                (n_rerouted, is_within),
                "{rows:?}"
            );
        }
    }

    #[test]
    fn what_is_no_number_or_was_not_compared_is_outside() {
        let lost = Row::new(&[1.0, 2.0], CLOSE, [f64::NAN].into_iter());
        let nothing = Row::new(&[1.0, 2.0], CLOSE, std::iter::empty());
        let only_constant = Row::up_to_constant(&[1.0, 2.0], CLOSE, &[3.0]);
        for rows in [
            [lost, row(0.0, CLOSE)].as_slice(),
            &[nothing],
            &[only_constant],
            &[row(1.0, CLOSE)],
        ] {
            assert!(!Difference::of(rows, 1e-3).is_within, "{rows:?}");
        }
    }

    /// Of 0, 1, 2, 3 and 4 the variance is 2.
    #[test]
    fn margins_are_in_standard_deviations() {
        let logits = [3.0, 0.0, 4.0, 1.0, 2.0];
        assert!((margin(&logits, 2) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(margin(&[1.0, 2.0, 2.0, 0.0], 1), 0.0);
        assert_eq!(margin(&logits, 5), f64::INFINITY);
    }
}
