//! Argmax of each row of logits (`kernels/argmax.hip`).

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::memory::{Address, Slice};
use crate::variant::Variant;

const THREADS: u32 = 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct ArgmaxParams {
    logits: Address,
    ids: Address,
    n_vocab: u32,
    aligned: u32,
}

layout!(ArgmaxParams {
    logits,
    ids,
    n_vocab,
    aligned
});

const _: () = assert!(size_of::<ArgmaxParams>() == 24);

kernels! {
    struct ArgmaxKernels {
        argmax: ArgmaxParams,
    }
}

/// Finds the largest logit of each row of `logits` [n_rows, n_vocab]: the lowest id of equals; NaN is smaller than
/// anything. `out_ids` `[n_rows]` is `u32::MAX` for rows whose largest logit is not finite.
///
/// # Panics
/// If `logits` is not one row per id.
pub fn argmax(gpu: &Gpu, logits: Slice<'_, f32>, out_ids: Slice<'_, u32>) -> Result<(), GpuError> {
    let n_rows = out_ids.len();
    if n_rows == 0 {
        return Ok(());
    }
    assert!(
        !logits.is_empty() && logits.len().is_multiple_of(n_rows),
        "logits are not {n_rows} whole rows"
    );
    let n_vocab = logits.len() / n_rows;
    let params = ArgmaxParams {
        logits: logits.address(),
        ids: out_ids.address(),
        n_vocab: n_vocab as u32,
        aligned: u32::from(
            n_vocab.is_multiple_of(4)
                && logits.address().is_aligned_to(16)
                && !gpu.takes(Variant::LoadsNarrow),
        ),
    };
    let kernel = &gpu.kernels().argmax.argmax;
    gpu.launch(kernel, [n_rows as u32, 1, 1], THREADS, 0, &params)
}
