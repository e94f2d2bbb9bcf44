//! Second shapes of families with layers that keep states.

use super::super::states::{DELTA, LAYER_EPS, MAMBA, SHORT_CONV};
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
];
