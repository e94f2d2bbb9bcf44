//! Elementwise operations.

use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// `out += x`.
///
/// # Panics
/// If the lengths differ.
pub fn add(isa: Isa, pool: &Pool, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    let per_task = rows_per_task(pool, out.len(), 1);
    pool.for_each_rows(out, 1, per_task, &|first, out| {
        let x = &x[first..first + out.len()];
        match isa.vector() {
            None => out.iter_mut().zip(x).for_each(|(out, x)| *out += x),
            Some(isa) => isa.run(Add { x, out }),
        }
    });
}

struct Add<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (xs, x_tail) = S::chunks(self.x);
        let (outs, out_tail) = S::chunks_mut(self.out);
        for (x, out) in xs.iter().zip(outs) {
            s.store_chunk(s.add(s.load_chunk(out), s.load_chunk(x)), out);
        }
        for (x, out) in x_tail.iter().zip(out_tail) {
            *out += x;
        }
    }
}

/// `out[row] += x[row] / (1 + e^-gate[row])`: `x` and `out` [n_rows, width], `gate` `[n_rows]`.
///
/// # Panics
/// If the shapes do not match.
pub fn add_gated(isa: Isa, pool: &Pool, gate: &[f32], x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    if gate.is_empty() || out.is_empty() {
        assert!(out.is_empty(), "a gate for each row");
        return;
    }
    assert!(out.len().is_multiple_of(gate.len()), "a gate for each row");
    let width = out.len() / gate.len();
    let per_task = rows_per_task(pool, gate.len(), width);
    pool.for_each_rows(out, width, per_task, &|first, out| {
        let rows = gate[first..].iter().zip(x[first * width..].chunks(width));
        for (out, (&gate, x)) in out.chunks_exact_mut(width).zip(rows) {
            let factor = (1.0 / (1.0 + f64::from(-gate).exp())) as f32;
            match isa.vector() {
                None => out
                    .iter_mut()
                    .zip(x)
                    .for_each(|(out, x)| *out += factor * x),
                Some(isa) => isa.run(AddScaled { factor, x, out }),
            }
        }
    });
}

/// `x *= by`: `x` [n_rows, by.len()]; a single factor is for all values.
///
/// # Panics
/// If `x` is not whole rows.
pub fn scale(isa: Isa, pool: &Pool, by: &[f32], x: &mut [f32]) {
    let width = by.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "whole rows");
    let per_task = rows_per_task(pool, x.len() / width, width);
    pool.for_each_rows(x, width, per_task, &|_, x| match (by, isa.vector()) {
        (&[factor], None) => x.iter_mut().for_each(|x| *x *= factor),
        (&[factor], Some(isa)) => isa.run(ScaleBy { factor, x }),
        (by, None) => {
            for row in x.chunks_exact_mut(width) {
                row.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
            }
        }
        (by, Some(isa)) => isa.run(ScaleRows { by, x }),
    });
}

pub(super) struct ScaleBy<'a> {
    pub(super) factor: f32,
    pub(super) x: &'a mut [f32],
}

impl Kernel for ScaleBy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        let (chunks, tail) = S::chunks_mut(self.x);
        for x in chunks {
            s.store_chunk(s.mul(s.load_chunk(x), factor), x);
        }
        tail.iter_mut().for_each(|x| *x *= self.factor);
    }
}

struct ScaleRows<'a> {
    by: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for ScaleRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (bys, by_tail) = S::chunks(self.by);
        for row in self.x.chunks_exact_mut(self.by.len()) {
            let (chunks, tail) = S::chunks_mut(row);
            for (x, by) in chunks.iter_mut().zip(bys) {
                s.store_chunk(s.mul(s.load_chunk(x), s.load_chunk(by)), x);
            }
            tail.iter_mut().zip(by_tail).for_each(|(x, by)| *x *= by);
        }
    }
}

pub(super) struct AddScaled<'a> {
    pub(super) factor: f32,
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        let (xs, x_tail) = S::chunks(self.x);
        let (outs, out_tail) = S::chunks_mut(self.out);
        for (x, out) in xs.iter().zip(outs) {
            s.store_chunk(s.mul_add(s.load_chunk(x), factor, s.load_chunk(out)), out);
        }
        if !out_tail.is_empty() {
            let sum = s.mul_add(s.load_part(x_tail, 0.0), factor, s.load_part(out_tail, 0.0));
            s.store_part(sum, out_tail);
        }
    }
}
