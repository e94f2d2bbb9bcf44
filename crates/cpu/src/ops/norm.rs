//! RMS normalization (Zhang and Sennrich 2019) and layer normalization (Ba et al. 2016).

use rocmforge_plan::ActFormat;

use super::rows_per_task;
use crate::acts::{Acts, RowsFrom};
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// `out = x / sqrt(mean(x^2) + eps) * weight`, on rows of `weight.len()` values.
///
/// `x` and `out` [n_rows, weight.len()]. A row may be a token's whole state or one of its heads.
///
/// # Panics
/// If `x` is not whole rows or `out` differs from it in length.
pub fn rms_norm(isa: Isa, pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    if x.is_empty() {
        return;
    }
    let width = weight.len();
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x holds whole rows"
    );
    let rows = rows_per_task(pool, x.len() / width, width);
    pool.for_each_rows(out, width, rows, &|first, out| {
        let x = &x[first * width..first * width + out.len()];
        rms_norm_rows(isa, x, weight, eps, out);
    });
}

/// As [`rms_norm`], where each row is `n_groups` groups that are normalized on their own.
///
/// # Panics
/// As [`rms_norm`], and if a row is not whole groups.
pub fn rms_norm_groups(
    isa: Isa,
    pool: &Pool,
    x: &[f32],
    (weight, n_groups): (&[f32], usize),
    eps: f32,
    out: &mut [f32],
) {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    if x.is_empty() {
        return;
    }
    let width = checked_width(x, (weight, n_groups));
    let rows = rows_per_task(pool, x.len() / width, width);
    pool.for_each_rows(out, width, rows, &|first, out| {
        let x = &x[first * width..first * width + out.len()];
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            norm_groups_of_row(isa, x, (weight, n_groups), eps, out);
        }
    });
}

/// [`rms_norm_groups`] of the rows of `x` [n_rows, weight.len()], converted to activations of `format`: the same bits as the
/// two operations one after the other.
///
/// # Panics
/// If `x` is not whole rows, a row is not whole groups, or not whole blocks of `format`.
pub fn rms_norm_acts(
    isa: Isa,
    pool: &Pool,
    x: &[f32],
    (weight, n_groups, eps): (&[f32], usize, f32),
    format: ActFormat,
    acts: &mut Acts,
) {
    let width = checked_width(x, (weight, n_groups));
    let norm = |token: usize, out: &mut [f32]| {
        let x = &x[token * width..][..width];
        norm_groups_of_row(isa, x, (weight, n_groups), eps, out);
    };
    let shape = [x.len() / width, width];
    acts.fill(isa, pool, shape, format, RowsFrom::Computed(&norm));
}

/// The width of rows of `n_groups` groups.
fn checked_width(x: &[f32], (weight, n_groups): (&[f32], usize)) -> usize {
    let width = weight.len();
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x holds whole rows"
    );
    assert!(
        n_groups > 0 && width.is_multiple_of(n_groups),
        "rows are whole groups"
    );
    width
}

fn norm_groups_of_row(
    isa: Isa,
    x: &[f32],
    (weight, n_groups): (&[f32], usize),
    eps: f32,
    out: &mut [f32],
) {
    let width = weight.len() / n_groups;
    let groups = x.chunks_exact(width).zip(weight.chunks_exact(width));
    for ((x, weight), out) in groups.zip(out.chunks_exact_mut(width)) {
        rms_norm_rows(isa, x, weight, eps, out);
    }
}

fn rms_norm_rows(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    match isa.vector() {
        None => scalar(x, weight, eps, out),
        Some(isa) => isa.run(RmsNorm {
            x,
            weight,
            eps,
            out,
        }),
    }
}

/// Weights of a layer normalization.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormParams<'a> {
    /// `[width]`.
    pub weight: &'a [f32],
    /// `[width]`.
    pub bias: &'a [f32],
    pub eps: f32,
}

/// `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`, for rows of `width` values: `x` and `out`
/// [n_rows, width].
///
/// # Panics
/// If `x` is not whole rows, or `out` or `bias` have the wrong length.
pub fn layer_norm(isa: Isa, pool: &Pool, x: &[f32], params: &LayerNormParams<'_>, out: &mut [f32]) {
    let &LayerNormParams { weight, bias, eps } = params;
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    if x.is_empty() {
        return;
    }
    let width = weight.len();
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x holds whole rows"
    );
    assert_eq!(bias.len(), width, "bias has the shape of weight");
    let rows = rows_per_task(pool, x.len() / width, 2 * width);
    pool.for_each_rows(out, width, rows, &|first, out| {
        let x = &x[first * width..first * width + out.len()];
        let rows = LayerNorm {
            x,
            weight,
            bias,
            eps,
            out,
        };
        match isa.vector() {
            None => rows.scalar(),
            Some(isa) => isa.run(rows),
        }
    });
}

