//! Operations on one element at a time.

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
