//! The error of rows of logits: the mean squared difference over the variance of the expected logits.
//!
//! In a MoE model, rounding may send a token that is nearly tied between two experts to the other one, which changes
//! its logits entirely. Such rows may be counted and left out, if the reference routing was nearly tied there.

/// The largest gap between the last chosen expert and the next that quantized activations may close, in standard
/// deviations of the router's logits: they move the logits of later layers by some hundredths.
const NEAR: f64 = 0.1;
/// At most 1 row of this many may be left out. Between AVX2 and AVX-512 about 1 of 100 is, for mixtral-8x7b. Where
/// experts are computed wrongly, nearly all rows are outside the bound, also those that were clearly routed.
const MOST_REROUTED: usize = 8;

/// What the error of rows may be, and which of them may be left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) error: f64,
    /// Rows with a smaller margin may be left out.
    near: f64,
}

impl Limit {
    /// Of rows that are not rerouted.
    pub(super) fn near_ties(error: f64) -> Limit {
        Limit { error, near: NEAR }
    }

    /// Of all rows.
    pub(super) fn of_all(error: f64) -> Limit {
        Limit { error, near: 0.0 }
    }
}

/// The comparison at one position of a text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Row {
    /// Count, sum and sum of squares of the expected logits.
    n: usize,
    sum: f64,
    squares: f64,
    /// Number of compared values, and the sum of their squared differences.
    n_compared: usize,
    squared: f64,
    /// The smallest [`margin`] of a router here; infinite in a dense model.
    margin: f64,
}

/// The error of rows, and whether it is within the limit.
#[derive(Debug, PartialEq)]
pub(super) struct Difference {
    /// NaN if nothing could be compared.
    pub(super) error: f64,
    /// Rows routed to other experts, left out of `error`.
    pub(super) n_rerouted: usize,
    pub(super) is_within: bool,
}

impl Row {
    /// Returns a row from the expected logits and the differences of the found ones.
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

    /// Like [`Row::new`], for values that are known up to a constant, which is fitted.
    pub(super) fn up_to_constant(logits: &[f32], margin: f64, differences: &[f64]) -> Row {
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let row = Row::new(logits, margin, differences.iter().map(|x| x - mean));
        Row {
            // Fitting the constant takes one degree of freedom.
            n_compared: row.n_compared.saturating_sub(1),
            ..row
        }
    }
}

impl Difference {
    /// Returns the error of all rows together, none left out.
    pub(super) fn error(rows: &[Row]) -> f64 {
        squared(rows.iter()) / variance(rows)
    }

    /// Returns the error of all rows together. No rows are within any limit; NaN is within none.
    pub(super) fn of(rows: &[Row], limit: Limit) -> Difference {
        if rows.is_empty() {
            return Difference {
                error: 0.0,
                n_rerouted: 0,
                is_within: true,
            };
        }
        let variance = variance(rows);
        let error = |rows: &[&Row]| squared(rows.iter().copied()) / variance;
        let (rerouted, kept): (Vec<&Row>, Vec<&Row>) = rows
            .iter()
            .partition(|row| row.margin < limit.near && error(&[row]) >= limit.error);
        let error = error(&kept);
        Difference {
            error,
            n_rerouted: rerouted.len(),
            is_within: error < limit.error && MOST_REROUTED * rerouted.len() <= rows.len(),
        }
    }
}

/// Returns the variance of the expected logits.
fn variance(rows: &[Row]) -> f64 {
    let n = rows.iter().map(|row| row.n).sum::<usize>() as f64;
    let mean = rows.iter().map(|row| row.sum).sum::<f64>() / n;
    rows.iter().map(|row| row.squares).sum::<f64>() / n - mean * mean
}

/// Returns the mean squared difference.
fn squared<'a>(rows: impl Iterator<Item = &'a Row>) -> f64 {
    let sums = rows.fold((0.0, 0), |(squared, n), row| {
        (squared + row.squared, n + row.n_compared)
    });
    sums.0 / sums.1 as f64
}

/// Returns how clearly a router chose its `n_used` experts: the gap between the logits of the last chosen and the next,
/// in standard deviations of all logits. Infinite if it takes all experts.
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
    fn leaves_out_rows_only_near_ties_of_the_router() {
        for (rows, error, n_rerouted, is_within) in [
            (vec![], 0.0, 0, true),
            (vec![row(1e-4, CLEAR); 4], 1e-4, 0, true),
            (vec![row(1e-2, CLEAR); 4], 1e-2, 0, false),
            // The bound applies to the mean of the rows.
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
            // One of eight was rerouted; two are too many; a clearly routed row counts.
            (with(&[row(0.5, CLOSE), row(1e-4, CLOSE)]), 1e-4, 1, true),
            (with(&[row(0.5, CLOSE), row(0.5, CLOSE)]), 1e-4, 2, false),
            (
                with(&[row(0.8001, CLEAR), row(1e-4, CLOSE)]),
                0.1001,
                0,
                false,
            ),
        ] {
            let found = Difference::of(&rows, Limit::near_ties(1e-3));
            assert!((found.error - error).abs() < 1e-9, "{rows:?}: {found:?}");
            assert_eq!(
                (found.n_rerouted, found.is_within),
                (n_rerouted, is_within),
                "{rows:?}"
            );
        }
    }

    #[test]
    fn leaves_out_no_row_where_all_count() {
        let rows = with(&[row(0.5, CLOSE)]);
        let error = (0.5 + 7e-4) / 8.0;
        assert!((Difference::error(&rows) - error).abs() < 1e-9);
        for (limit, is_within) in [(0.9 * error, false), (1.1 * error, true)] {
            let found = Difference::of(&rows, Limit::of_all(limit));
            assert_eq!((found.n_rerouted, found.is_within), (0, is_within));
        }
    }

    #[test]
    fn nan_and_missing_values_are_outside_any_bound() {
        let lost = Row::new(&[1.0, 2.0], CLOSE, [f64::NAN].into_iter());
        let nothing = Row::new(&[1.0, 2.0], CLOSE, std::iter::empty());
        let only_constant = Row::up_to_constant(&[1.0, 2.0], CLOSE, &[3.0]);
        for rows in [
            [lost, row(0.0, CLOSE)].as_slice(),
            &[nothing],
            &[only_constant],
            &[row(1.0, CLOSE)],
        ] {
            assert!(
                !Difference::of(rows, Limit::near_ties(1e-3)).is_within,
                "{rows:?}"
            );
        }
    }

    /// 0, 1, 2, 3 and 4 have a variance of 2.
    #[test]
    fn margins_are_in_standard_deviations() {
        let logits = [3.0, 0.0, 4.0, 1.0, 2.0];
        assert!((margin(&logits, 2) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(margin(&[1.0, 2.0, 2.0, 0.0], 1), 0.0);
        assert_eq!(margin(&logits, 5), f64::INFINITY);
    }
}
