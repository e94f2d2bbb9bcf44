//! The rows: architectures, some of them in a second shape.

mod few;
mod second;
mod states;
mod windows;

use super::Key::{B, F, Ints, OfLayers, S, U};
use super::{Blocks, FeedForward, Gate, HeadNorm, Key, Mixture, Norm, Output, Qkv, Row};
use crate::models::latent::{HeadMatrices, Latent};
use crate::models::recurrent::{Kind, Recurrent};

const LLAMA: Row = Row {
    name: "",
    arch: "",
    n_layers: 3,
    n_nextn: 0,
    n_embd: 256,
    n_ff: 512,
    heads: [8, 2, 32],
    latent: None,
    recurrent: None,
    blocks: Blocks::Two,
    norm: Norm::Rms,
    norms: &["attn_norm", "ffn_norm"],
    qkv: Qkv::Separate,
    biases: &[],
    head_norm: HeadNorm::None,
    v_dim: 0,
    windows: &[],
    window_heads: [0; 2],
    uneven: &[],
    n_factors: 0,
    has_long_factors: false,
    gate: Gate::None,
    feed_forward: FeedForward::Gated,
    mixture: None,
    output: Output::Own,
    keys: &[],
    released: &[],
    unprefixed: &[],
    prompts: &[1, 33, 130],
};

const EXPERTS: Mixture = Mixture {
    n_experts: 8,
    n_used: 3,
    n_ff: 256,
    n_dense: 0,
    period: 1,
    n_ff_shared: None,
    bias: None,
    n_latent: None,
};

/// DeepSeek's kind: a dense layer, then many experts and a shared one.
const SHARED: Mixture = Mixture {
    n_experts: 12,
    n_used: 4,
    n_dense: 1,
    n_ff_shared: Some(256),
    ..EXPERTS
};

const BIASED: Mixture = Mixture {
    bias: Some("exp_probs_b.bias"),
    ..SHARED
};

const QKV_BIASES: &[&str] = &["attn_q", "attn_k", "attn_v"];
const ALL_BIASES: &[&str] = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_up",
    "ffn_down",
];
const FOUR_NORMS: &[&str] = &[
    "attn_norm",
    "post_attention_norm",
    "ffn_norm",
    "post_ffw_norm",
];
const POST_ATTENTION: &[&str] = &["attn_norm", "post_attention_norm"];

/// 1: softmax, 2: sigmoid, 3: softmax over the chosen experts, 4: sqrt(softplus).
const GATING: &str = "expert_gating_func";
const SCALE: (&str, Key) = ("expert_weights_scale", F(1.8));
const NORMED: (&str, Key) = ("expert_weights_norm", B(true));
const ONE_SHARED: (&str, Key) = ("expert_shared_count", U(1));
const ONE_DENSE: (&str, Key) = ("leading_dense_block_count", U(1));
// In the interleaved sections of Qwen 3, llama.cpp leaves pairs beyond three times a section as they are, where the models'
// own code (transformers) takes the first section. With these there are none.
const SECTIONS: (&str, Key) = ("rope.dimension_sections", Ints(&[6, 5, 5, 0]));

/// All rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    let more = windows::ROWS.iter().chain(states::ROWS);
    let more = more.chain(few::ROWS).chain(second::rows());
    ROWS.iter().chain(more)
}

