//! Masks of constrained rows (`kernels/mask.hip`): takes tokens that may not follow out of the choice.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::memory::{Address, Slice};

const THREADS: u32 = 256;
/// Tokens of a block.
const BLOCK: usize = THREADS as usize * 32;

/// Returns the words of a mask for `n_vocab` tokens in [`forbid`]: the row that it is for, then a bit per token.
pub fn mask_words(n_vocab: usize) -> usize {
    1 + n_vocab.div_ceil(32)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ForbidParams {
    logits: Address,
    masks: Address,
    n_rows: u32,
    n_vocab: u32,
    n_words: u32,
    pad: u32,
}

layout!(ForbidParams {
    logits,
    masks,
    n_rows,
    n_vocab,
    n_words,
    pad
});

const _: () = assert!(size_of::<ForbidParams>() == 32);

kernels! {
    struct MaskKernels {
        forbid: ForbidParams,
    }
}

/// Sets the logits of tokens that a mask does not allow to negative infinity, unless they are infinite or NaN.
///
/// `logits` is `[n_rows, n_vocab]`. `masks` is `[n_masked, mask_words(n_vocab)]`: the row of logits that the mask is
/// for, then bit `id % 32` of word `id / 32` for each token. Rows past the end are ignored.
///
/// # Panics
/// If `logits` or `masks` are not whole rows.
pub fn forbid(
    gpu: &Gpu,
    logits: Slice<'_, f32>,
    n_rows: usize,
    masks: Slice<'_, u32>,
) -> Result<(), GpuError> {
    let n_vocab = logits.len() / n_rows.max(1);
    let words = mask_words(n_vocab);
    assert!(
        logits.len() == n_rows * n_vocab && masks.len().is_multiple_of(words),
        "whole rows"
    );
    let params = ForbidParams {
        logits: logits.address(),
        masks: masks.address(),
        n_rows: n_rows as u32,
        n_vocab: n_vocab as u32,
        n_words: (words - 1) as u32,
        pad: 0,
    };
    let grid = [
        (masks.len() / words) as u32,
        n_vocab.div_ceil(BLOCK) as u32,
        1,
    ];
    let kernel = &gpu.kernels().mask.forbid;
    gpu.launch(kernel, grid, THREADS, 0, &params)
}
