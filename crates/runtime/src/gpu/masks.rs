//! Steps whose tokens are chosen after their masks are known. A mask depends on the token before, so it is computed while
//! the device runs the model; the choice is queued when all masks of the step are there.

use rocmforge_gpu::{GpuError, ops};
use rocmforge_plan::{Batch, SampleRow, TokenMask, Want};

use super::GpuBackend;
use super::segments::QueuedStep;

impl GpuBackend {
    /// Queues the choice of a step's tokens, its last part. Waits for the masks of `rows`.
    pub(crate) fn queue_choice(
        &mut self,
        queued: &QueuedStep,
        batch: &Batch,
        rows: &[usize],
    ) -> Result<(), GpuError> {
        let shape = &queued.shape;
        let n_vocab = self.plan.buffers[self.plan.logits.0 as usize].width;
        let masks = packed(batch, rows, n_vocab);
        self.memory
            .step
            .write_masks(&self.gpu, queued.slot, &masks)?;
        let masks = self.memory.step.masks(queued.slot, masks.len());
        let logits = self.memory.buffer(self.plan.logits, shape);
        ops::forbid(&self.gpu, logits, shape.n_logits, masks)?;
        self.choose(shape)?;
        self.end(shape)
    }
}

/// Returns the masks of `rows` as [`ops::forbid`] reads them. Waits for them.
pub(super) fn packed(batch: &Batch, rows: &[usize], n_vocab: usize) -> Vec<u32> {
    let n_words = ops::mask_words(n_vocab);
    let mut masks = vec![0; rows.len() * n_words];
    for (words, &row) in masks.chunks_exact_mut(n_words).zip(rows) {
        words[0] = row as u32;
        match mask_of(batch, row).map(TokenMask::wait) {
            Some(Ok(mask)) => {
                let n = mask.len().min(n_words - 1);
                words[1..=n].copy_from_slice(&mask[..n]);
            }
            // The row ends its request, whatever it chooses.
            _ => words[1..].fill(u32::MAX),
        }
    }
    masks
}

/// Whether all masks of these rows are known.
pub(super) fn are_known(batch: &Batch, rows: &[usize]) -> bool {
    let is_known = |&row: &usize| mask_of(batch, row).is_none_or(TokenMask::is_known);
    rows.iter().all(is_known)
}

/// Whether the mask of a row could not be computed. Waits for it.
pub(super) fn has_failed(batch: &Batch, row: usize) -> bool {
    mask_of(batch, row).is_some_and(|mask| mask.wait().is_err())
}

fn mask_of(batch: &Batch, row: usize) -> Option<&TokenMask> {
    match &batch.logits[row].want {
        Want::Sample(SampleRow { mask, .. }) => mask.as_deref(),
        _ => None,
    }
}
