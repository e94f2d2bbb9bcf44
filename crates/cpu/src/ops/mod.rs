//! The operations of a layer other than matrix products and attention.
//!
//! Each takes the instruction set, the pool and plain slices. Its scalar branch is the definition, in plain loops; its
//! vector branch is written once over the trait `Simd`. An output element depends on its own row only, with a fixed
//! order of additions, so results are bit-equal for any number of rows and threads.

mod activation;
mod conv;
mod curves;
mod elementwise;
mod heads;
mod kv;
mod kv_move;
mod linear_attention;
mod linear_token;
mod logits;
mod norm;
mod rope;
mod soft_cap;
mod state;
mod streams;

pub use activation::{activate, gated_activation};
pub use conv::{Conv, causal_conv};
pub use elementwise::{add, add_gated, scale};
pub use heads::join_heads;
pub use kv::kv_append;
pub use kv_move::{kv_copy, kv_read};
pub use linear_attention::linear_attention;
pub use logits::{argmax, log_sum_exp};
pub use norm::{LayerNormParams, layer_norm, rms_norm, rms_norm_acts, rms_norm_groups};
pub use rope::{Rotation, rope};
pub use soft_cap::soft_cap;
pub use state::StateSeq;
pub use streams::{match_length, mix, sparsify};

pub(crate) use activation::gate_in_place;

use crate::pool::Pool;

/// Minimum work of a task, in additions (a few microseconds): less is not worth a dispatch.
const MIN_TASK_WORK: usize = 8192;
/// Tasks per thread, so that one late thread does not keep the others waiting.
const TASKS_PER_THREAD: usize = 4;

/// Returns the rows per task, if a row is worth `row_work` additions; all rows if there is little to do.
pub(crate) fn rows_per_task(pool: &Pool, n_rows: usize, row_work: usize) -> usize {
    let least = MIN_TASK_WORK.div_ceil(row_work.max(1));
    n_rows
        .div_ceil(TASKS_PER_THREAD * pool.n_threads())
        .max(least)
}
