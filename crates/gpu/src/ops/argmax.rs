//! Argmax of each row of logits (`kernels/argmax.hip`).

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::launch::Params;
use crate::memory::Slice;
use crate::variant::Variant;

const THREADS: u32 = 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct ArgmaxParams {
    logits: u64,
    ids: u64,
    n_vocab: u32,
    aligned: u32,
}

const _: () = assert!(size_of::<ArgmaxParams>() == 24);

// SAFETY: as `ArgmaxParams` in argmax.hip.
unsafe impl Params for ArgmaxParams {}

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
        logits: logits.ptr(),
        ids: out_ids.ptr(),
        n_vocab: n_vocab as u32,
        aligned: u32::from(
            n_vocab.is_multiple_of(4)
                && logits.ptr().is_multiple_of(16)
                && !gpu.takes(Variant::LoadsNarrow),
        ),
    };
    gpu.launch(
        ("argmax", "argmax"),
        [n_rows as u32, 1, 1],
        THREADS,
        0,
        &params,
    )
}
