//! Checks context shifts: tokens move in the KV cache and their keys are rotated. This is not an operation of a plan.

use rocmforge_plan::SlotRun;

use super::difference::difference;
use super::{BOUND, OpCheck, Script, Stepwise};
use crate::cpu::CpuBackend;
use crate::error::RuntimeError;
use rocmforge_plan::Plan;
use rocmforge_plan::{KvShift, KvTypes};

/// Compares a context shift on the KV cache that `script` has filled. Blocks have `page` tokens of type `kv_types`.
pub(crate) fn compare_moves(
    checked: &mut dyn Stepwise,
    oracle: &mut CpuBackend,
    script: &Script,
    plan: &Plan,
    (page, kv_types): (usize, KvTypes),
) -> Result<OpCheck, RuntimeError> {
    let (step, batch) = &script.checked[1];
    let page = page as u32;
    let last_page = (script.n_blocks as u32 - 1) * page;
    let run = |from, to, n_tokens| SlotRun { from, to, n_tokens };
    // Moves the start of the first block to the end of the last block, which is empty, and rotates the rest in place.
    let shift = KvShift {
        copied: vec![run(0, last_page + page - 8, 3)],
        turned: vec![run(3, last_page + page - 5, 4), run(8, 8, page - 8)],
        back_by: 3,
    };
    oracle.set_memory(&checked.memory(batch)?);
    checked.run_shift(&shift)?;
    oracle.run_shift(&shift)?;
    let mut got = checked.memory(batch)?;
    let expected = oracle.memory(batch)?;
    // A key between two cache values may round to either.
    let pairs = got.cache.to_mut().iter_mut().zip(expected.cache.iter());
    pairs.for_each(|(got, expected)| got.take_next(expected));
    let error = difference(&got, &expected, plan, &[]);
    let n_tokens = page as usize - 1;
    Ok(OpCheck {
        step: *step,
        index: plan.ops.len(),
        op: "kv_move",
        tensor: None,
        shape: format!("{n_tokens} tokens"),
        format: kv_types.to_string(),
        n_tokens,
        max_abs: error.abs,
        max_rel: error.rel,
        bound: BOUND,
        passed: error.rel <= BOUND,
    })
}
