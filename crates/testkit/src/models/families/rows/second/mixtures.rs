//! Second shapes of families with experts.

use super::*;

const FEW_SHARED: Mixture = Mixture {
    n_ff_shared: Some(96),
    ..FEW
};
const NONE_DENSE: (&str, Key) = ("leading_dense_block_count", U(0));

pub(super) static ROWS: &[Row] = &[
    // Qwen 2 57B A14B.
    Row {
        name: "qwen2moe_sevenths",
        arch: "qwen2moe",
        n_embd: 224,
        heads: [7, 1, 32],
        biases: QKV_BIASES,
        mixture: Some(FEW_SHARED),
        keys: &[("expert_shared_feed_forward_length", U(96))],
        ..SMALL
    },
    Row {
        name: "qwen3moe_eighths",
        arch: "qwen3moe",
        heads: [8, 1, 64],
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture { n_used: 3, ..FEW }),
        output: Output::Tied,
        ..SMALL
    },
    // Experts in all layers; values wider than the plain part of keys.
    Row {
        name: "mistral4_thirds",
        arch: "mistral4",
        latent: Some(Latent {
            n_heads: 3,
            q_rank: 64,
            kv_rank: 128,
            n_plain: 64,
            n_rot: 64,
            v_dim: 128,
            matrices: HeadMatrices::Apart,
        }),
        mixture: Some(FEW_SHARED),
        output: Output::Tied,
        keys: &[
            ONE_SHARED,
            NONE_DENSE,
            NORMED,
            (GATING, U(1)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(4.0)),
            ("rope.scaling.original_context_length", U(16)),
            ("rope.scaling.yarn_log_multiplier", F(0.1)),
        ],
        ..SMALL
    },
    Row {
        name: "bailingmoe_quarters",
        arch: "bailingmoe",
        heads: [4, 1, 64],
        mixture: Some(FEW_SHARED),
        keys: &[ONE_SHARED, SCALE, ("rope.dimension_count", U(64))],
        ..SMALL
    },
    // No groups of experts.
    Row {
        name: "bailingmoe2_single",
        arch: "bailingmoe2",
        heads: [4, 4, 32],
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_ff_shared: Some(128),
            ..FEW
        }),
        keys: &[
            NONE_DENSE,
            SCALE,
            (GATING, U(1)),
            ("expert_shared_count", U(2)),
            ("expert_shared_feed_forward_length", U(64)),
        ],
        ..SMALL
    },
    Row {
        name: "hy_v3_quarters",
        arch: "hy_v3",
        heads: [4, 1, 32],
        head_norm: HeadNorm::Each,
        mixture: Some(FEW_SHARED),
        output: Output::Tied,
        keys: &[NORMED],
        ..SMALL
    },
    Row {
        name: "olmoe_single",
        arch: "olmoe",
        heads: [2, 2, 64],
        n_ff: 96,
        head_norm: HeadNorm::Together,
        mixture: Some(Mixture { n_used: 1, ..FEW }),
        ..SMALL
    },
    Row {
        name: "deepseek_halves",
        arch: "deepseek",
        heads: [2, 1, 64],
        mixture: Some(FEW_SHARED),
        output: Output::Tied,
        keys: &[NONE_DENSE, ONE_SHARED],
        ..SMALL
    },
    Row {
        name: "dots1_wide",
        arch: "dots1",
        heads: [2, 2, 128],
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_ff_shared: Some(192),
            ..FEW
        }),
        keys: &[NONE_DENSE, ("expert_shared_count", U(2)), (GATING, U(1))],
        ..SMALL
    },
    // Phi-mini-MoE: one set of factors, or none.
    Row {
        name: "phimoe_quarters",
        arch: "phimoe",
        heads: [4, 1, 32],
        n_ff: 96,
        norm: Norm::RmsWithBias,
        biases: &["attn_output"],
        mixture: Some(FEW),
        output: Output::OwnWithBias,
        ..SMALL
    },
    Row {
        name: "deepseek2_ocr_single",
        arch: "deepseek2-ocr",
        heads: [2, 2, 64],
        mixture: Some(Mixture {
            n_ff_shared: Some(96),
            ..FEW_BIASED
        }),
        output: Output::Tied,
        keys: &[NONE_DENSE, ONE_SHARED, NORMED, (GATING, U(2))],
        ..SMALL
    },
    Row {
        name: "arctic_sevenths",
        arch: "arctic",
        n_embd: 224,
        heads: [7, 1, 32],
        n_ff: 96,
        norms: &["attn_norm", "ffn_norm", "ffn_norm_exps"],
        mixture: Some(FEW),
        output: Output::Tied,
        ..SMALL
    },
    // An old file of Grok 1, without factors.
    Row {
        name: "grok_sixths",
        arch: "grok",
        n_embd: 192,
        heads: [6, 1, 32],
        n_ff: 96,
        norms: &[
            "attn_norm",
            "attn_output_norm",
            "ffn_norm",
            "layer_output_norm",
        ],
        mixture: Some(FEW),
        ..SMALL
    },
    // Only the layer without a window scales its rotation.
    Row {
        name: "laguna_eighths",
        arch: "laguna",
        heads: [4, 1, 32],
        windows: &[false, true],
        window_heads: [8, 1],
        head_norm: HeadNorm::Each,
        gate: Gate::Heads,
        mixture: Some(Mixture {
            n_ff_shared: Some(96),
            ..FEW_BIASED
        }),
        keys: &[
            NONE_DENSE,
            NORMED,
            ("attention.sliding_window", U(9)),
            ("expert_shared_feed_forward_length", U(96)),
            ("rope.freq_base", F(5e5)),
            ("rope.freq_base_swa", F(1e4)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(4.0)),
            ("rope.scaling.original_context_length", U(16)),
        ],
        ..SMALL
    },
];
