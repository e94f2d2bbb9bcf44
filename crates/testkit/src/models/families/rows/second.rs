//! Second shapes of architectures that the rows elsewhere, or other models, have in one: other numbers of heads to a head
//! of K and V, other outputs, windows shorter than the prompt. They are small.

mod dense;
mod mixtures;
mod states;

use super::*;

const SMALL: Row = Row {
    n_layers: 2,
    n_embd: 128,
    n_ff: 192,
    prompts: &[1, 33],
    ..LLAMA
};

const FEW: Mixture = Mixture {
    n_experts: 6,
    n_used: 2,
    n_ff: 96,
    ..EXPERTS
};

const FEW_BIASED: Mixture = Mixture {
    bias: Some("exp_probs_b.bias"),
    ..FEW
};

/// All second shapes.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    let more = dense::ROWS.iter().chain(mixtures::ROWS);
    ROWS.iter().chain(more).chain(states::ROWS)
}

static ROWS: &[Row] = &[
    Row {
        name: "gpt_oss_thirds",
        arch: "gpt-oss",
        heads: [9, 3, 32],
        norms: POST_ATTENTION,
        biases: &["attn_q", "attn_k", "attn_v", "attn_output"],
        mixture: Some(FEW),
        keys: &[("attention.sliding_window", U(9))],
        ..SMALL
    },
    Row {
        name: "mistral3_tied",
        arch: "mistral3",
        heads: [7, 1, 64],
        output: Output::Tied,
        keys: &[
            ("attention.temperature_scale", F(0.3)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(4.0)),
            ("rope.scaling.original_context_length", U(16)),
        ],
        ..SMALL
    },
    Row {
        name: "minimax_m2_single",
        arch: "minimax-m2",
        heads: [3, 3, 32],
        n_ff: 96,
        head_norm: HeadNorm::Together,
        mixture: Some(Mixture {
            n_used: 1,
            ..FEW_BIASED
        }),
        keys: &[(GATING, U(1))],
        ..SMALL
    },
    Row {
        name: "qwen3vl_eighths",
        arch: "qwen3vl",
        heads: [8, 1, 32],
        head_norm: HeadNorm::Each,
        keys: &[SECTIONS],
        ..SMALL
    },
    Row {
        name: "qwen3vlmoe_thirds",
        arch: "qwen3vlmoe",
        heads: [9, 3, 64],
        head_norm: HeadNorm::Each,
        mixture: Some(FEW),
        output: Output::Tied,
        keys: &[("rope.dimension_sections", Ints(&[11, 11, 10, 0]))],
        ..SMALL
    },
    Row {
        name: "granitemoe_single",
        arch: "granitemoe",
        heads: [4, 4, 32],
        n_ff: 96,
        mixture: Some(FEW),
        keys: &[
            ("embedding_scale", F(6.0)),
            ("residual_scale", F(0.4)),
            ("attention.scale", F(0.2)),
            ("logit_scale", F(3.0)),
        ],
        ..SMALL
    },
    Row {
        name: "ernie4_5_single",
        arch: "ernie4_5",
        heads: [7, 7, 32],
        ..SMALL
    },
    Row {
        name: "ernie4_5_moe_sevenths",
        arch: "ernie4_5-moe",
        heads: [7, 1, 64],
        mixture: Some(Mixture {
            n_dense: 1,
            ..FEW_BIASED
        }),
        output: Output::Tied,
        keys: &[ONE_DENSE, ("interleave_moe_layer_step", U(1))],
        ..SMALL
    },
    Row {
        name: "hunyuan_dense_thirds",
        arch: "hunyuan-dense",
        heads: [9, 3, 32],
        head_norm: HeadNorm::Each,
        ..SMALL
    },
    Row {
        name: "hunyuan_moe_sevenths",
        arch: "hunyuan-moe",
        heads: [7, 1, 64],
        n_ff: 96,
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_ff_shared: Some(64),
            ..FEW
        }),
        keys: &[("expert_shared_feed_forward_length", U(64))],
        ..SMALL
    },
    Row {
        name: "step35_single",
        arch: "step35",
        n_layers: 3,
        heads: [3, 3, 64],
        windows: &[true, false, true],
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_dense: 1,
            n_ff_shared: Some(64),
            ..FEW_BIASED
        }),
        keys: &[
            ("attention.sliding_window", U(9)),
            ("expert_shared_feed_forward_length", U(64)),
            ("swiglu_clamp_exp", F(0.4)),
        ],
        ..SMALL
    },
    Row {
        name: "mimo2_sevenths",
        arch: "mimo2",
        heads: [7, 1, 64],
        windows: &[true, false],
        mixture: Some(FEW_BIASED),
        keys: &[
            ("attention.sliding_window", U(9)),
            ("leading_dense_block_count", U(0)),
        ],
        ..SMALL
    },
    Row {
        name: "gemma_single",
        arch: "gemma",
        heads: [3, 3, 64],
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "phi2_fused",
        arch: "phi2",
        heads: [4, 1, 32],
        norm: Norm::Layer,
        norms: &["attn_norm"],
        qkv: Qkv::Fused,
        biases: &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        feed_forward: FeedForward::Plain,
        output: Output::OwnWithBias,
        ..SMALL
    },
];
