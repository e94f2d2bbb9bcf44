//! Families with layers that keep states of sequences.

use super::{
    B, BIASED, Blocks, EXPERTS, F, FOUR_NORMS, FeedForward, GATING, Gate, HeadMatrices, HeadNorm,
    Ints, Key, Kind, LLAMA, Latent, Mixture, NORMED, ONE_DENSE, ONE_SHARED, OfLayers, Output,
    POST_ATTENTION, Qkv, Recurrent, Row, SCALE, SECTIONS, U,
};

pub(super) const SHORT_CONV: Recurrent = Recurrent {
    kind: Kind::ShortConv,
    interval: 2,
    n_conv: 3,
    heads: [0; 4],
    has_norm: true,
};

pub(super) const DELTA: Recurrent = Recurrent {
    kind: Kind::Delta,
    interval: 2,
    n_conv: 4,
    heads: [4, 2, 32, 32],
    has_norm: true,
};

pub(super) const MAMBA: Recurrent = Recurrent {
    kind: Kind::Mamba2,
    interval: 2,
    n_conv: 4,
    heads: [8, 1, 64, 64],
    has_norm: true,
};

pub(super) const CHANNELS: Recurrent = Recurrent {
    kind: Kind::Channels,
    interval: 2,
    n_conv: 4,
    heads: [8, 8, 32, 32],
    has_norm: true,
};

pub(super) const MAMBA_1: Recurrent = Recurrent {
    kind: Kind::Mamba1,
    interval: 2,
    n_conv: 4,
    // Of 512 values, whose steps are computed from 32.
    heads: [32, 1, 16, 16],
    has_norm: true,
};

/// Latent attention in the layers without states.
pub(super) const LATENT: Latent = Latent {
    n_heads: 8,
    q_rank: 0,
    kv_rank: 64,
    n_plain: 32,
    n_rot: 32,
    v_dim: 48,
    matrices: HeadMatrices::Apart,
};

const GRANITE: &[(&str, Key)] = &[
    ("embedding_scale", F(12.0)),
    ("residual_scale", F(0.22)),
    ("attention.scale", F(0.3)),
    ("logit_scale", F(8.0)),
];

/// llama.cpp needs it also in files that state the epsilon of RMS norms.
pub(super) const LAYER_EPS: (&str, Key) = ("attention.layer_norm_epsilon", F(1e-5));