fn scalar(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / width as f64 + f64::from(eps)).sqrt();
        for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
            *out = (f64::from(x) * scale) as f32 * w;
        }
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        let (weights, weight_tail) = S::chunks(self.weight);
        for (x, out) in self
            .x
            .chunks_exact(width)
            .zip(self.out.chunks_exact_mut(width))
        {
            let (xs, x_tail) = S::chunks(x);
            let scale = 1.0 / (sum_of_squares(s, xs, x_tail) / width as f32 + self.eps).sqrt();
            let scale = s.splat(scale);
            let (outs, out_tail) = S::chunks_mut(out);
            for ((x, w), out) in xs.iter().zip(weights).zip(outs) {
                let normed = s.mul(s.load_chunk(x), scale);
                s.store_chunk(s.mul(normed, s.load_chunk(w)), out);
            }
            if !x_tail.is_empty() {
                let normed = s.mul(s.load_part(x_tail, 0.0), scale);
                s.store_part(s.mul(normed, s.load_part(weight_tail, 0.0)), out_tail);
            }
        }
    }
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl LayerNorm<'_> {
    fn scalar(self) {
        let width = self.weight.len();
        let rows = self.x.chunks_exact(width);
        for (x, out) in rows.zip(self.out.chunks_exact_mut(width)) {
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
            let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
            let scale = 1.0 / (squares / width as f64 + f64::from(self.eps)).sqrt();
            for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                let normed = (f64::from(x) - mean) * scale;
                *out = (normed * f64::from(self.weight[i]) + f64::from(self.bias[i])) as f32;
            }
        }
    }
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        let (weights, weight_tail) = S::chunks(self.weight);
        let (biases, bias_tail) = S::chunks(self.bias);
        let rows = self.x.chunks_exact(width);
        for (x, out) in rows.zip(self.out.chunks_exact_mut(width)) {
            let mean = s.splat(sum(s, x) / width as f32);
            let (xs, x_tail) = S::chunks(x);
            let (outs, out_tail) = S::chunks_mut(out);
            // Squares of the differences, because the mean square less the squared mean would cancel.
            for (x, out) in xs.iter().zip(&mut *outs) {
                s.store_chunk(s.sub(s.load_chunk(x), mean), out);
            }
            s.store_part(s.sub(s.load_part(x_tail, 0.0), mean), out_tail);
            let (xs, x_tail) = S::chunks(out);
            let variance = sum_of_squares(s, xs, x_tail) / width as f32;
            let scale = s.splat(1.0 / (variance + self.eps).sqrt());
            let (outs, out_tail) = S::chunks_mut(out);
            for ((out, w), b) in outs.iter_mut().zip(weights).zip(biases) {
                let normed = s.mul(s.load_chunk(out), scale);
                s.store_chunk(s.mul_add(normed, s.load_chunk(w), s.load_chunk(b)), out);
            }
            if !out_tail.is_empty() {
                let normed = s.mul(s.load_part(out_tail, 0.0), scale);
                let (w, b) = (s.load_part(weight_tail, 0.0), s.load_part(bias_tail, 0.0));
                s.store_part(s.mul_add(normed, w, b), out_tail);
            }
        }
    }
}

/// Sums `x` in four accumulators, like [`sum_of_squares`].
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (xs, tail) = S::chunks(x);
    let mut acc = [s.splat(0.0); 4];
    let (fours, rest) = xs.as_chunks::<4>();
    for four in fours {
        for j in 0..4 {
            acc[j] = s.add(acc[j], s.load_chunk(&four[j]));
        }
    }
    for (j, x) in rest.iter().enumerate() {
        acc[j] = s.add(acc[j], s.load_chunk(x));
    }
    if !tail.is_empty() {
        acc[3] = s.add(acc[3], s.load_part(tail, 0.0));
    }
    s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}

/// Sums squares in four accumulators, which cover the latency of the multiply-add.
#[inline(always)]
pub(super) fn sum_of_squares<S: Simd>(s: S, xs: &[S::Chunk], tail: &[f32]) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    let (fours, rest) = xs.as_chunks::<4>();
    for four in fours {
        for j in 0..4 {
            let x = s.load_chunk(&four[j]);
            acc[j] = s.mul_add(x, x, acc[j]);
        }
    }
    for (j, x) in rest.iter().enumerate() {
        let x = s.load_chunk(x);
        acc[j] = s.mul_add(x, x, acc[j]);
    }
    if !tail.is_empty() {
        let x = s.load_part(tail, 0.0);
        acc[3] = s.mul_add(x, x, acc[3]);
    }
    s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}
