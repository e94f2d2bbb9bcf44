//! Operations on one element at a time.

use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::lanes::exp;
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

/// What one exponential and a division cost in additions.
const SILU_WORK: usize = 4;

/// `out = silu(gate) * up` with `silu(x) = x / (1 + e^-x)`.
///
/// # Panics
/// If the lengths differ.
pub fn silu_mul(isa: Isa, pool: &Pool, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), out.len(), "out has the shape of gate");
    assert_eq!(up.len(), out.len(), "out has the shape of up");
    let per_task = rows_per_task(pool, out.len(), SILU_WORK);
    pool.for_each_rows(out, 1, per_task, &|first, out| {
        let range = first..first + out.len();
        let (gate, up) = (&gate[range.clone()], &up[range]);
        match isa.vector() {
            None => {
                for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                    let gate = f64::from(gate);
                    *out = (gate / (1.0 + (-gate).exp())) as f32 * up;
                }
            }
            Some(isa) => isa.run(SiluMul { gate, up, out }),
        }
    });
}

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gates, gate_tail) = S::chunks(self.gate);
        let (ups, up_tail) = S::chunks(self.up);
        let (outs, out_tail) = S::chunks_mut(self.out);
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            s.store_chunk(s.mul(silu(s, s.load_chunk(gate)), s.load_chunk(up)), out);
        }
        if !out_tail.is_empty() {
            let gate = silu(s, s.load_part(gate_tail, 0.0));
            s.store_part(s.mul(gate, s.load_part(up_tail, 0.0)), out_tail);
        }
    }
}

#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let negative = s.sub(s.splat(0.0), x);
    s.div(x, s.add(s.splat(1.0), exp(s, negative)))
}