const NEMOTRON: Row = Row {
    n_layers: 6,
    norms: &["attn_norm"],
    blocks: Blocks::OneEach,
    recurrent: Some(Recurrent {
        // The layers 0 and 4; attention is in 2.
        interval: 3,
        heads: [8, 2, 64, 32],
        ..MAMBA
    }),
    keys: &[LAYER_EPS],
    prompts: &[1, 17, 300, 1500],
    ..LLAMA
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
        prompts: &[1, 33, 130, 1500],
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
    Row {
        name: "mamba2",
        arch: "mamba2",
        n_layers: 3,
        norms: &["attn_norm"],
        blocks: Blocks::NoNetwork,
        recurrent: Some(Recurrent {
            interval: usize::MAX,
            heads: [8, 2, 32, 64],
            ..MAMBA
        }),
        output: Output::Tied,
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "granitehybrid",
        arch: "granitehybrid",
        n_layers: 4,
        recurrent: Some(MAMBA),
        output: Output::Tied,
        keys: GRANITE,
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "granitehybrid_moe",
        arch: "granitehybrid",
        n_layers: 4,
        n_ff: 256,
        recurrent: Some(MAMBA),
        mixture: Some(QWEN_EXPERTS),
        keys: &[
            ("rope.scaling.finetuned", B(false)),
            ("expert_shared_feed_forward_length", U(256)),
        ],
        prompts: &[1, 33, 130, 1500],
        ..LLAMA
    },
    Row {
        name: "falcon_h1",
        arch: "falcon-h1",
        norms: &["attn_norm"],
        recurrent: Some(Recurrent {
            kind: Kind::Mamba2Beside,
            interval: usize::MAX,
            heads: [6, 1, 48, 32],
            ..MAMBA
        }),
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "nemotron_h",
        arch: "nemotron_h",
        feed_forward: FeedForward::Plain,
        ..NEMOTRON
    },
    Row {
        name: "nemotron_h_moe",
        arch: "nemotron_h_moe",
        feed_forward: FeedForward::Plain,
        mixture: Some(Mixture {
            n_dense: 0,
            ..BIASED
        }),
        keys: &[
            LAYER_EPS,
            NORMED,
            SCALE,
            ("expert_shared_feed_forward_length", U(256)),
        ],
        ..NEMOTRON
    },
    Row {
        name: "nemotron_h_latent",
        arch: "nemotron_h_moe",
        feed_forward: FeedForward::Plain,
        mixture: Some(Mixture {
            n_dense: 0,
            n_latent: Some(128),
            ..BIASED
        }),
        keys: &[
            LAYER_EPS,
            ("moe_latent_size", U(128)),
            ("expert_shared_feed_forward_length", U(256)),
        ],
        ..NEMOTRON
    },
    Row {
        name: "kimi_linear",
        arch: "kimi-linear",
        n_layers: 4,
        heads: [8, 1, 32],
        latent: Some(LATENT),
        recurrent: Some(CHANNELS),
        mixture: Some(BIASED),
        keys: &[(GATING, U(2)), SCALE, ONE_SHARED, ONE_DENSE],
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "bailingmoe3",
        arch: "bailingmoe3",
        n_layers: 4,
        n_nextn: 1,
        heads: [8, 1, 32],
        gate: Gate::Heads,
        latent: Some(Latent {
            q_rank: 96,
            ..LATENT
        }),
        recurrent: Some(Recurrent {
            kind: Kind::BoundedChannels,
            ..CHANNELS
        }),
        mixture: Some(BIASED),
        keys: &[
            (GATING, U(2)),
            SCALE,
            NORMED,
            ONE_SHARED,
            ONE_DENSE,
            ("expert_shared_feed_forward_length", U(256)),
            ("kda.safe_gate", B(true)),
            ("kda.gate_lower_bound", F(-5.0)),
            ("swiglu_clamp_exp", OfLayers(&[0.0, 0.0, 0.6, 0.4, 0.0])),
            ("swiglu_clamp_shexp", OfLayers(&[0.0, 0.5, 0.0, 0.3, 0.0])),
        ],
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "jamba",
        arch: "jamba",
        n_layers: 4,
        recurrent: Some(MAMBA_1),
        mixture: Some(Mixture {
            n_ff: 512,
            period: 2,
            ..EXPERTS
        }),
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "mamba",
        arch: "mamba",
        n_layers: 3,
        norms: &["attn_norm"],
        blocks: Blocks::NoNetwork,
        recurrent: Some(Recurrent {
            interval: usize::MAX,
            has_norm: false,
            ..MAMBA_1
        }),
        output: Output::Tied,
        keys: &[("ssm.dt_b_c_rms", B(false))],
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "falcon_mamba",
        arch: "mamba",
        n_layers: 3,
        norms: &["attn_norm"],
        blocks: Blocks::NoNetwork,
        recurrent: Some(Recurrent {
            interval: usize::MAX,
            has_norm: false,
            ..MAMBA_1
        }),
        keys: &[("ssm.dt_b_c_rms", B(true))],
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
    Row {
        name: "plamo2",
        arch: "plamo2",
        n_layers: 4,
        heads: [6, 2, 64],
        norms: FOUR_NORMS,
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Own,
        feed_forward: FeedForward::Fused,
        recurrent: Some(Recurrent {
            kind: Kind::Mamba1Heads,
            heads: [8, 1, 64, 64],
            ..MAMBA_1
        }),
        output: Output::Tied,
        prompts: &[1, 17, 300, 1500],
        ..LLAMA
    },
];
