//! CPU kernels on plain slices, on a thread pool: matrix products, attention and the other operations of a layer. Knows
//! nothing about models or files.

#![deny(unsafe_code)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        reason = "vector algorithms, where no vector instruction set is supported yet"
    )
)]

mod acts;
mod aligned;
mod arch;
mod attention;
mod experts;
mod generic;
mod hadamard;
mod head_code;
mod isa;
mod job;
mod kv_slice;
mod matmul;
pub mod memory;
mod ops;
pub mod pool;
mod roofline;

pub use acts::Acts;
pub use arch::{Avx2, Avx512};
pub use attention::shape::{AttnInputs, AttnShape};
pub use attention::{AttnSeq, attention};
pub use experts::{Choice, ExpertActs, ExpertMatrices, Routing, combine_experts, expert_matmul};
pub use hadamard::hadamard;
pub use head_code::HeadCode;
pub use isa::Isa;
pub use kv_slice::{KvLayout, KvSlice, KvSliceMut};
pub use matmul::{Gate, Product, get_rows, is_fast, matmul, matmul_all, matmul_gated};
pub use ops::{
    Conv, LayerNormParams, Rotation, StateSeq, activate, add, add_gated, argmax, causal_conv,
    gated_activation, join_heads, kv_append, kv_copy, kv_read, layer_norm, linear_attention,
    log_sum_exp, match_length, mix, rms_norm, rms_norm_acts, rms_norm_groups, rope, scale,
    soft_cap, sparsify,
};
pub use pool::{MAX_THREADS, MatrixMut, Pool, Tile, default_threads};
pub use roofline::{Gauge, measure_roofline};
