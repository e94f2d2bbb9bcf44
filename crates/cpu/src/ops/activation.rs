//! Activation functions of feed-forward networks, alone and gating another projection.

use rocmforge_plan::Activation;

use super::curves::{
    Curve, GeluErf, GeluTanh, Relu, ReluSquared, Sigmoid, Silu, SiluClamped, Softplus, SwigluOai,
    Xielu,
};
use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// Cost of one exponential and a division, in additions.
const ACTIVATION_WORK: usize = 4;

/// Runs `$run` with the curve of an activation.
macro_rules! with_curve {
    ($activation:expr, $curve:ident => $run:expr) => {
        match $activation {
            Activation::Silu => {
                let $curve = Silu;
                $run
            }
            Activation::GeluTanh => {
                let $curve = GeluTanh;
                $run
            }
            Activation::GeluErf => {
                let $curve = GeluErf;
                $run
            }
            Activation::Relu => {
                let $curve = Relu;
                $run
            }
            Activation::ReluSquared => {
                let $curve = ReluSquared;
                $run
            }
            Activation::Sigmoid => {
                let $curve = Sigmoid;
                $run
            }
            Activation::Softplus => {
                let $curve = Softplus;
                $run
            }
            Activation::SwigluOai => {
                let $curve = SwigluOai;
                $run
            }
            Activation::SiluClamped { limit } => {
                let $curve = SiluClamped { limit };
                $run
            }
            Activation::Xielu {
                alpha_n,
                alpha_p,
                beta,
                eps,
            } => {
                let $curve = Xielu([alpha_n, alpha_p, beta, eps].map(f64::from));
                $run
            }
        }
    };
}

/// `out = activation(x)`.
///
/// # Panics
/// If the lengths differ.
pub fn activate(isa: Isa, pool: &Pool, activation: Activation, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    let per_task = rows_per_task(pool, out.len(), ACTIVATION_WORK);
    pool.for_each_rows(out, 1, per_task, &|first, out| {
        let x = &x[first..first + out.len()];
        with_curve!(activation, curve => part(isa, curve, x, None, out));
    });
}

/// `out = activation(gate) * up`. A shorter `gate` has a value for each group of consecutive values of `up`.
///
/// # Panics
/// If `out` has another length than `up`, or the length of `gate` does not divide it.
pub fn gated_activation(
    isa: Isa,
    pool: &Pool,
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    assert_eq!(up.len(), out.len(), "out has the shape of up");
    if gate.len() != up.len() {
        return gated_groups(isa, pool, activation, gate, up, out);
    }
    let per_task = rows_per_task(pool, out.len(), ACTIVATION_WORK);
    pool.for_each_rows(out, 1, per_task, &|first, out| {
        let range = first..first + out.len();
        let (gate, up) = (&gate[range.clone()], Some(&up[range]));
        with_curve!(activation, curve => part(isa, curve, gate, up, out));
    });
}

fn gated_groups(
    isa: Isa,
    pool: &Pool,
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    assert!(
        !gate.is_empty() && up.len().is_multiple_of(gate.len()),
        "a gate for each group"
    );
    let group = up.len() / gate.len();
    let per_task = rows_per_task(pool, gate.len(), group);
    pool.for_each_rows(out, group, per_task, &|first, out| {
        let up = &up[first * group..][..out.len()];
        let groups = up.chunks_exact(group).zip(out.chunks_exact_mut(group));
        for ((up, out), &gate) in groups.zip(&gate[first..]) {
            out.fill(gate);
            gate_in_place(isa, activation, up, out);
        }
    });
}

/// `out = activation(out) * up`, on this thread.
pub(crate) fn gate_in_place(isa: Isa, activation: Activation, up: &[f32], out: &mut [f32]) {
    with_curve!(activation, curve => gate_with(isa, curve, up, out));
}

fn gate_with<C: Curve>(isa: Isa, curve: C, up: &[f32], out: &mut [f32]) {
    match isa.vector() {
        None => {
            for (out, &up) in out.iter_mut().zip(up) {
                *out = curve.scalar(f64::from(*out)) as f32 * curve.up(up);
            }
        }
        Some(isa) => isa.run(InPlace { curve, up, out }),
    }
}

fn part<C: Curve>(isa: Isa, curve: C, x: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    match isa.vector() {
        None => {
            for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                let y = curve.scalar(f64::from(x)) as f32;
                *out = up.map_or(y, |up| y * curve.up(up[i]));
            }
        }
        Some(isa) => match up {
            Some(up) => isa.run(Gated { curve, x, up, out }),
            None => isa.run(Alone { curve, x, out }),
        },
    }
}

struct Alone<'a, C> {
    curve: C,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<C: Curve> Kernel for Alone<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (xs, x_tail) = S::chunks(self.x);
        let (outs, out_tail) = S::chunks_mut(self.out);
        for (x, out) in xs.iter().zip(outs) {
            s.store_chunk(self.curve.vector(s, s.load_chunk(x)), out);
        }
        if !out_tail.is_empty() {
            s.store_part(self.curve.vector(s, s.load_part(x_tail, 0.0)), out_tail);
        }
    }
}

struct Gated<'a, C> {
    curve: C,
    x: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl<C: Curve> Kernel for Gated<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (xs, x_tail) = S::chunks(self.x);
        let (ups, up_tail) = S::chunks(self.up);
        let (outs, out_tail) = S::chunks_mut(self.out);
        for ((x, up), out) in xs.iter().zip(ups).zip(outs) {
            let y = self.curve.vector(s, s.load_chunk(x));
            s.store_chunk(s.mul(y, self.curve.vector_up(s, s.load_chunk(up))), out);
        }
        if !out_tail.is_empty() {
            let y = self.curve.vector(s, s.load_part(x_tail, 0.0));
            s.store_part(
                s.mul(y, self.curve.vector_up(s, s.load_part(up_tail, 0.0))),
                out_tail,
            );
        }
    }
}

struct InPlace<'a, C> {
    curve: C,
    up: &'a [f32],
    out: &'a mut [f32],
}

impl<C: Curve> Kernel for InPlace<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (ups, up_tail) = S::chunks(self.up);
        let (outs, out_tail) = S::chunks_mut(self.out);
        for (up, out) in ups.iter().zip(outs) {
            let y = self.curve.vector(s, s.load_chunk(out));
            s.store_chunk(s.mul(y, self.curve.vector_up(s, s.load_chunk(up))), out);
        }
        if !out_tail.is_empty() {
            let y = self.curve.vector(s, s.load_part(out_tail, 0.0));
            s.store_part(
                s.mul(y, self.curve.vector_up(s, s.load_part(up_tail, 0.0))),
                out_tail,
            );
        }
    }
}
