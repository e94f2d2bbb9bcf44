//! Second shapes of families with layers that keep states.

use super::super::states::{CHANNELS, DELTA, LATENT, LAYER_EPS, MAMBA, MAMBA_1, SHORT_CONV};
use super::*;

pub(super) static ROWS: &[Row] = &[
    // Two convolutions, then attention with a window.
    Row {
        name: "lfm2_thirds",
        arch: "lfm2",
        n_layers: 3,
        n_embd: 192,
        heads: [3, 1, 64],
        head_norm: HeadNorm::Each,
        recurrent: Some(Recurrent {
            interval: 3,
            ..SHORT_CONV
        }),
        keys: &[("attention.sliding_window", U(9))],
        ..SMALL
    },
    Row {
        name: "lfm2moe_quarters",
        arch: "lfm2moe",
        heads: [4, 1, 32],
        head_norm: HeadNorm::Each,
        recurrent: Some(SHORT_CONV),
        mixture: Some(FEW_BIASED),
        keys: &[(GATING, U(2))],
        ..SMALL
    },
    Row {
        name: "qwen35moe_eighths",
        arch: "qwen35moe",
        heads: [8, 1, 64],
        norms: POST_ATTENTION,
        head_norm: HeadNorm::Each,
        gate: Gate::InQueries,
        recurrent: Some(Recurrent {
            heads: [6, 3, 32, 32],
            ..DELTA
        }),
        mixture: Some(Mixture {
            n_ff_shared: Some(64),
            ..FEW
        }),
        output: Output::Tied,
        keys: &[
            ("rope.dimension_sections", Ints(&[11, 11, 10, 0])),
            ("full_attention_interval", U(2)),
            ("expert_shared_feed_forward_length", U(64)),
        ],
        ..SMALL
    },
    // The states of released files.
    Row {
        name: "mamba2_wide",
        arch: "mamba2",
        norms: &["attn_norm"],
        blocks: Blocks::NoNetwork,
        recurrent: Some(Recurrent {
            interval: usize::MAX,
            heads: [4, 1, 128, 64],
            ..MAMBA
        }),
        ..SMALL
    },
    Row {
        name: "falcon_h1_thirds",
        arch: "falcon-h1",
        heads: [3, 1, 64],
        norms: &["attn_norm"],
        recurrent: Some(Recurrent {
            kind: Kind::Mamba2Beside,
            interval: usize::MAX,
            heads: [4, 2, 64, 32],
            has_norm: false,
            ..MAMBA
        }),
        output: Output::Tied,
        ..SMALL
    },
    // A state, a network, attention, a network.
    Row {
        name: "nemotron_h_fifths",
        arch: "nemotron_h",
        n_layers: 4,
        heads: [5, 1, 64],
        norms: &["attn_norm"],
        biases: &["attn_output", "ffn_up", "ffn_down"],
        feed_forward: FeedForward::Plain,
        blocks: Blocks::OneEach,
        recurrent: Some(Recurrent {
            interval: 3,
            heads: [4, 1, 32, 64],
            ..MAMBA
        }),
        output: Output::Tied,
        keys: &[LAYER_EPS],
        ..SMALL
    },
    Row {
        name: "nemotron_h_moe_halves",
        arch: "nemotron_h_moe",
        n_layers: 4,
        heads: [2, 1, 128],
        norms: &["attn_norm"],
        feed_forward: FeedForward::Plain,
        blocks: Blocks::OneEach,
        recurrent: Some(Recurrent {
            interval: 3,
            heads: [4, 2, 64, 32],
            ..MAMBA
        }),
        mixture: Some(Mixture {
            n_ff_shared: Some(64),
            ..FEW_BIASED
        }),
        output: Output::Tied,
        keys: &[
            LAYER_EPS,
            SCALE,
            ("expert_shared_feed_forward_length", U(64)),
        ],
        ..SMALL
    },
    Row {
        name: "granitehybrid_thirds",
        arch: "granitehybrid",
        heads: [3, 1, 64],
        recurrent: Some(Recurrent {
            heads: [4, 1, 128, 64],
            ..MAMBA
        }),
        ..SMALL
    },
    // The states of released files; two of them, then attention.
    Row {
        name: "kimi_linear_wide",
        arch: "kimi-linear",
        n_layers: 3,
        heads: [3, 1, 128],
        latent: Some(Latent {
            n_heads: 3,
            kv_rank: 32,
            n_plain: 64,
            n_rot: 16,
            v_dim: 32,
            ..LATENT
        }),
        recurrent: Some(Recurrent {
            interval: 3,
            heads: [3, 3, 128, 128],
            ..CHANNELS
        }),
        mixture: Some(Mixture {
            n_ff_shared: Some(96),
            ..FEW_BIASED
        }),
        keys: &[(GATING, U(2)), SCALE, ONE_SHARED],
        ..SMALL
    },
    // Sections as in models with vision, no limits, and weights of experts as they are.
    Row {
        name: "bailingmoe3_vision",
        arch: "bailingmoe3",
        heads: [4, 1, 32],
        gate: Gate::Heads,
        latent: Some(Latent {
            n_heads: 4,
            v_dim: 32,
            ..LATENT
        }),
        recurrent: Some(Recurrent {
            kind: Kind::BoundedChannels,
            heads: [4, 4, 64, 64],
            ..CHANNELS
        }),
        mixture: Some(Mixture {
            n_ff_shared: Some(192),
            ..FEW_BIASED
        }),
        output: Output::Tied,
        keys: &[
            (GATING, U(2)),
            ("expert_shared_count", U(2)),
            ("leading_dense_block_count", U(0)),
            ("kda.gate_lower_bound", F(-3.0)),
            ("rope.dimension_sections", Ints(&[4, 6, 6, 0])),
        ],
        ..SMALL
    },
    // Values that are not whole heads of 128; no experts.
    Row {
        name: "jamba_fifths",
        arch: "jamba",
        n_embd: 160,
        heads: [5, 1, 32],
        recurrent: Some(Recurrent {
            heads: [32, 1, 8, 10],
            ..MAMBA_1
        }),
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "mamba_wide",
        arch: "mamba",
        norms: &["attn_norm"],
        blocks: Blocks::NoNetwork,
        recurrent: Some(Recurrent {
            interval: usize::MAX,
            heads: [32, 1, 40, 8],
            has_norm: false,
            ..MAMBA_1
        }),
        ..SMALL
    },
    Row {
        name: "plamo2_quarters",
        arch: "plamo2",
        heads: [4, 1, 32],
        norms: FOUR_NORMS,
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Own,
        feed_forward: FeedForward::Fused,
        recurrent: Some(Recurrent {
            kind: Kind::Mamba1Heads,
            heads: [3, 1, 32, 64],
            ..MAMBA_1
        }),
        ..SMALL
    },
];
