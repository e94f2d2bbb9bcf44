//! Families with layers that keep states of sequences.

use super::{
    BIASED, EXPERTS, F, GATING, Gate, HeadNorm, Ints, Kind, LLAMA, Mixture, ONE_DENSE, Output,
    POST_ATTENTION, Recurrent, Row, SECTIONS, U,
};

const SHORT_CONV: Recurrent = Recurrent {
    kind: Kind::ShortConv,
    interval: 2,
    n_conv: 3,
    heads: [0; 4],
};

const DELTA: Recurrent = Recurrent {
    kind: Kind::Delta,
    interval: 2,
    n_conv: 4,
    heads: [4, 2, 32, 32],
};

const QWEN: Row = Row {
    n_layers: 4,
    norms: POST_ATTENTION,
    head_norm: HeadNorm::Each,
    gate: Gate::InQueries,
    recurrent: Some(DELTA),
    prompts: &[1, 17, 300, 1500],
    ..LLAMA
};

const QWEN_EXPERTS: Mixture = Mixture {
    n_ff_shared: Some(256),
    ..EXPERTS
};

pub(super) static ROWS: &[Row] = &[
    Row {
        name: "lfm2",
        arch: "lfm2",
        n_layers: 5,
        head_norm: HeadNorm::Each,
        recurrent: Some(SHORT_CONV),
        output: Output::Tied,
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "lfm2moe",
        arch: "lfm2moe",
        n_layers: 4,
        head_norm: HeadNorm::Each,
        recurrent: Some(Recurrent {
            n_conv: 4,
            ..SHORT_CONV
        }),
        mixture: Some(Mixture {
            n_ff_shared: None,
            ..BIASED
        }),
        output: Output::Tied,
        keys: &[(GATING, U(2)), ONE_DENSE],
        ..LLAMA
    },
    Row {
        name: "qwen35",
        arch: "qwen35",
        n_nextn: 1,
        keys: &[SECTIONS, ("full_attention_interval", U(2))],
        ..QWEN
    },
    // The proportions of released files: wide heads of which a quarter rotates, and states of 128 x 128.
    Row {
        name: "qwen35_wide",
        arch: "qwen35",
        heads: [2, 1, 256],
        recurrent: Some(Recurrent {
            interval: 4,
            heads: [6, 2, 128, 128],
            ..DELTA
        }),
        output: Output::Tied,
        keys: &[
            ("rope.dimension_sections", Ints(&[11, 11, 10, 0])),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1e7)),
        ],
        ..QWEN
    },
    Row {
        name: "qwen35moe",
        arch: "qwen35moe",
        mixture: Some(QWEN_EXPERTS),
        keys: &[
            SECTIONS,
            ("full_attention_interval", U(2)),
            ("expert_shared_feed_forward_length", U(256)),
        ],
        ..QWEN
    },
    Row {
        name: "qwen3next",
        arch: "qwen3next",
        mixture: Some(QWEN_EXPERTS),
        recurrent: Some(Recurrent {
            kind: Kind::DeltaTogether,
            ..DELTA
        }),
        keys: &[
            ("full_attention_interval", U(2)),
            ("expert_shared_feed_forward_length", U(256)),
            ("rope.dimension_count", U(16)),
        ],
        ..QWEN
    },
    Row {
        name: "qwen3next_old",
        arch: "qwen3next",
        mixture: Some(QWEN_EXPERTS),
        recurrent: Some(Recurrent {
            kind: Kind::DeltaByHead,
            heads: [6, 2, 16, 16],
            ..DELTA
        }),
        keys: &[
            ("full_attention_interval", U(2)),
            ("expert_shared_feed_forward_length", U(256)),
        ],
        ..QWEN
    },
];
