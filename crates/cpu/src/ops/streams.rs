//! Residual streams side by side in a row (AltUp, Baykal et al. 2023), and sparse activations: the operations of Gemma 3n.

use rocmforge_plan::OutMode;

use super::elementwise::{AddScaled, ScaleBy};
use super::norm::{sum, sum_of_squares};
use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// `out[row, i] (+)= sum(weights[row, i, j] * x[row, j])` over the parts `j` of a row of `x`, for the parts `i` of a row of
/// `out`, all of the same width.
///
/// - `x` [n_rows, n_in, width]
/// - `weights` [n_rows, n_out, n_in], or [n_out, n_in] for all rows
/// - `out` [n_rows, n_out, width]
///
/// # Panics
/// If the shapes do not match.
pub fn mix(
    isa: Isa,
    pool: &Pool,
    [n_rows, n_in, n_out]: [usize; 3],
    weights: &[f32],
    x: &[f32],
    (mode, out): (OutMode, &mut [f32]),
) {
    if n_rows == 0 {
        return;
    }
    let n_weights = n_in * n_out;
    let is_same = weights.len() == n_weights;
    assert!(
        is_same || weights.len() == n_rows * n_weights,
        "weights are [n_out, n_in], for each row or for all"
    );
    assert!(
        x.len().is_multiple_of(n_rows * n_in),
        "x is [n_rows, n_in, width]"
    );
    let width = x.len() / (n_rows * n_in);
    assert_eq!(
        out.len(),
        n_rows * n_out * width,
        "out is [n_rows, n_out, width]"
    );
    if width == 0 {
        return;
    }
    let per_task = rows_per_task(pool, n_rows, n_weights * width);
    pool.for_each_rows(out, n_out * width, per_task, &|first, out| {
        for (row, out) in (first..).zip(out.chunks_exact_mut(n_out * width)) {
            let weights = match is_same {
                true => weights,
                false => &weights[row * n_weights..][..n_weights],
            };
            let x = &x[row * n_in * width..][..n_in * width];
            for (out, weights) in out.chunks_exact_mut(width).zip(weights.chunks_exact(n_in)) {
                if mode == OutMode::Store {
                    out.fill(0.0);
                }
                add_parts(isa, weights, x, out);
            }
        }
    });
}

/// `out += sum(weights[j] * x[j])`: `x` [weights.len(), out.len()].
fn add_parts(isa: Isa, weights: &[f32], x: &[f32], out: &mut [f32]) {
    let width = out.len();
    match isa.vector() {
        None => {
            for (i, out) in out.iter_mut().enumerate() {
                let terms = weights.iter().enumerate();
                let terms =
                    terms.map(|(j, &weight)| f64::from(weight) * f64::from(x[j * width + i]));
                *out = (f64::from(*out) + terms.sum::<f64>()) as f32;
            }
        }
        Some(isa) => {
            for (&factor, x) in weights.iter().zip(x.chunks_exact(width)) {
                isa.run(AddScaled { factor, x, out });
            }
        }
    }
}

/// `x[row, i] *= |like[row]| / |x[row, i]|`, where `|x|` is the root of the sum of squares: `like` [n_rows, width], `x`
/// [n_rows, n, width]. Parts of zeros stay zeros.
///
/// # Panics
/// If the shapes do not match.
pub fn match_length(isa: Isa, pool: &Pool, (like, width): (&[f32], usize), x: &mut [f32]) {
    assert!(
        width > 0 && like.len().is_multiple_of(width),
        "like is [n_rows, width]"
    );
    let n_rows = like.len() / width;
    if n_rows == 0 {
        assert!(x.is_empty(), "x has the rows of like");
        return;
    }
    assert!(
        x.len().is_multiple_of(n_rows * width),
        "x is [n_rows, n, width]"
    );
    let of_row = x.len() / n_rows;
    let per_task = rows_per_task(pool, n_rows, 3 * of_row);
    pool.for_each_rows(x, of_row, per_task, &|first, x| {
        let rows = x.chunks_exact_mut(of_row);
        for (like, x) in like[first * width..].chunks_exact(width).zip(rows) {
            let wanted = squares(isa, like);
            for x in x.chunks_exact_mut(width) {
                let found = squares(isa, x).max(f64::from(f32::MIN_POSITIVE));
                let factor = (wanted / found).sqrt() as f32;
                match isa.vector() {
                    None => x.iter_mut().for_each(|x| *x *= factor),
                    Some(isa) => isa.run(ScaleBy { factor, x }),
                }
            }
        }
    });
}

/// Returns the sum of squares.
fn squares(isa: Isa, x: &[f32]) -> f64 {
    match isa.vector() {
        None => x.iter().map(|&x| f64::from(x) * f64::from(x)).sum(),
        Some(isa) => f64::from(isa.run(Squares { x })),
    }
}

struct Squares<'a> {
    x: &'a [f32],
}

impl Kernel for Squares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (xs, tail) = S::chunks(self.x);
        sum_of_squares(s, xs, tail)
    }
}

/// `x = max(x - mean(x) - factor * deviation(x), 0)` on rows of `width` values; the deviation is that of a sample.
///
/// # Panics
/// If `x` is not whole rows.
pub fn sparsify(isa: Isa, pool: &Pool, factor: f32, (x, width): (&mut [f32], usize)) {
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x holds whole rows"
    );
    let per_task = rows_per_task(pool, x.len() / width, 4 * width);
    pool.for_each_rows(x, width, per_task, &|_, x| {
        for x in x.chunks_exact_mut(width) {
            let row = Sparsify { factor, x };
            match isa.vector() {
                None => row.scalar(),
                Some(isa) => isa.run(row),
            }
        }
    });
}

/// A row to be made sparse.
struct Sparsify<'a> {
    factor: f32,
    x: &'a mut [f32],
}

impl Sparsify<'_> {
    /// Number of values that the sum of squared differences is divided by.
    fn n_free(&self) -> usize {
        (self.x.len() - 1).max(1)
    }

    fn scalar(self) {
        let n_free = self.n_free() as f64;
        let mean = self.x.iter().map(|&x| f64::from(x)).sum::<f64>() / self.x.len() as f64;
        let squares = self.x.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let least = mean + f64::from(self.factor) * (squares.sum::<f64>() / n_free).sqrt();
        for x in self.x {
            let rest = f64::from(*x) - least;
            // `f64::max` would lose NaN.
            *x = if rest < 0.0 { 0.0 } else { rest as f32 };
        }
    }
}

impl Kernel for Sparsify<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n_free = self.n_free() as f32;
        let x = self.x;
        let mean = s.splat(sum(s, x) / x.len() as f32);
        let (xs, x_tail) = S::chunks_mut(x);
        for x in xs {
            s.store_chunk(s.sub(s.load_chunk(x), mean), x);
        }
        s.store_part(s.sub(s.load_part(x_tail, 0.0), mean), x_tail);
        let (xs, x_tail) = S::chunks(x);
        let deviation = (sum_of_squares(s, xs, x_tail) / n_free).sqrt();
        let least = s.splat(self.factor * deviation);
        let (xs, x_tail) = S::chunks_mut(x);
        for x in xs {
            s.store_chunk(s.max(s.splat(0.0), s.sub(s.load_chunk(x), least)), x);
        }
        s.store_part(
            s.max(s.splat(0.0), s.sub(s.load_part(x_tail, 0.0), least)),
            x_tail,
        );
    }
}
