//! Architectures that need little beside those of other rows.

use super::*;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "exaone",
        arch: "exaone",
        heads: [7, 1, 64],
        n_factors: 32,
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "chatglm",
        arch: "chatglm",
        heads: [8, 1, 32],
        qkv: Qkv::Fused,
        biases: &["attn_qkv"],
        feed_forward: FeedForward::Fused,
        keys: &[("rope.dimension_count", U(16))],
        ..LLAMA
    },
    Row {
        name: "deepseek2_ocr",
        arch: "deepseek2-ocr",
        heads: [8, 8, 32],
        mixture: Some(Mixture {
            n_ff_shared: Some(512),
            ..SHARED
        }),
        keys: &[ONE_DENSE, ("expert_shared_count", U(2)), SCALE],
        ..LLAMA
    },
    Row {
        name: "hunyuan_vl",
        arch: "hunyuan_vl",
        heads: [6, 2, 64],
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        keys: &[
            ("rope.scaling.alpha", F(50.0)),
            // In a fourth section, llama.cpp gives the tokens of a text position 0.
            ("rope.dimension_sections", Ints(&[11, 11, 10, 0])),
        ],
        ..LLAMA
    },
    Row {
        name: "paddleocr",
        arch: "paddleocr",
        keys: &[SECTIONS],
        ..LLAMA
    },
    Row {
        name: "plm",
        arch: "plm",
        latent: Some(Latent {
            n_heads: 5,
            q_rank: 0,
            kv_rank: 64,
            n_plain: 32,
            n_rot: 16,
            v_dim: 32,
            matrices: HeadMatrices::Joined,
        }),
        feed_forward: FeedForward::Plain,
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "plamo3",
        arch: "plamo3",
        n_layers: 4,
        heads: [6, 2, 64],
        norms: FOUR_NORMS,
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Each,
        feed_forward: FeedForward::Fused,
        keys: &[
            ("attention.sliding_window", U(24)),
            ("attention.sliding_window_pattern", U(2)),
            ("rope.freq_base_swa", F(5_000.0)),
        ],
        ..LLAMA
    },
    Row {
        name: "jais2",
        arch: "jais2",
        norm: Norm::Layer,
        biases: ALL_BIASES,
        feed_forward: FeedForward::Plain,
        ..LLAMA
    },
    Row {
        name: "arctic",
        arch: "arctic",
        norms: &["attn_norm", "ffn_norm", "ffn_norm_exps"],
        n_ff: 256,
        mixture: Some(EXPERTS),
        ..LLAMA
    },
    Row {
        name: "openelm",
        arch: "openelm",
        heads: [4, 2, 64],
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Each,
        uneven: &[[4, 2, 256], [6, 3, 512], [4, 1, 768]],
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "olmo",
        arch: "olmo",
        norm: Norm::Plain,
        norms: &[],
        ..LLAMA
    },
    Row {
        name: "deci",
        arch: "deci",
        n_layers: 5,
        n_factors: 16,
        uneven: &[
            [8, 2, 512],
            [0, 0, 256],
            [0, 0, 0],
            [8, 0, 512],
            [8, 1, 768],
        ],
        ..LLAMA
    },
    Row {
        name: "bitnet",
        arch: "bitnet",
        output: Output::Tied,
        keys: &[
            ("rope.scaling.type", S("linear")),
            ("rope.scaling.factor", F(1.0)),
        ],
        prompts: &[1, 33],
        ..LLAMA
    },
    // The keys of converters, which write the cap of the router without use.
    Row {
        name: "grok",
        arch: "grok",
        norms: &["attn_norm", "attn_output_norm", "ffn_norm", "post_ffw_norm"],
        n_ff: 256,
        mixture: Some(Mixture {
            n_used: 2,
            ..EXPERTS
        }),
        output: Output::Tied,
        keys: &[
            ("embedding_scale", F(9.0)),
            ("logit_scale", F(0.4)),
            ("attention.output_scale", F(0.2)),
            ("attn_logit_softcapping", F(3.0)),
            ("router_logit_softcapping", F(30.0)),
            ("final_logit_softcapping", F(5.0)),
        ],
        prompts: &[1, 33],
        ..LLAMA
    },
    // Command R+, whose norms of heads llama.cpp reads in models of so many layers; narrow.
    Row {
        name: "command_r_plus",
        arch: "command-r",
        n_layers: 64,
        n_embd: 64,
        n_ff: 64,
        heads: [2, 1, 32],
        norm: Norm::LayerWithoutBias,
        norms: &["attn_norm"],
        head_norm: HeadNorm::Own,
        output: Output::Tied,
        keys: &[("logit_scale", F(0.25))],
        ..LLAMA
    },
    Row {
        name: "stablelm_12b",
        arch: "stablelm",
        norm: Norm::Layer,
        norms: &["attn_norm"],
        head_norm: HeadNorm::Own,
        keys: &[("rope.dimension_count", U(8))],
        ..LLAMA
    },
];
