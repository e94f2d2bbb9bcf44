//! One safe function for each operation: checks shapes, picks kernel and grid, launches.

mod argmax;
mod attend;
mod attention;
mod attention_params;
mod channel_layer;
mod chunks;
mod elementwise;
mod expand;
mod expert_sum;
mod formats;
mod gemm;
mod gemv;
mod group;
mod half;
mod half_cache;
mod heads;
mod jobs;
mod kernels;
mod kv_move;
mod linear_layer;
mod mask;
mod mxfp6;
mod norm;
mod own;
mod products;
mod recurrent;
mod rope_kv;
mod router;
mod routing;
mod rows;
mod sample;
mod select;
mod step_io;
mod streams;
mod tile;

pub use crate::limit::check_values;
pub use crate::variant::MAX_ANSWER_ROWS;
pub use argmax::argmax;
pub use attention::{
    AttentionScratch, Queries, RowKind, Scores, attends_in_halves, attention, attention_quantize,
    check_rows, is_fast,
};
pub(crate) use attention::{DecodeExtents, check_heads};
pub use channel_layer::{ChannelFactors, ChannelInput, channel_decode, takes_channels};
pub use chunks::{CHUNK_ROWS, has_chunks, is_in_chunks};
pub use elementwise::{
    activate, add, add_gated, copy_part, gated_activation, scale, scale_rows, select_rows, soft_cap,
};
pub use expand::{HeadsMemory, LatentHeads, attend_to_heads};
pub use expert_sum::ExpertSum;
pub(crate) use formats::check_format;
pub use gemm::{matmul, matmul_tiled};
pub use gemv::{MAX_ROWS, matvec, matvec_gated};
pub(crate) use group::{Conversion, Group, GroupedProduct};
pub(crate) use half::memory::HalfBuffer;
pub use half::memory::HalfMemory;
pub use half::{takes_halves, takes_halves_of_experts};
pub use half_cache::half_cache_bytes;
pub use heads::{check_split, join_heads, quantize_heads};
pub use jobs::{ExpertProduct, Gated, Product};
pub(crate) use kv_move::check_move;
pub use kv_move::{KeyTurn, KvMoves, SlotRun, kv_move};
pub use linear_layer::{
    AfterHeads, ConvPart, GroupNorm, HeadFactors, SelectiveWeights, conv_silu, linear_decode,
    linear_inputs, selective_decode, takes_decode, takes_factor, takes_group, takes_selective,
};
pub use mask::{forbid, mask_words};
pub use mxfp6::{Mxfp6, dequantize_mxfp6, dequantize_mxfp6_f16};
pub use norm::{
    RowNorm, layer_norm, quantize, rms_norm, rms_norm_groups, rms_norm_groups_quantize,
    rms_norm_quantize, rms_norms,
};
pub use own::converts;
pub use products::{
    ExpertGated, expert_gated_products, expert_gated_products_quantized, expert_products,
    gated_products, gated_products_quantized, head_products, products,
};
pub use recurrent::{Conv, causal_conv, check_linear_heads, linear_attention};
pub(crate) use rope_kv::check_append;
pub use rope_kv::{
    HeadNorms, LatentRopeKv, RopeKv, RopeStyle, Rotation, kv_append, latent_rope_kv, rope, rope_kv,
    rope_to,
};
pub use router::{RouterRow, route_row, routes_row};
pub use routing::buffer::{ExpertTile, MAX_EXPERTS, Routing, RoutingBuffer, check_experts};
pub use routing::{
    ExpertGroups, ExpertScores, ExpertVectors, ExpertWeights, Router, SharedWeight, Weighed,
    check_router, combine_and_norm, combine_experts, quantize_choices, quantize_experts, route,
};
pub use rows::{dequantize, dequantize_f16, get_rows, packed_bytes, repack};
pub use sample::{
    ALL_TOKENS, Candidates, LOGPROB_WORDS, LogprobRows, MAX_LOGPROBS, MAX_TOP_K, SCRATCH_WORDS,
    SampleEntry, SampleRow, SampleStep, logprobs, sample,
};
pub use select::{GemmTile, gemm_tiles, row_order};
pub(crate) use select::{gemm_choices, gemv_choices};
pub use step_io::{N_LIST_WORDS, N_PAGES, STEP_NUMBER, StepWords, begin_step, end_step};
pub use streams::{match_length, mix, sparsify};
pub use tile::{Tile, multiply_tiles};
