//! Mixtures of experts with windows in some of their layers.

use crate::models::families::Key::{F, OfLayers, S, U};
use crate::models::families::{Gate, HeadNorm, Mixture, Norm, Output, Row};

use super::{
    BIASED, EXPERTS, FOUR_NORMS, GATING, LLAMA, NORMED, ONE_DENSE, ONE_SHARED, SCALE, SHARED,
};

pub(super) static ROWS: &[Row] = &[
    Row {
        name: "laguna",
        arch: "laguna",
        n_layers: 4,
        heads: [6, 2, 64],
        windows: &[false, true, true, false],
        window_heads: [8, 2],
        head_norm: HeadNorm::Each,
        gate: Gate::Heads,
        mixture: Some(BIASED),
        keys: &[
            ("attention.sliding_window", U(24)),
            ("rope.dimension_count", U(32)),
            ("rope.dimension_count_swa", U(64)),
            ("rope.freq_base_swa", F(5e3)),
            ("expert_shared_feed_forward_length", U(256)),
            ONE_DENSE,
            SCALE,
            NORMED,
        ],
        ..LLAMA
    },
    Row {
        name: "laguna_global",
        arch: "laguna",
        heads: [6, 2, 64],
        head_norm: HeadNorm::Each,
        gate: Gate::Values,
        mixture: Some(BIASED),
        output: Output::Tied,
        keys: &[ONE_SHARED, ONE_DENSE, (GATING, U(1))],
        ..LLAMA
    },
    Row {
        name: "mimo2",
        arch: "mimo2",
        n_layers: 4,
        heads: [6, 1, 96],
        v_dim: 64,
        windows: &[false, true, true, false],
        window_heads: [6, 2],
        mixture: Some(Mixture {
            n_ff_shared: None,
            ..BIASED
        }),
        keys: &[
            ("attention.sliding_window", U(24)),
            ("attention.value_scale", F(0.7)),
            ("rope.dimension_count", U(32)),
            ("rope.freq_base_swa", F(5e3)),
            ONE_DENSE,
            // Has no effect.
            SCALE,
        ],
        ..LLAMA
    },
    Row {
        name: "step35",
        arch: "step35",
        n_layers: 4,
        n_nextn: 1,
        heads: [8, 2, 64],
        windows: &[false, true, true, false],
        window_heads: [12, 2],
        n_factors: 32,
        head_norm: HeadNorm::Each,
        gate: Gate::Heads,
        mixture: Some(BIASED),
        keys: &[
            ("attention.sliding_window", U(24)),
            ("rope.freq_base_swa", F(5e3)),
            ("expert_shared_feed_forward_length", U(256)),
            ("swiglu_clamp_exp", OfLayers(&[0.0, 0.0, 0.8, 0.5, 0.0])),
            ("swiglu_clamp_shexp", OfLayers(&[0.6, 0.7, 0.0, 0.5, 0.0])),
            SCALE,
            NORMED,
        ],
        ..LLAMA
    },
    // Layers 0 and 4 have no window; of these, only the dense one rotates.
    Row {
        name: "cohere2moe",
        arch: "cohere2moe",
        n_layers: 5,
        heads: [6, 2, 64],
        norm: Norm::LayerWithoutBias,
        norms: &["attn_norm"],
        mixture: Some(SHARED),
        output: Output::Tied,
        keys: &[
            ("logit_scale", F(0.25)),
            ("attention.sliding_window", U(24)),
            ONE_SHARED,
            ONE_DENSE,
            NORMED,
        ],
        ..LLAMA
    },
    Row {
        name: "cohere2moe_softmax",
        arch: "cohere2moe",
        n_layers: 5,
        heads: [7, 1, 32],
        norm: Norm::LayerWithoutBias,
        norms: &["attn_norm"],
        mixture: Some(Mixture {
            n_dense: 0,
            ..EXPERTS
        }),
        keys: &[
            ("logit_scale", F(2.0)),
            ("attention.sliding_window", U(40)),
            ("leading_dense_block_count", U(0)),
            SCALE,
            (GATING, U(1)),
        ],
        ..LLAMA
    },
    Row {
        name: "exaone_moe",
        arch: "exaone-moe",
        n_layers: 4,
        heads: [6, 2, 64],
        head_norm: HeadNorm::Each,
        mixture: Some(BIASED),
        keys: &[
            ("attention.sliding_window", U(24)),
            ONE_SHARED,
            ONE_DENSE,
            SCALE,
            NORMED,
            (GATING, U(2)),
        ],
        ..LLAMA
    },
    Row {
        name: "exaone_moe_listed",
        arch: "exaone-moe",
        heads: [8, 1, 32],
        windows: &[false, true, false],
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_ff_shared: Some(512),
            n_dense: 0,
            ..SHARED
        }),
        keys: &[
            ("attention.sliding_window", U(40)),
            ("expert_shared_feed_forward_length", U(512)),
            (GATING, U(1)),
        ],
        ..LLAMA
    },
    Row {
        name: "afmoe",
        arch: "afmoe",
        n_layers: 4,
        heads: [6, 2, 64],
        norms: FOUR_NORMS,
        head_norm: HeadNorm::Each,
        gate: Gate::Values,
        mixture: Some(BIASED),
        keys: &[
            ("attention.sliding_window", U(24)),
            ("rope.freq_base_swa", F(5e3)),
            ONE_SHARED,
            ONE_DENSE,
            SCALE,
            NORMED,
        ],
        ..LLAMA
    },
    Row {
        name: "afmoe_softmax",
        arch: "afmoe",
        n_layers: 4,
        heads: [7, 1, 32],
        norms: FOUR_NORMS,
        head_norm: HeadNorm::Each,
        gate: Gate::Values,
        mixture: Some(Mixture {
            n_ff_shared: Some(512),
            ..BIASED
        }),
        output: Output::Tied,
        keys: &[
            ("attention.sliding_window", U(40)),
            ("expert_shared_count", U(2)),
            ONE_DENSE,
            (GATING, U(1)),
        ],
        ..LLAMA
    },
    Row {
        name: "mellum",
        arch: "mellum",
        n_layers: 4,
        head_norm: HeadNorm::Each,
        mixture: Some(EXPERTS),
        keys: &[
            ("attention.sliding_window", U(24)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(8.0)),
            ("rope.scaling.original_context_length", U(64)),
        ],
        ..LLAMA
    },
    Row {
        name: "mellum_global",
        arch: "mellum",
        heads: [7, 1, 64],
        head_norm: HeadNorm::Each,
        mixture: Some(EXPERTS),
        ..LLAMA
    },
];
