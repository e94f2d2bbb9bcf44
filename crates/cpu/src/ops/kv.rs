//! Writing new keys and values into the paged cache.

use rocmforge_gguf::quant::legacy::Q8_0;

use super::{MIN_TASK_WORK, TASKS_PER_THREAD};
use crate::acts::{Scalar, quantize_q8_0};
use crate::arch::Kernel;
use crate::generic::bytes::Quantize;
use crate::generic::simd::Simd;
use crate::hadamard::hadamard;
use crate::head_code::HeadCode;
use crate::isa::Isa;
use crate::kv_slice::{KvLayout, KvSliceMut};
use crate::pool::Pool;

/// Writes the key (or value) rows of tokens into their slots: as f16 rounded to nearest even, as f32, as Q8_0 quantized
/// like activations ([`rocmforge_plan::ActFormat::Q8x32`]), or as bytes ([`HeadCode`]). Heads are first rotated by
/// [`KvLayout::hadamard`].
///
/// - `x` [n_tokens, n_kv_heads * dim]
/// - `slots` [n_tokens]: `block * page + offset` of each token; of two tokens with the same slot the later one wins
/// - `cache` [n_blocks, n_kv_heads, page, dim]
///
/// # Panics
/// If lengths do not match, heads are not whole blocks or rotated parts, or a slot is not in the cache.
pub fn kv_append(
    isa: Isa,
    pool: &Pool,
    layout: &KvLayout,
    x: &[f32],
    slots: &[u32],
    cache: KvSliceMut<'_>,
) {
    let dim = layout.dim;
    let head_len = match cache {
        KvSliceMut::F16(_) | KvSliceMut::F32(_) => dim,
        KvSliceMut::Q8_0(_) => {
            assert!(
                dim.is_multiple_of(32),
                "heads of {dim} values are not blocks of 32"
            );
            dim / 32
        }
        KvSliceMut::Heads {
            code, dim: cached, ..
        } => {
            assert_eq!(dim, cached, "heads as wide as those of the cache");
            assert!(
                code != HeadCode::Q8_0 || dim < 32,
                "heads of less than a block"
            );
            code.head_bytes(dim)
        }
    };
    let rows = NewRows {
        layout,
        head_len,
        x,
        slots,
    };
    assert_eq!(x.len(), slots.len() * rows.row_len(), "a row for each slot");
    match cache {
        KvSliceMut::F16(cache) => append(pool, &rows, cache, &|row, out| match isa.vector() {
            None => {
                for (out, &x) in out.iter_mut().zip(row) {
                    *out = half::f16::from_f32(x).to_bits();
                }
            }
            Some(isa) => isa.run(Narrow { x: row, out }),
        }),
        KvSliceMut::F32(cache) => append(pool, &rows, cache, &|row, out| {
            out.copy_from_slice(row);
        }),
        KvSliceMut::Q8_0(cache) => append(pool, &rows, cache, &|row, out| {
            let kernel = Encode { x: row, out };
            match isa.vector() {
                None => kernel.run_with(Scalar),
                Some(isa) => isa.run(kernel),
            }
        }),
        KvSliceMut::Heads { code, heads, .. } => {
            append(pool, &rows, heads, &|row, to| code.store(row, to));
        }
    }
}

/// The rows to append.
struct NewRows<'a> {
    layout: &'a KvLayout,
    /// Cache elements per head.
    head_len: usize,
    x: &'a [f32],
    slots: &'a [u32],
}

impl NewRows<'_> {
    /// Values per token.
    fn row_len(&self) -> usize {
        self.layout.n_kv_heads * self.layout.dim
    }
}

/// The work of one task: a cache block and the indices of the tokens whose slots are in it.
struct BlockTask<'a, T> {
    block: &'a mut [T],
    tokens: &'a [usize],
}

fn append<T: Send>(
    pool: &Pool,
    rows: &NewRows<'_>,
    cache: &mut [T],
    convert: &(dyn Fn(&[f32], &mut [T]) + Sync),
) {
    let &NewRows {
        layout,
        head_len,
        x,
        slots,
    } = rows;
    let row_len = rows.row_len();
    if slots.is_empty() || row_len == 0 {
        return;
    }
    let block_len = layout.n_kv_heads * head_len * layout.page;
    assert!(
        block_len > 0 && cache.len().is_multiple_of(block_len),
        "the cache holds whole blocks"
    );
    let block_of = |token: usize| slots[token] as usize / layout.page;
    let write = |token: usize, block: &mut [T]| {
        let offset = slots[token] as usize % layout.page;
        let row = &x[token * row_len..(token + 1) * row_len];
        let pages = block.chunks_exact_mut(layout.page * head_len);
        let mut rotated = Vec::new();
        for (mut head, page) in row.chunks_exact(layout.dim).zip(pages) {
            if layout.hadamard > 1 {
                rotated.clear();
                rotated.extend_from_slice(head);
                hadamard(&mut rotated, layout.hadamard);
                head = &rotated;
            }
            convert(head, &mut page[offset * head_len..(offset + 1) * head_len]);
        }
    };
    if pool.n_threads() == 1 || x.len() < 2 * MIN_TASK_WORK {
        for token in 0..slots.len() {
            let block = block_of(token);
            write(
                token,
                &mut cache[block * block_len..(block + 1) * block_len],
            );
        }
        return;
    }
    let mut tokens: Vec<usize> = (0..slots.len()).collect();
    tokens.sort_by_key(|&token| block_of(token));
    let mut tasks = Vec::new();
    let mut rest = cache;
    let mut n_before = 0;
    for tokens in tokens.chunk_by(|&a, &b| block_of(a) == block_of(b)) {
        let block = block_of(tokens[0]);
        let (_, tail) = rest.split_at_mut((block - n_before) * block_len);
        let (block_mut, tail) = tail.split_at_mut(block_len);
        tasks.push(BlockTask {
            block: block_mut,
            tokens,
        });
        (rest, n_before) = (tail, block + 1);
    }
    let per_task = tasks.len().div_ceil(TASKS_PER_THREAD * pool.n_threads());
    pool.for_each_rows(&mut tasks, 1, per_task, &|_, tasks| {
        for task in tasks {
            task.tokens
                .iter()
                .for_each(|&token| write(token, task.block));
        }
    });
}

/// Converts f32 to f16 bits.
struct Narrow<'a> {
    x: &'a [f32],
    out: &'a mut [u16],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.x.len() / S::LANES * S::LANES;
        let (x, x_tail) = self.x.split_at(whole);
        let (out, out_tail) = self.out.split_at_mut(whole);
        for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
            s.store_f16(s.load(x), out);
        }
        for (&x, out) in x_tail.iter().zip(out_tail) {
            *out = half::f16::from_f32(x).to_bits();
        }
    }
}

/// Quantizes f32 to Q8_0 blocks.
struct Encode<'a> {
    x: &'a [f32],
    out: &'a mut [Q8_0],
}

impl Encode<'_> {
    #[inline(always)]
    fn run_with<Q: Quantize>(self, q: Q) {
        for (x, out) in self.x.as_chunks().0.iter().zip(self.out) {
            *out = quantize_q8_0(q, x);
        }
    }
}

impl Kernel for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.run_with(s);
    }
}
