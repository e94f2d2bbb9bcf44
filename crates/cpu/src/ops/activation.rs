//! Activation functions of feed-forward networks, alone and gating another projection.

use rocmforge_plan::Activation;

use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::lanes::exp;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// Cost of one exponential and a division, in additions.
const ACTIVATION_WORK: usize = 4;

/// `out = activation(x)`.
///
/// # Panics
/// If the lengths differ.
pub fn activate(isa: Isa, pool: &Pool, activation: Activation, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    let per_task = rows_per_task(pool, out.len(), ACTIVATION_WORK);
    pool.for_each_rows(out, 1, per_task, &|first, out| {
        let x = &x[first..first + out.len()];
        match activation {
            Activation::Silu => part(isa, Silu, x, None, out),
            Activation::GeluTanh => part(isa, GeluTanh, x, None, out),
        }
    });
}

/// `out = activation(gate) * up`.
///
/// # Panics
/// If the lengths differ.
pub fn gated_activation(
    isa: Isa,
    pool: &Pool,
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) {
    assert_eq!(gate.len(), out.len(), "out has the shape of gate");
    assert_eq!(up.len(), out.len(), "out has the shape of up");
    let per_task = rows_per_task(pool, out.len(), ACTIVATION_WORK);
    pool.for_each_rows(out, 1, per_task, &|first, out| {
        let range = first..first + out.len();
        let (gate, up) = (&gate[range.clone()], Some(&up[range]));
        match activation {
            Activation::Silu => part(isa, Silu, gate, up, out),
            Activation::GeluTanh => part(isa, GeluTanh, gate, up, out),
        }
    });
}

/// `out = activation(out) * up`, on this thread.
pub(crate) fn gate_in_place(isa: Isa, activation: Activation, up: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Silu => gate_with(isa, Silu, up, out),
        Activation::GeluTanh => gate_with(isa, GeluTanh, up, out),
    }
}

fn gate_with<C: Curve>(isa: Isa, curve: C, up: &[f32], out: &mut [f32]) {
    match isa.vector() {
        None => {
            for (out, up) in out.iter_mut().zip(up) {
                *out = curve.scalar(f64::from(*out)) as f32 * up;
            }
        }
        Some(isa) => isa.run(InPlace { curve, up, out }),
    }
}

/// A function of one value. Both have the form `x / (1 + e^-t)`, where `t` depends on `x`.
trait Curve: Copy {
    /// Computes the function by its definition.
    fn scalar(self, x: f64) -> f64;
    /// `-t`.
    fn exponent<S: Simd>(self, s: S, x: S::F32) -> S::F32;
}

#[derive(Clone, Copy)]
struct Silu;

impl Curve for Silu {
    fn scalar(self, x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    #[inline(always)]
    fn exponent<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        s.sub(s.splat(0.0), x)
    }
}

#[derive(Clone, Copy)]
struct GeluTanh;

/// sqrt(2 / pi).
const GELU_FACTOR: f64 = 0.797_884_560_802_865_4;
const GELU_CUBIC: f64 = 0.044_715;

impl Curve for GeluTanh {
    fn scalar(self, x: f64) -> f64 {
        x / 2.0 * (1.0 + (GELU_FACTOR * (x + GELU_CUBIC * x * x * x)).tanh())
    }

    /// `(1 + tanh(u)) / 2 = 1 / (1 + e^-2u)`, which does not cancel where the tanh is close to -1.
    #[inline(always)]
    fn exponent<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        let cubic = s.splat((-2.0 * GELU_FACTOR * GELU_CUBIC) as f32);
        let factor = s.mul_add(s.mul(x, x), cubic, s.splat((-2.0 * GELU_FACTOR) as f32));
        s.mul(x, factor)
    }
}

fn part<C: Curve>(isa: Isa, curve: C, x: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    match isa.vector() {
        None => {
            for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                let y = curve.scalar(f64::from(x)) as f32;
                *out = up.map_or(y, |up| y * up[i]);
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
            s.store_chunk(value(s, self.curve, s.load_chunk(x)), out);
        }
        if !out_tail.is_empty() {
            s.store_part(value(s, self.curve, s.load_part(x_tail, 0.0)), out_tail);
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
            let y = value(s, self.curve, s.load_chunk(x));
            s.store_chunk(s.mul(y, s.load_chunk(up)), out);
        }
        if !out_tail.is_empty() {
            let y = value(s, self.curve, s.load_part(x_tail, 0.0));
            s.store_part(s.mul(y, s.load_part(up_tail, 0.0)), out_tail);
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
            let y = value(s, self.curve, s.load_chunk(out));
            s.store_chunk(s.mul(y, s.load_chunk(up)), out);
        }
        if !out_tail.is_empty() {
            let y = value(s, self.curve, s.load_part(out_tail, 0.0));
            s.store_part(s.mul(y, s.load_part(up_tail, 0.0)), out_tail);
        }
    }
}

#[inline(always)]
fn value<S: Simd, C: Curve>(s: S, curve: C, x: S::F32) -> S::F32 {
    s.div(x, s.add(s.splat(1.0), exp(s, curve.exponent(s, x))))
}
