//! One token of linear attention in vectors of columns: what it does to a block of a head's state, with the factors of each
//! kind of decay.

use rocmforge_plan::StateRule;

use crate::generic::lanes::exp;
use crate::generic::simd::Simd;

/// What a block of a state gets from one token.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    /// The values of the block.
    pub(super) v: &'a [f32],
    /// The logarithm of the factors: one, one of each channel, or what the rates of the block's columns are multiplied with.
    pub(super) decay: &'a [f32],
    /// One, or one of each column of the block.
    pub(super) beta: &'a [f32],
}

/// Loads the values of a block's columns; those of padding are zeros.
#[inline(always)]
pub(super) fn columns<S: Simd, const N: usize>(s: S, from: &[f32]) -> [S::F32; N] {
    let mut to = [s.splat(0.0); N];
    for (to, from) in to.iter_mut().zip(from.chunks(S::LANES)) {
        *to = s.load_part(from, 0.0);
    }
    to
}

/// The factors of one token, on a block of `N` vectors of columns.
pub(super) trait Factors<S: Simd, const N: usize>: Copy {
    /// Returns the factors on a row of the block.
    fn of_row(self, s: S, row: usize) -> [S::F32; N];

    /// Returns the value `k` of the key, times the factor on its row; or without it, if it is the same in all rows.
    fn key(self, k: f32, row: usize) -> f32;

    /// Returns the factor that [`Factors::key`] leaves out.
    fn left_out(self, s: S) -> S::F32;

    /// Returns the factors on what is added.
    fn beta(self, s: S) -> [S::F32; N];
}

/// The factor on the state, and that on what is added.
#[derive(Clone, Copy)]
pub(super) struct OfHead(pub(super) f32, pub(super) f32);

impl<S: Simd, const N: usize> Factors<S, N> for OfHead {
    #[inline(always)]
    fn of_row(self, s: S, _: usize) -> [S::F32; N] {
        [s.splat(self.0); N]
    }

    #[inline(always)]
    fn key(self, k: f32, _: usize) -> f32 {
        k
    }

    #[inline(always)]
    fn left_out(self, s: S) -> S::F32 {
        s.splat(self.0)
    }

    #[inline(always)]
    fn beta(self, s: S) -> [S::F32; N] {
        [s.splat(self.1); N]
    }
}

/// The factors on rows, and that on what is added.
#[derive(Clone, Copy)]
pub(super) struct OfChannels<'a>(pub(super) &'a [f32], pub(super) f32);

impl<S: Simd, const N: usize> Factors<S, N> for OfChannels<'_> {
    #[inline(always)]
    fn of_row(self, s: S, row: usize) -> [S::F32; N] {
        [s.splat(self.0[row]); N]
    }

    #[inline(always)]
    fn key(self, k: f32, row: usize) -> f32 {
        k * self.0[row]
    }

    #[inline(always)]
    fn left_out(self, s: S) -> S::F32 {
        s.splat(1.0)
    }

    #[inline(always)]
    fn beta(self, s: S) -> [S::F32; N] {
        [s.splat(self.1); N]
    }
}

/// The rates of the block; what multiplies those of a column, and the factors on what is added to it.
#[derive(Clone, Copy)]
pub(super) struct OfValues<'a, S: Simd, const N: usize>(
    pub(super) &'a [[S::Chunk; N]],
    pub(super) [[S::F32; N]; 2],
);

impl<S: Simd, const N: usize> Factors<S, N> for OfValues<'_, S, N> {
    #[inline(always)]
    fn of_row(self, s: S, row: usize) -> [S::F32; N] {
        let mut factors = self.1[0];
        for (factor, rate) in factors.iter_mut().zip(&self.0[row]) {
            *factor = exp(s, s.mul(*factor, s.load_chunk(rate)));
        }
        factors
    }

    /// Not of use in the delta rule, which these factors do not have.
    #[inline(always)]
    fn key(self, k: f32, _: usize) -> f32 {
        k
    }

    #[inline(always)]
    fn left_out(self, s: S) -> S::F32 {
        s.splat(1.0)
    }

    #[inline(always)]
    fn beta(self, _: S) -> [S::F32; N] {
        self.1[1]
    }
}

/// Passes one token through a block of a state, `[k_dim]` rows of `N` vectors. Sums have two parts, of even and of odd rows,
/// which hides the latency of additions.
#[inline(always)]
pub(super) fn pass<S: Simd, const N: usize>(
    s: S,
    (rule, factors): (StateRule, impl Factors<S, N>),
    token: Token<'_>,
    state: &mut [[S::Chunk; N]],
    out: &mut [f32],
) {
    let zero = [s.splat(0.0); N];
    let mut d: [_; N] = columns(s, token.v);
    if rule == StateRule::Delta {
        let mut known = [zero; 2];
        for (at, (row, &k)) in state.iter().zip(token.k).enumerate() {
            let (k, known) = (s.splat(factors.key(k, at)), &mut known[at % 2]);
            for (known, x) in known.iter_mut().zip(row) {
                *known = s.mul_add(s.load_chunk(x), k, *known);
            }
        }
        for (i, d) in d.iter_mut().enumerate() {
            let known = s.add(known[0][i], known[1][i]);
            *d = s.sub(*d, s.mul(factors.left_out(s), known));
        }
    }
    for (d, beta) in d.iter_mut().zip(factors.beta(s)) {
        *d = s.mul(*d, beta);
    }
    let mut sums = [zero; 2];
    let keys = token.k.iter().zip(token.q);
    for (at, (row, (&k, &q))) in state.iter_mut().zip(keys).enumerate() {
        let (k, q, sums) = (s.splat(k), s.splat(q), &mut sums[at % 2]);
        let factors = factors.of_row(s, at);
        for (i, (sum, x)) in sums.iter_mut().zip(row).enumerate() {
            let new = s.mul_add(k, d[i], s.mul(factors[i], s.load_chunk(x)));
            s.store_chunk(new, x);
            *sum = s.mul_add(new, q, *sum);
        }
    }
    for (i, out) in out.chunks_mut(S::LANES).enumerate() {
        s.store_part(s.add(sums[0][i], sums[1][i]), out);
    }
}
