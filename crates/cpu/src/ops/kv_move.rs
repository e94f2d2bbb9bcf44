//! Moves cached tokens to other slots: copies them bit by bit, or reads them as f32 to be changed and appended again.
//! With [`rope`] in between, keys move to other positions, because rotations add up.
//!
//! [`rope`]: super::rope

use rocmforge_plan::SlotRun;

use super::rows_per_task;
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::hadamard::hadamard;
use crate::isa::Isa;
use crate::kv_slice::{KvLayout, KvSlice, KvSliceMut};
use crate::pool::Pool;

/// Copies the tokens of `runs`, one run after the other.
///
/// - `cache` [n_blocks, n_kv_heads, page, dim]
///
/// # Panics
/// If a run is not in the cache or crosses a block boundary.
pub fn kv_copy(layout: &KvLayout, runs: &[SlotRun], cache: KvSliceMut<'_>) {
    match cache {
        KvSliceMut::F16(cache) => copy(layout, layout.dim, runs, cache),
        KvSliceMut::F32(cache) => copy(layout, layout.dim, runs, cache),
        KvSliceMut::Q8_0(cache) => copy(layout, layout.dim / 32, runs, cache),
        KvSliceMut::Heads { code, heads, dim } => {
            copy(layout, code.head_bytes(dim), runs, heads);
        }
    }
}

/// Copies heads of `head_len` cache elements.
fn copy<T: Copy>(layout: &KvLayout, head_len: usize, runs: &[SlotRun], cache: &mut [T]) {
    for run in runs.iter().filter(|run| run.from != run.to) {
        let n = run.n_tokens as usize;
        let stays = |slot: u32| slot as usize % layout.page + n <= layout.page;
        assert!(stays(run.from) && stays(run.to), "{run:?} is in a block");
        for (from, to) in layout.heads(run.from).zip(layout.heads(run.to)) {
            let from = from * head_len..(from + n) * head_len;
            cache.copy_within(from, to * head_len);
        }
    }
}

/// Reads the tokens in `slots`, as they were before [`kv_append`](super::kv_append) rotated them.
///
/// - `cache` [n_blocks, n_kv_heads, page, dim]
/// - `out` [n_slots, n_kv_heads * dim]
///
/// # Panics
/// If lengths do not match, or a slot is not in the cache.
pub fn kv_read(
    isa: Isa,
    pool: &Pool,
    layout: &KvLayout,
    slots: &[u32],
    cache: KvSlice<'_>,
    out: &mut [f32],
) {
    let width = layout.n_kv_heads * layout.dim;
    assert_eq!(out.len(), slots.len() * width, "a row for each slot");
    if out.is_empty() {
        return;
    }
    let per_task = rows_per_task(pool, slots.len(), width);
    pool.for_each_rows(out, width, per_task, &|first, out| {
        for (row, &slot) in out.chunks_exact_mut(width).zip(&slots[first..]) {
            for (head, at) in row.chunks_exact_mut(layout.dim).zip(layout.heads(slot)) {
                read(isa, cache.get(at * layout.dim..(at + 1) * layout.dim), head);
                hadamard(head, layout.hadamard);
            }
        }
    });
}

fn read(isa: Isa, head: KvSlice<'_>, out: &mut [f32]) {
    match head {
        KvSlice::F32(x) => out.copy_from_slice(x),
        KvSlice::F16(x) => match isa.vector() {
            None => {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = half::f16::from_bits(x).to_f32();
                }
            }
            Some(isa) => isa.run(Widen { x, out }),
        },
        KvSlice::Q8_0(blocks) => {
            for (out, block) in out.chunks_exact_mut(32).zip(blocks) {
                let scale = block.d.to_f32();
                for (out, &code) in out.iter_mut().zip(&block.qs) {
                    *out = scale * f32::from(code);
                }
            }
        }
        KvSlice::Heads { code, heads, .. } => code.load(heads, out),
    }
}

/// Converts f16 bits to f32.
struct Widen<'a> {
    x: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.x.len() / S::LANES * S::LANES;
        let (x, x_tail) = self.x.split_at(whole);
        let (out, out_tail) = self.out.split_at_mut(whole);
        for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
            s.store(s.load_f16(x), out);
        }
        for (&x, out) in x_tail.iter().zip(out_tail) {
            *out = half::f16::from_bits(x).to_f32();
        }
    }
}
