//! Soft-capping: a smooth bound on logits and attention scores (Gemma 2, Gemma Team 2024).

use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::lanes::capped;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// Cost of a tanh and its division, in additions.
const TANH_WORK: usize = 6;

/// `x = cap * tanh(x / cap)`, in place. `cap` is positive.
pub fn soft_cap(isa: Isa, pool: &Pool, cap: f32, x: &mut [f32]) {
    let per_task = rows_per_task(pool, x.len(), TANH_WORK);
    pool.for_each_rows(x, 1, per_task, &|_, x| match isa.vector() {
        None => {
            let cap = f64::from(cap);
            for x in x {
                *x = (cap * (f64::from(*x) / cap).tanh()) as f32;
            }
        }
        Some(isa) => isa.run(SoftCap { cap, x }),
    });
}

struct SoftCap<'a> {
    cap: f32,
    x: &'a mut [f32],
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (chunks, tail) = S::chunks_mut(self.x);
        for x in chunks {
            s.store_chunk(capped(s, self.cap, s.load_chunk(x)), x);
        }
        if !tail.is_empty() {
            s.store_part(capped(s, self.cap, s.load_part(tail, 0.0)), tail);
        }
    }
}
