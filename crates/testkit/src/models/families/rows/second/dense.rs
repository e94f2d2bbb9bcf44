//! Second shapes of families without experts.

use super::*;

/// Windows in the first of two layers.
const FIRST: &[bool] = &[true, false];
const WINDOW: (&str, Key) = ("attention.sliding_window", U(9));

pub(super) static ROWS: &[Row] = &[
    Row {
        name: "llama_thirds",
        arch: "llama",
        heads: [3, 1, 64],
        n_factors: 32,
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "qwen2_sevenths",
        arch: "qwen2",
        n_embd: 448,
        heads: [7, 1, 64],
        biases: QKV_BIASES,
        output: Output::Tied,
        keys: &[("rope.freq_base", F(1e6))],
        ..SMALL
    },
    Row {
        name: "qwen3_halves",
        arch: "qwen3",
        heads: [2, 1, 128],
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        keys: &[("rope.freq_base", F(1e6))],
        ..SMALL
    },
    Row {
        name: "granite_thirds",
        arch: "granite",
        heads: [3, 1, 64],
        keys: &[("logit_scale", F(3.0)), ("residual_scale", F(0.4))],
        ..SMALL
    },
    Row {
        name: "smollm3_single",
        arch: "smollm3",
        n_layers: 4,
        heads: [3, 3, 64],
        ..SMALL
    },
    Row {
        name: "olmo2_fifths",
        arch: "olmo2",
        n_embd: 320,
        heads: [5, 1, 64],
        norms: &["post_attention_norm", "post_ffw_norm"],
        head_norm: HeadNorm::Together,
        ..SMALL
    },
    // Phi-3-mini: no factors of RoPE, and all of a head rotates.
    Row {
        name: "phi3_single",
        arch: "phi3",
        n_embd: 192,
        heads: [2, 2, 96],
        qkv: Qkv::Fused,
        feed_forward: FeedForward::Fused,
        keys: &[("rope.dimension_count", U(96))],
        ..SMALL
    },
    // Phi-4-mini.
    Row {
        name: "phi3_thirds",
        arch: "phi3",
        n_embd: 192,
        heads: [3, 1, 64],
        n_factors: 24,
        has_long_factors: true,
        qkv: Qkv::Fused,
        feed_forward: FeedForward::Fused,
        output: Output::Tied,
        keys: &[
            ("rope.dimension_count", U(48)),
            ("rope.scaling.original_context_length", U(16)),
            ("rope.scaling.attn_factor", F(1.19)),
        ],
        ..SMALL
    },
    // With the caps that hold if a file states none.
    Row {
        name: "gemma2_wide",
        arch: "gemma2",
        heads: [2, 1, 256],
        norms: FOUR_NORMS,
        output: Output::Tied,
        keys: &[WINDOW],
        ..SMALL
    },
    Row {
        name: "gemma3_wide",
        arch: "gemma3",
        heads: [4, 1, 256],
        windows: FIRST,
        norms: FOUR_NORMS,
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        keys: &[WINDOW, ("rope.freq_base", F(1e6))],
        ..SMALL
    },
    // Rnj-1: no windows, and a scaled rotation.
    Row {
        name: "gemma3_global",
        arch: "gemma3",
        heads: [3, 1, 64],
        norms: FOUR_NORMS,
        head_norm: HeadNorm::Each,
        keys: &[
            ("final_logit_softcapping", F(5.0)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(4.0)),
            ("rope.scaling.original_context_length", U(16)),
        ],
        ..SMALL
    },
    Row {
        name: "gemma3n_wide",
        arch: "gemma3n",
        n_layers: 5,
        heads: [3, 1, 128],
        n_ff: 128,
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "gpt2_single",
        arch: "gpt2",
        n_embd: 192,
        heads: [3, 3, 64],
        norm: Norm::Layer,
        qkv: Qkv::Fused,
        biases: &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        feed_forward: FeedForward::Plain,
        ..SMALL
    },
    Row {
        name: "starcoder2_ninths",
        arch: "starcoder2",
        n_embd: 288,
        heads: [9, 1, 32],
        norm: Norm::Layer,
        biases: ALL_BIASES,
        feed_forward: FeedForward::Plain,
        ..SMALL
    },
    Row {
        name: "minicpm3_thirds",
        arch: "minicpm3",
        n_embd: 192,
        latent: Some(Latent {
            n_heads: 3,
            q_rank: 64,
            kv_rank: 128,
            n_plain: 64,
            n_rot: 32,
            v_dim: 64,
            matrices: HeadMatrices::Joined,
        }),
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "seed_oss_fifths",
        arch: "seed_oss",
        heads: [5, 1, 64],
        norms: POST_ATTENTION,
        output: Output::Tied,
        ..SMALL
    },
    // MiniCPM 4, with the constant factors of files that state none.
    Row {
        name: "minicpm_eighths",
        arch: "minicpm",
        n_embd: 256,
        heads: [8, 1, 32],
        n_factors: 16,
        has_long_factors: true,
        keys: &[
            ("rope.scaling.type", S("longrope")),
            ("rope.scaling.original_context_length", U(16)),
            ("rope.scaling.attn_factor", F(1.19)),
        ],
        ..SMALL
    },
    Row {
        name: "muse_glimmer_single",
        arch: "muse-glimmer",
        heads: [3, 3, 64],
        windows: FIRST,
        norms: FOUR_NORMS,
        head_norm: HeadNorm::Each,
        gate: Gate::Values,
        keys: &[
            WINDOW,
            ("logit_scale", F(1.5)),
            // Files state it; without the key, llama.cpp takes 30.
            ("final_logit_softcapping", F(0.0)),
            ("rope.freq_base_swa", F(5e3)),
        ],
        ..SMALL
    },
    Row {
        name: "cohere2_twelfths",
        arch: "cohere2",
        n_embd: 384,
        heads: [12, 1, 32],
        windows: FIRST,
        norm: Norm::LayerWithoutBias,
        norms: &["attn_norm"],
        output: Output::Tied,
        keys: &[WINDOW, ("logit_scale", F(1.0))],
        ..SMALL
    },
    Row {
        name: "internlm2_sixths",
        arch: "internlm2",
        n_embd: 384,
        heads: [6, 1, 64],
        ..SMALL
    },
    Row {
        name: "nemotron_thirds",
        arch: "nemotron",
        n_embd: 192,
        heads: [3, 1, 64],
        norm: Norm::Layer,
        biases: ALL_BIASES,
        feed_forward: FeedForward::Plain,
        keys: &[("rope.dimension_count", U(32))],
        ..SMALL
    },
    Row {
        name: "arcee_fifths",
        arch: "arcee",
        heads: [5, 1, 32],
        feed_forward: FeedForward::Plain,
        output: Output::Tied,
        keys: &[
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(20.0)),
            ("rope.scaling.original_context_length", U(16)),
        ],
        ..SMALL
    },
    Row {
        name: "apertus_eighths",
        arch: "apertus",
        heads: [8, 1, 32],
        head_norm: HeadNorm::Each,
        feed_forward: FeedForward::Plain,
        unprefixed: &[
            ("xielu.alpha_n", OfLayers(&[-0.3, 0.6, 0.2])),
            ("xielu.alpha_p", OfLayers(&[0.1, 0.9, -0.7])),
            ("xielu.beta", OfLayers(&[0.5, 0.5, 0.5])),
            ("xielu.eps", OfLayers(&[-1e-6, -1e-6, -1e-6])),
        ],
        ..SMALL
    },
    Row {
        name: "maincoder_single",
        arch: "maincoder",
        heads: [3, 3, 64],
        head_norm: HeadNorm::Each,
        ..SMALL
    },
    Row {
        name: "pangu_embedded_eighths",
        arch: "pangu-embedded",
        heads: [8, 1, 32],
        biases: &["attn_q", "attn_k", "attn_v", "attn_output"],
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "deci_ninths",
        arch: "deci",
        n_layers: 3,
        heads: [9, 1, 32],
        uneven: &[[9, 1, 192], [0, 0, 128], [9, 9, 256]],
        output: Output::Tied,
        ..SMALL
    },
    // EXAONE 3.5 2.4B, with its width of heads.
    Row {
        name: "exaone_quarters",
        arch: "exaone",
        heads: [4, 1, 80],
        ..SMALL
    },
    Row {
        name: "chatglm_halves",
        arch: "chatglm",
        n_embd: 256,
        heads: [4, 2, 64],
        qkv: Qkv::Fused,
        feed_forward: FeedForward::Fused,
        output: Output::Tied,
        keys: &[("rope.dimension_count", U(32))],
        ..SMALL
    },
    Row {
        name: "hunyuan_vl_eighths",
        arch: "hunyuan_vl",
        heads: [8, 1, 32],
        head_norm: HeadNorm::Each,
        keys: &[SECTIONS],
        ..SMALL
    },
    Row {
        name: "paddleocr_eighths",
        arch: "paddleocr",
        heads: [8, 1, 64],
        output: Output::Tied,
        keys: &[("rope.dimension_sections", Ints(&[11, 11, 10, 0]))],
        ..SMALL
    },
    Row {
        name: "plm_thirds",
        arch: "plm",
        latent: Some(Latent {
            n_heads: 3,
            q_rank: 0,
            kv_rank: 128,
            n_plain: 64,
            n_rot: 32,
            v_dim: 64,
            matrices: HeadMatrices::Joined,
        }),
        feed_forward: FeedForward::Plain,
        output: Output::Tied,
        ..SMALL
    },
    // PLaMo 3 for long contexts.
    Row {
        name: "plamo3_quarters",
        arch: "plamo3",
        heads: [4, 1, 64],
        windows: FIRST,
        norms: FOUR_NORMS,
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Each,
        feed_forward: FeedForward::Fused,
        output: Output::Tied,
        keys: &[
            WINDOW,
            ("rope.freq_base", F(1e6)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(4.0)),
            ("rope.scaling.original_context_length", U(16)),
        ],
        ..SMALL
    },
    Row {
        name: "jais2_single",
        arch: "jais2",
        heads: [3, 3, 64],
        norm: Norm::Layer,
        biases: ALL_BIASES,
        feed_forward: FeedForward::Plain,
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "openelm_wide",
        arch: "openelm",
        n_layers: 3,
        heads: [3, 1, 128],
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Each,
        uneven: &[[3, 1, 128], [3, 3, 192], [2, 1, 256]],
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "olmo_single",
        arch: "olmo",
        heads: [2, 2, 64],
        norm: Norm::Plain,
        norms: &[],
        output: Output::Tied,
        ..SMALL
    },
    Row {
        name: "bitnet_single",
        arch: "bitnet",
        n_embd: 192,
        heads: [3, 3, 64],
        output: Output::Tied,
        ..SMALL
    },
];