static ROWS: &[Row] = &[
    Row {
        name: "qwen2vl",
        arch: "qwen2vl",
        biases: QKV_BIASES,
        // llama.cpp 0.3.36 does not read the epsilon of these files.
        keys: &[SECTIONS, ("attention.layer_norm_rms_epsilon", F(1e-9))],
        ..LLAMA
    },
    // The text part of Qwen 2.5 Omni, with its heads.
    Row {
        name: "qwen2_5_omni",
        arch: "qwen2vl",
        n_embd: 896,
        heads: [7, 1, 128],
        biases: QKV_BIASES,
        keys: &[
            ("rope.dimension_sections", Ints(&[16, 24, 24, 0])),
            ("attention.layer_norm_rms_epsilon", F(1e-9)),
            ("rope.freq_base", F(1e6)),
        ],
        ..LLAMA
    },
    Row {
        name: "qwen3vl",
        arch: "qwen3vl",
        heads: [6, 2, 64],
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        keys: &[("rope.dimension_sections", Ints(&[11, 11, 10, 0]))],
        ..LLAMA
    },
    Row {
        name: "qwen3vlmoe",
        arch: "qwen3vlmoe",
        head_norm: HeadNorm::Each,
        mixture: Some(EXPERTS),
        keys: &[SECTIONS],
        ..LLAMA
    },
    Row {
        name: "glm4",
        arch: "glm4",
        norms: FOUR_NORMS,
        biases: QKV_BIASES,
        feed_forward: FeedForward::Fused,
        keys: &[("rope.dimension_count", U(16))],
        ..LLAMA
    },
    Row {
        name: "glm4_vision",
        arch: "glm4",
        heads: [7, 1, 64],
        norms: FOUR_NORMS,
        feed_forward: FeedForward::Fused,
        output: Output::Tied,
        keys: &[
            ("rope.dimension_count", U(32)),
            ("rope.dimension_sections", Ints(&[8, 12, 12, 0])),
        ],
        ..LLAMA
    },
    Row {
        name: "glm4moe",
        arch: "glm4moe",
        n_layers: 4,
        n_nextn: 1,
        norms: POST_ATTENTION,
        biases: QKV_BIASES,
        mixture: Some(BIASED),
        keys: &[
            ONE_SHARED,
            ONE_DENSE,
            SCALE,
            NORMED,
            ("rope.dimension_count", U(16)),
        ],
        ..LLAMA
    },
    Row {
        name: "glm4moe_wide",
        arch: "glm4moe",
        heads: [7, 1, 64],
        norms: POST_ATTENTION,
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_experts: 9,
            n_used: 1,
            n_dense: 2,
            n_ff_shared: Some(512),
            ..BIASED
        }),
        output: Output::Tied,
        keys: &[
            ("expert_shared_count", U(2)),
            ("leading_dense_block_count", U(2)),
            (GATING, U(1)),
        ],
        ..LLAMA
    },
    Row {
        name: "minimax_m2",
        arch: "minimax-m2",
        heads: [6, 2, 64],
        n_ff: 256,
        head_norm: HeadNorm::Together,
        mixture: Some(Mixture {
            n_experts: 16,
            n_used: 4,
            bias: Some("exp_probs_b.bias"),
            ..EXPERTS
        }),
        keys: &[(GATING, U(2)), ("rope.dimension_count", U(32))],
        ..LLAMA
    },
    Row {
        name: "minicpm",
        arch: "minicpm",
        output: Output::Tied,
        keys: &[
            ("embedding_scale", F(12.0)),
            ("residual_scale", F(0.25)),
            ("logit_scale", F(9.0)),
        ],
        ..LLAMA
    },
    Row {
        name: "granitemoe",
        arch: "granitemoe",
        heads: [9, 3, 32],
        n_ff: 256,
        mixture: Some(Mixture {
            n_ff_shared: Some(512),
            ..EXPERTS
        }),
        output: Output::Tied,
        keys: &[
            ("embedding_scale", F(12.0)),
            ("residual_scale", F(0.22)),
            ("attention.scale", F(0.3)),
            ("logit_scale", F(8.0)),
            ("expert_shared_feed_forward_length", U(512)),
        ],
        ..LLAMA
    },
    Row {
        name: "bailingmoe",
        arch: "bailingmoe",
        heads: [8, 8, 32],
        mixture: Some(Mixture {
            n_dense: 0,
            n_ff_shared: Some(512),
            ..SHARED
        }),
        keys: &[
            ("expert_shared_count", U(2)),
            NORMED,
            ("expert_weights_scale", F(1.0)),
        ],
        ..LLAMA
    },
    Row {
        name: "bailingmoe2",
        arch: "bailingmoe2",
        qkv: Qkv::Fused,
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_experts: 16,
            ..BIASED
        }),
        keys: &[
            ONE_SHARED,
            ONE_DENSE,
            SCALE,
            NORMED,
            (GATING, U(2)),
            ("expert_group_count", U(4)),
            ("expert_group_used_count", U(2)),
            ("rope.dimension_count", U(16)),
        ],
        ..LLAMA
    },
    Row {
        name: "ernie4_5",
        arch: "ernie4_5",
        heads: [8, 1, 32],
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "ernie4_5_moe",
        arch: "ernie4_5-moe",
        mixture: Some(Mixture {
            n_ff_shared: Some(512),
            ..BIASED
        }),
        keys: &[
            ONE_DENSE,
            ("interleave_moe_layer_step", U(1)),
            ("expert_shared_feed_forward_length", U(512)),
        ],
        ..LLAMA
    },
    Row {
        name: "hunyuan_dense",
        arch: "hunyuan-dense",
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        keys: &[("rope.scaling.alpha", F(50.0))],
        ..LLAMA
    },
    Row {
        name: "hunyuan_moe",
        arch: "hunyuan-moe",
        n_ff: 256,
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            n_used: 1,
            n_ff_shared: Some(512),
            ..EXPERTS
        }),
        output: Output::Tied,
        keys: &[("expert_shared_feed_forward_length", U(512))],
        ..LLAMA
    },
    Row {
        name: "hy_v3",
        arch: "hy_v3",
        n_nextn: 1,
        heads: [7, 1, 64],
        head_norm: HeadNorm::Each,
        mixture: Some(Mixture {
            bias: Some("exp_probs_b"),
            ..SHARED
        }),
        keys: &[SCALE, NORMED],
        ..LLAMA
    },
    Row {
        name: "muse_glimmer",
        arch: "muse-glimmer",
        n_layers: 4,
        heads: [6, 2, 64],
        norms: FOUR_NORMS,
        head_norm: HeadNorm::Each,
        gate: Gate::Values,
        keys: &[
            ("attention.sliding_window", U(24)),
            ("logit_scale", F(0.6)),
            ("final_logit_softcapping", F(4.0)),
        ],
        ..LLAMA
    },
    Row {
        name: "command_r",
        arch: "command-r",
        heads: [4, 4, 64],
        norm: Norm::LayerWithoutBias,
        norms: &["attn_norm"],
        output: Output::Tied,
        keys: &[("logit_scale", F(0.0625))],
        ..LLAMA
    },
    Row {
        name: "cohere2",
        arch: "cohere2",
        n_layers: 4,
        norm: Norm::LayerWithoutBias,
        norms: &["attn_norm"],
        output: Output::Tied,
        keys: &[
            ("logit_scale", F(0.25)),
            ("attention.sliding_window", U(24)),
        ],
        ..LLAMA
    },
    Row {
        name: "exaone4",
        arch: "exaone4",
        norms: &["post_attention_norm", "post_ffw_norm"],
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "exaone4_windows",
        arch: "exaone4",
        n_layers: 64,
        n_embd: 64,
        n_ff: 64,
        heads: [2, 1, 32],
        norms: &["post_attention_norm", "post_ffw_norm"],
        head_norm: HeadNorm::Each,
        keys: &[("attention.sliding_window", U(24))],
        ..LLAMA
    },
    Row {
        name: "olmoe",
        arch: "olmoe",
        heads: [8, 8, 32],
        n_ff: 256,
        head_norm: HeadNorm::Together,
        mixture: Some(EXPERTS),
        ..LLAMA
    },
    Row {
        name: "gemma",
        arch: "gemma",
        heads: [6, 1, 64],
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "deepseek",
        arch: "deepseek",
        heads: [8, 8, 32],
        mixture: Some(Mixture {
            n_ff_shared: Some(512),
            ..SHARED
        }),
        keys: &[ONE_DENSE, ("expert_shared_count", U(2)), SCALE],
        ..LLAMA
    },
    Row {
        name: "stablelm",
        arch: "stablelm",
        norm: Norm::Layer,
        biases: QKV_BIASES,
        keys: &[("rope.dimension_count", U(8))],
        ..LLAMA
    },
    Row {
        name: "stablelm_parallel",
        arch: "stablelm",
        heads: [8, 8, 32],
        norm: Norm::Layer,
        norms: &["attn_norm"],
        ..LLAMA
    },
    Row {
        name: "internlm2",
        arch: "internlm2",
        ..LLAMA
    },
    Row {
        name: "phi2",
        arch: "phi2",
        heads: [8, 8, 32],
        norm: Norm::Layer,
        norms: &["attn_norm"],
        biases: ALL_BIASES,
        feed_forward: FeedForward::Plain,
        output: Output::OwnWithBias,
        keys: &[("rope.dimension_count", U(16))],
        ..LLAMA
    },
    Row {
        name: "falcon",
        arch: "falcon",
        heads: [8, 1, 32],
        norm: Norm::Layer,
        norms: &["attn_norm"],
        qkv: Qkv::Fused,
        feed_forward: FeedForward::Plain,
        ..LLAMA
    },
    Row {
        name: "falcon_two_norms",
        arch: "falcon",
        norm: Norm::Layer,
        norms: &["attn_norm", "attn_norm_2"],
        qkv: Qkv::Fused,
        feed_forward: FeedForward::Plain,
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "nemotron",
        arch: "nemotron",
        norm: Norm::Layer,
        feed_forward: FeedForward::Plain,
        keys: &[("rope.dimension_count", U(16))],
        ..LLAMA
    },
    Row {
        name: "arcee",
        arch: "arcee",
        heads: [7, 1, 64],
        feed_forward: FeedForward::Plain,
        ..LLAMA
    },
    Row {
        name: "dots1",
        arch: "dots1",
        heads: [6, 6, 64],
        head_norm: HeadNorm::Each,
        mixture: Some(BIASED),
        keys: &[ONE_SHARED, ONE_DENSE, SCALE, NORMED, (GATING, U(2))],
        ..LLAMA
    },
    // DeepSeek V3 and R1, Kimi K2, with their widths of heads.
    Row {
        name: "deepseek3",
        arch: "deepseek2",
        n_nextn: 1,
        latent: Some(Latent {
            n_heads: 7,
            q_rank: 96,
            kv_rank: 512,
            n_plain: 128,
            n_rot: 64,
            v_dim: 128,
            matrices: HeadMatrices::Apart,
        }),
        mixture: Some(Mixture {
            n_experts: 16,
            ..BIASED
        }),
        keys: &[
            ONE_SHARED,
            ONE_DENSE,
            SCALE,
            NORMED,
            (GATING, U(2)),
            ("expert_group_count", U(4)),
            ("expert_group_used_count", U(2)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(40.0)),
            ("rope.scaling.original_context_length", U(64)),
            ("rope.scaling.yarn_log_multiplier", F(0.1)),
        ],
        ..LLAMA
    },
    // GLM 4.7 Flash: values wider than the plain part of keys.
    Row {
        name: "glm4_flash",
        arch: "deepseek2",
        latent: Some(Latent {
            n_heads: 5,
            q_rank: 64,
            kv_rank: 128,
            n_plain: 96,
            n_rot: 32,
            v_dim: 160,
            matrices: HeadMatrices::Apart,
        }),
        mixture: Some(BIASED),
        output: Output::Tied,
        keys: &[ONE_SHARED, ONE_DENSE, SCALE, NORMED, (GATING, U(2))],
        ..LLAMA
    },
    // Mistral Large 3, with scores that grow with the position; an old file, with joined matrices.
    Row {
        name: "deepseek2_growing",
        arch: "deepseek2",
        latent: Some(Latent {
            n_heads: 6,
            q_rank: 0,
            kv_rank: 64,
            n_plain: 32,
            n_rot: 64,
            v_dim: 32,
            matrices: HeadMatrices::Joined,
        }),
        mixture: Some(SHARED),
        keys: &[
            ONE_SHARED,
            ONE_DENSE,
            ("attention.temperature_scale", F(0.4)),
            ("attention.temperature_length", U(24)),
        ],
        ..LLAMA
    },
    Row {
        name: "llama4",
        arch: "llama4",
        n_layers: 4,
        heads: [6, 2, 64],
        n_factors: 32,
        mixture: Some(Mixture {
            n_used: 2,
            n_ff_shared: Some(256),
            period: 2,
            ..EXPERTS
        }),
        keys: &[("interleave_moe_layer_step", U(2))],
        ..LLAMA
    },
    // Narrow, for a prompt longer than a chunk.
    Row {
        name: "llama4_long",
        arch: "llama4",
        n_layers: 4,
        n_embd: 64,
        n_ff: 128,
        heads: [2, 1, 32],
        mixture: Some(Mixture {
            n_used: 1,
            n_ff: 64,
            n_ff_shared: Some(64),
            ..EXPERTS
        }),
        output: Output::Tied,
        keys: &[("interleave_moe_layer_step", U(1))],
        prompts: &[1, 33, 8300],
        ..LLAMA
    },
    Row {
        name: "phimoe",
        arch: "phimoe",
        norm: Norm::RmsWithBias,
        biases: &["attn_q", "attn_k", "attn_v", "attn_output"],
        n_factors: 16,
        has_long_factors: true,
        n_ff: 256,
        mixture: Some(Mixture {
            n_used: 2,
            ..EXPERTS
        }),
        output: Output::OwnWithBias,
        keys: &[
            ("rope.scaling.original_context_length", U(256)),
            ("rope.scaling.attn_factor", F(1.19)),
            // Has no effect.
            ("attention.sliding_window", U(24)),
        ],
        prompts: &[1, 33, 300],
        ..LLAMA
    },
    Row {
        name: "apertus",
        arch: "apertus",
        heads: [6, 2, 64],
        head_norm: HeadNorm::Each,
        n_factors: 32,
        feed_forward: FeedForward::Plain,
        unprefixed: &[
            ("xielu.alpha_n", OfLayers(&[0.3, -0.6, 1.1])),
            ("xielu.alpha_p", OfLayers(&[0.8, -0.2, 0.4])),
            ("xielu.beta", OfLayers(&[0.5, 0.6, 0.3])),
            ("xielu.eps", OfLayers(&[-1e-6, -0.02, -0.005])),
        ],
        ..LLAMA
    },
    // Narrow, for a prompt longer than a window.
    Row {
        name: "smallthinker",
        arch: "smallthinker",
        n_layers: 5,
        n_embd: 64,
        n_ff: 64,
        heads: [3, 1, 64],
        mixture: Some(Mixture {
            n_ff: 64,
            ..EXPERTS
        }),
        keys: &[(GATING, U(2)), ("attention.sliding_window", U(24))],
        prompts: &[1, 33, 4200],
        ..LLAMA
    },
    Row {
        name: "smallthinker_global",
        arch: "smallthinker",
        n_ff: 256,
        mixture: Some(EXPERTS),
        output: Output::Tied,
        keys: &[(GATING, U(1))],
        ..LLAMA
    },
    Row {
        name: "maincoder",
        arch: "maincoder",
        heads: [6, 2, 64],
        head_norm: HeadNorm::Each,
        output: Output::Tied,
        ..LLAMA
    },
    Row {
        name: "pangu_embedded",
        arch: "pangu-embedded",
        heads: [7, 1, 64],
        biases: &["attn_q", "attn_k", "attn_v", "attn_output"],
        ..LLAMA
    },
];
