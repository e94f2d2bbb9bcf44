//! The hidden values of a sequence's tokens, which the checking model made, until the drafter has taken them.

use std::ops::Range;

/// At least so many of the last tokens' hidden values wait, and less than twice as many: a drafter sees no more of a long prompt.
pub(crate) const MOST_WAITING: usize = 2048;

/// Hidden values of consecutive tokens.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    width: usize,
    /// The index of the first token.
    first: usize,
    /// `[n_tokens, width]`.
    values: Vec<f32>,
}

impl Hidden {
    pub(super) fn first(&self) -> usize {
        self.first
    }

    fn end(&self) -> usize {
        self.first + self.values.len() / self.width.max(1)
    }

    /// Adds those of tokens from `first` on, in place of older ones. What does not follow these begins anew.
    pub(super) fn add(&mut self, width: usize, first: usize, values: &[f32]) {
        self.width = width;
        match first >= self.first && first <= self.end() {
            true => self.values.truncate((first - self.first) * width),
            false => (self.first, self.values) = (first, Vec::new()),
        }
        self.values.extend_from_slice(values);
        let n = self.values.len() / width;
        // Not one by one: all others are moved.
        if n >= 2 * MOST_WAITING {
            self.drop_rows(n - MOST_WAITING);
        }
    }

    /// Whether those of the token before each of `tokens` are here.
    pub(super) fn has_before(&self, tokens: Range<usize>) -> bool {
        tokens.start > self.first && tokens.end <= self.end() + 1
    }

    /// Returns those of the token before `index`.
    pub(super) fn before(&self, index: usize) -> &[f32] {
        let row = index - 1 - self.first;
        &self.values[row * self.width..(row + 1) * self.width]
    }

    /// Forgets those of the tokens from `index` on.
    pub(super) fn drop_from(&mut self, index: usize) {
        let n_kept = index.saturating_sub(self.first);
        self.values.truncate(n_kept * self.width);
    }

    /// Forgets what is not needed for the token before `next` and later ones.
    pub(super) fn drop_before(&mut self, next: usize) {
        let n_rows = self.end() - self.first;
        let n = next.saturating_sub(self.first + 2).min(n_rows);
        self.drop_rows(n);
    }

    fn drop_rows(&mut self, n: usize) {
        self.values.drain(..n * self.width);
        self.first += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(tokens: Range<usize>) -> Vec<f32> {
        tokens.flat_map(|i| [i as f32, -(i as f32)]).collect()
    }

    #[test]
    fn keeps_what_follows_and_begins_anew_after_a_gap() {
        let mut hidden = Hidden::default();
        hidden.add(2, 3, &rows(3..7));
        assert!(hidden.has_before(4..8) && !hidden.has_before(3..4) && !hidden.has_before(8..9));
        assert_eq!(hidden.before(6), [5.0, -5.0]);
        hidden.add(2, 5, &rows(15..17));
        assert_eq!(hidden.before(6), [15.0, -15.0]);
        assert!(hidden.has_before(4..8) && !hidden.has_before(4..9));
        hidden.drop_before(6);
        assert!(hidden.has_before(5..8) && !hidden.has_before(4..8));
        hidden.add(2, 9, &rows(9..10));
        assert_eq!(hidden.first(), 9);
        assert!(hidden.has_before(10..11) && !hidden.has_before(8..9));
    }

    #[test]
    fn keeps_the_last_of_many() {
        let mut hidden = Hidden::default();
        hidden.add(2, 0, &rows(0..2 * MOST_WAITING - 1));
        assert_eq!(hidden.first(), 0);
        hidden.add(2, 2 * MOST_WAITING - 1, &rows(7..9));
        assert_eq!(hidden.first(), MOST_WAITING + 1);
        assert_eq!(hidden.before(2 * MOST_WAITING), [7.0, -7.0]);
    }
}
