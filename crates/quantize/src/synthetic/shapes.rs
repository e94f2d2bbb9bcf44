//! Shapes of released models, from their configuration files.

/// The dimensions of a model's tensors; how they are connected follows from `arch`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub n_layers: usize,
    pub n_embd: usize,
    pub n_ff: usize,
    /// The experts that replace the feed-forward network.
    pub experts: Option<ShapeExperts>,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Latent attention, whose keys are `head_dim` wide.
    pub latent: Option<ShapeLatent>,
    /// Gated delta nets in place of attention in most layers.
    pub linear: Option<ShapeLinear>,
    /// Gated delta nets with a decay of each channel in place of latent attention in most layers.
    pub channels: Option<ShapeChannels>,
    /// Mamba-2 in place of attention in most layers.
    pub mamba: Option<ShapeMamba>,
    /// Mamba-1 in place of attention in most layers.
    pub selective: Option<ShapeSelective>,
    /// What each layer is, where it is one of Mamba-2 (`M`), attention (`*`) and experts (`E`); empty if layers have two blocks.
    pub blocks: &'static str,
    pub n_vocab: usize,
    pub rope_base: f32,
    pub n_ctx: usize,
    pub norm_eps: f32,
    /// Whether the embedding is also the output projection.
    pub is_tied: bool,
    /// Whether the file has RoPE frequency factors, as those of Llama 3 do.
    pub has_rope_freqs: bool,
    /// Positions visible in layers with a sliding window.
    pub window: Option<usize>,
    /// The attention of Gemma 4's layers without a window.
    pub global: Option<ShapeGlobal>,
    /// Layers after the others that predict further tokens ahead (multi-token prediction).
    pub n_nextn: usize,
}

/// Attention heads of layers without a window, where they differ from others. Their keys are also their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeGlobal {
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// One such layer ends each run of this many, and the model.
    pub every: usize,
}

/// The shape of latent attention (MLA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeLatent {
    /// Width of the vector from which queries are computed; 0 if they are computed directly.
    pub q_rank: usize,
    /// Width of the vector from which keys and values are computed.
    pub kv_rank: usize,
    /// Rotated values of a key.
    pub n_rot: usize,
    /// Values per head of V.
    pub v_dim: usize,
    /// Leading layers without experts.
    pub n_dense: usize,
}

/// The shape of layers of linear attention (gated delta nets), and of attention beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeLinear {
    /// The last layer of each so many has attention.
    pub interval: usize,
    /// Tokens that the convolution sees.
    pub n_conv: usize,
    /// Heads of values.
    pub n_heads: usize,
    /// Heads of queries and keys.
    pub n_k_heads: usize,
    /// Values per head of queries, keys and values.
    pub dim: usize,
    /// Rotated values of a head of attention.
    pub n_rot: usize,
}

/// The shape of layers of linear attention with a decay of each channel (Kimi Linear).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeChannels {
    /// The last layer of each so many has attention, as the last one of the model.
    pub interval: usize,
    /// Tokens that the convolutions see.
    pub n_conv: usize,
    pub n_heads: usize,
    /// Values per head of queries, keys and values.
    pub dim: usize,
}

/// The shape of layers of Mamba-1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeSelective {
    /// The layers with attention instead: the first of them, and the distance to the next.
    pub attention: [usize; 2],
    /// Tokens that the convolution sees.
    pub n_conv: usize,
    /// Width of the values.
    pub n_inner: usize,
    /// Values of a key.
    pub n_state: usize,
    /// Width of the vector from which steps are computed.
    pub rank: usize,
}

/// The shape of layers of Mamba-2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeMamba {
    /// The layers with attention instead, unless [`Shape::blocks`] says it: the first of them, and the distance to the next.
    pub attention: [usize; 2],
    /// Tokens that the convolution sees.
    pub n_conv: usize,
    pub n_heads: usize,
    /// Values per head.
    pub dim: usize,
    /// Heads of queries and keys, and the values of each.
    pub n_groups: usize,
    pub n_state: usize,
}

/// The shape of a mixture of experts (MoE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeExperts {
    pub n_experts: usize,
    /// Experts used per token.
    pub n_used: usize,
    /// Width of each expert; in Mixtral files this is also [`Shape::n_ff`].
    pub n_ff: usize,
    /// Width of the shared expert, which every token uses.
    pub n_ff_shared: Option<usize>,
}

const fn shape(
    (name, arch): (&'static str, &'static str),
    [n_layers, n_embd, n_ff]: [usize; 3],
    [n_heads, n_kv_heads, head_dim]: [usize; 3],
    [n_vocab, n_ctx]: [usize; 2],
    [rope_base, norm_eps]: [f32; 2],
) -> Shape {
    Shape {
        name,
        arch,
        n_layers,
        n_embd,
        n_ff,
        experts: None,
        n_heads,
        n_kv_heads,
        head_dim,
        latent: None,
        linear: None,
        channels: None,
        mamba: None,
        selective: None,
        blocks: "",
        n_vocab,
        rope_base,
        n_ctx,
        norm_eps,
        is_tied: false,
        has_rope_freqs: false,
        window: None,
        global: None,
        n_nextn: 0,
    }
}

const fn tied(shape: Shape) -> Shape {
    Shape {
        is_tied: true,
        ..shape
    }
}

const fn llama3(shape: Shape) -> Shape {
    Shape {
        has_rope_freqs: true,
        ..shape
    }
}

const fn window(n: usize, shape: Shape) -> Shape {
    Shape {
        window: Some(n),
        ..shape
    }
}

/// Gemma 4: one layer of each `every` has no window, and heads of its own.
const fn global([n_kv_heads, head_dim, every]: [usize; 3], shape: Shape) -> Shape {
    let global = ShapeGlobal {
        n_kv_heads,
        head_dim,
        every,
    };
    Shape {
        global: Some(global),
        has_rope_freqs: true,
        ..shape
    }
}

/// Adds `n_experts` experts of width `n_ff`, `n_used` of them per token.
const fn mixture([n_used, n_experts, n_ff]: [usize; 3], shape: Shape) -> Shape {
    let experts = ShapeExperts {
        n_experts,
        n_used,
        n_ff,
        n_ff_shared: None,
    };
    Shape {
        experts: Some(experts),
        ..shape
    }
}

/// As [`mixture`], with a shared expert of width `n_shared`.
const fn shared(n_shared: usize, [n_used, n_experts, n_ff]: [usize; 3], shape: Shape) -> Shape {
    let experts = ShapeExperts {
        n_experts,
        n_used,
        n_ff,
        n_ff_shared: Some(n_shared),
    };
    Shape {
        experts: Some(experts),
        ..shape
    }
}

/// Latent attention: ranks of queries and of keys and values, rotated values of a key, values per head of V, and leading
/// layers without experts.
const fn latent([q_rank, kv_rank, n_rot, v_dim, n_dense]: [usize; 5], shape: Shape) -> Shape {
    let latent = ShapeLatent {
        q_rank,
        kv_rank,
        n_rot,
        v_dim,
        n_dense,
    };
    Shape {
        latent: Some(latent),
        ..shape
    }
}

/// A layer that predicts further tokens ahead.
const fn with_drafter(shape: Shape) -> Shape {
    Shape {
        n_nextn: 1,
        ..shape
    }
}

/// Gated delta nets, of which each fourth layer has attention instead: heads of values and of keys, values per head, and
/// rotated values of a head of attention.
const fn linear([n_heads, n_k_heads, dim, n_rot]: [usize; 4], shape: Shape) -> Shape {
    let linear = ShapeLinear {
        interval: 4,
        n_conv: 4,
        n_heads,
        n_k_heads,
        dim,
        n_rot,
    };
    Shape {
        linear: Some(linear),
        ..shape
    }
}

/// Mamba-2 in most layers: the first with attention and the distance to the next; heads, values per head, heads of keys, and
/// values of each.
const fn mamba(
    attention: [usize; 2],
    [n_heads, dim, n_groups, n_state]: [usize; 4],
    shape: Shape,
) -> Shape {
    let mamba = ShapeMamba {
        attention,
        n_conv: 4,
        n_heads,
        dim,
        n_groups,
        n_state,
    };
    Shape {
        mamba: Some(mamba),
        ..shape
    }
}

/// Linear attention with a decay of each channel, of which each fourth layer and the last one have attention instead: heads, and
/// values per head.
const fn channels([n_heads, dim]: [usize; 2], shape: Shape) -> Shape {
    let channels = ShapeChannels {
        interval: 4,
        n_conv: 4,
        n_heads,
        dim,
    };
    Shape {
        channels: Some(channels),
        ..shape
    }
}

/// Mamba-1 in most layers: the first with attention and the distance to the next; width of the values, values of a key, and the
/// width from which steps are computed.
const fn selective(
    attention: [usize; 2],
    [n_inner, n_state, rank]: [usize; 3],
    shape: Shape,
) -> Shape {
    let selective = ShapeSelective {
        attention,
        n_conv: 4,
        n_inner,
        n_state,
        rank,
    };
    Shape {
        selective: Some(selective),
        ..shape
    }
}

/// Layers of one block each.
const fn blocks(blocks: &'static str, shape: Shape) -> Shape {
    Shape { blocks, ..shape }
}

/// The layers of Nemotron 3 Nano.
const NEMOTRON_3_NANO: &str = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

/// All shapes: layers, embedding, feed-forward; heads, KV heads, head size; vocabulary, context; RoPE base, epsilon.
#[rustfmt::skip]
pub const SHAPES: &[Shape] = &[
    shape(("llama-2-7b", "llama"), [32, 4096, 11008], [32, 32, 128], [32_000, 4096], [1e4, 1e-5]),
    shape(("llama-2-13b", "llama"), [40, 5120, 13824], [40, 40, 128], [32_000, 4096], [1e4, 1e-5]),
    llama3(shape(("llama-3.1-8b", "llama"), [32, 4096, 14336], [32, 8, 128], [128_256, 131_072], [5e5, 1e-5])),
    tied(llama3(shape(("llama-3.2-1b", "llama"), [16, 2048, 8192], [32, 8, 64], [128_256, 131_072], [5e5, 1e-5]))),
    llama3(shape(("llama-3.1-70b", "llama"), [80, 8192, 28672], [64, 8, 128], [128_256, 131_072], [5e5, 1e-5])),
    tied(shape(("qwen2.5-0.5b", "qwen2"), [24, 896, 4864], [14, 2, 64], [151_936, 32_768], [1e6, 1e-6])),
    tied(shape(("qwen2.5-1.5b", "qwen2"), [28, 1536, 8960], [12, 2, 128], [151_936, 32_768], [1e6, 1e-6])),
    shape(("qwen2.5-7b", "qwen2"), [28, 3584, 18944], [28, 4, 128], [152_064, 32_768], [1e6, 1e-6]),
    tied(shape(("qwen3-0.6b", "qwen3"), [28, 1024, 3072], [16, 8, 128], [151_936, 40_960], [1e6, 1e-6])),
    shape(("qwen3-8b", "qwen3"), [36, 4096, 12288], [32, 8, 128], [151_936, 40_960], [1e6, 1e-6]),
    mixture([2, 8, 14336], shape(("mixtral-8x7b", "llama"), [32, 4096, 14336], [32, 8, 128], [32_000, 32_768], [1e6, 1e-5])),
    mixture([8, 128, 768], shape(("qwen3-30b-a3b", "qwen3moe"), [48, 2048, 6144], [32, 4, 128], [151_936, 40_960], [1e6, 1e-6])),
    shared(5632, [4, 60, 1408], shape(("qwen1.5-moe-a2.7b", "qwen2moe"), [24, 2048, 5632], [16, 16, 128], [151_936, 8192], [1e6, 1e-6])),
    shape(("phi-3-mini", "phi3"), [32, 3072, 8192], [32, 32, 96], [32_064, 4096], [1e4, 1e-5]),
    window(4096, tied(shape(("gemma-2-2b", "gemma2"), [26, 2304, 9216], [8, 4, 256], [256_000, 8192], [1e4, 1e-6]))),
    window(1024, tied(shape(("gemma-3-4b", "gemma3"), [34, 2560, 10240], [8, 4, 256], [262_144, 131_072], [1e6, 1e-6]))),
    global([1, 512, 6], window(1024, tied(shape(("gemma-4-12b", "gemma4"), [48, 3840, 15360], [16, 8, 256], [262_144, 262_144], [1e6, 1e-6])))),
    global([2, 512, 6], window(1024, mixture([8, 128, 704], tied(shape(("gemma-4-26b-a4b", "gemma4"), [30, 2816, 2112], [16, 8, 256], [262_144, 262_144], [1e6, 1e-6]))))),
    window(128, mixture([4, 32, 2880], shape(("gpt-oss-20b", "gpt-oss"), [24, 2880, 2880], [64, 8, 64], [201_088, 131_072], [1.5e5, 1e-5]))),
    shape(("seed-oss-36b", "seed_oss"), [64, 5120, 27648], [80, 8, 128], [155_136, 524_288], [1e7, 1e-6]),
    linear([48, 16, 128, 64], shape(("qwen3.5-27b", "qwen35"), [64, 5120, 17408], [24, 4, 256], [248_320, 262_144], [1e7, 1e-6])),
    with_drafter(linear([48, 16, 128, 64], shape(("qwen3.5-27b-mtp", "qwen35"), [64, 5120, 17408], [24, 4, 256], [248_320, 262_144], [1e7, 1e-6]))),
    linear([32, 16, 128, 64], shared(512, [8, 256, 512], shape(("qwen3.5-35b-a3b", "qwen35moe"), [40, 2048, 512], [16, 2, 256], [248_320, 262_144], [1e7, 1e-6]))),
    with_drafter(linear([32, 16, 128, 64], shared(512, [8, 256, 512], shape(("qwen3.5-35b-a3b-mtp", "qwen35moe"), [40, 2048, 512], [16, 2, 256], [248_320, 262_144], [1e7, 1e-6])))),
    latent([0, 512, 64, 128, 1], shared(2816, [6, 64, 1408], shape(("deepseek-v2-lite", "deepseek2"), [27, 2048, 10944], [16, 1, 192], [102_400, 163_840], [1e4, 1e-6]))),
    latent([768, 512, 64, 256, 1], shared(1536, [4, 64, 1536], shape(("glm-4.7-flash", "deepseek2"), [47, 2048, 10240], [20, 1, 256], [154_880, 202_752], [1e6, 1e-5]))),
    latent([1024, 256, 64, 128, 0], shared(2048, [4, 128, 2048], shape(("mistral-small-4-119b", "mistral4"), [36, 4096, 12288], [32, 1, 128], [131_072, 1_048_576], [1e4, 1e-6]))),
    latent([768, 256, 32, 64, 0], shape(("minicpm3-4b", "minicpm3"), [62, 2560, 6400], [40, 40, 96], [73_448, 32_768], [1e4, 1e-5])),
    shape(("olmo2-7b", "olmo2"), [32, 4096, 11008], [32, 32, 128], [100_352, 4096], [5e5, 1e-6]),
    tied(shape(("granite-3.1-2b", "granite"), [40, 2048, 8192], [32, 8, 64], [49_155, 131_072], [5e6, 1e-5])),
    mamba([5, 10], [64, 64, 1, 128], tied(shape(("granite-4-h-micro", "granitehybrid"), [40, 2048, 8192], [32, 8, 64], [100_352, 131_072], [1e4, 1e-5]))),
    blocks(NEMOTRON_3_NANO, mamba([0, 1], [64, 64, 8, 128], shared(3712, [6, 128, 1856], shape(("nemotron-3-nano-30b", "nemotron_h_moe"), [52, 2688, 1856], [32, 2, 128], [131_072, 262_144], [1e4, 1e-5])))),
    channels([32, 128], latent([0, 512, 64, 128, 1], shared(1024, [8, 256, 1024], shape(("kimi-linear-48b", "kimi-linear"), [27, 2304, 9216], [32, 1, 192], [163_840, 1_048_576], [1e4, 1e-5])))),
    selective([7, 14], [5120, 16, 160], tied(shape(("jamba-reasoning-3b", "jamba"), [28, 2560, 8192], [20, 1, 128], [65_536, 262_144], [1e4, 1e-6]))),
    tied(shape(("smollm3-3b", "smollm3"), [36, 2048, 11008], [16, 4, 128], [128_256, 65_536], [5e6, 1e-6])),
    tied(shape(("gpt2", "gpt2"), [12, 768, 3072], [12, 12, 64], [50_257, 1024], [1e4, 1e-5])),
    tied(shape(("starcoder2-3b", "starcoder2"), [30, 3072, 12288], [24, 2, 128], [49_152, 16_384], [1e6, 1e-5])),
];

/// Whether a layer is one of those from the first on at a distance.
fn is_with_attention(layer: usize, [first, distance]: [usize; 2]) -> bool {
    layer >= first && (layer - first).is_multiple_of(distance)
}

impl Shape {
    /// Returns KV heads and values per head of a layer.
    pub(super) fn heads_of(&self, layer: usize) -> [usize; 2] {
        match self.global {
            Some(global) if self.is_global(layer) => [global.n_kv_heads, global.head_dim],
            _ => [self.n_kv_heads, self.head_dim],
        }
    }

    /// Returns the Mamba-2 of a layer that has it.
    pub(super) fn mamba_of(&self, layer: usize) -> Option<ShapeMamba> {
        self.mamba.filter(|mamba| match self.block_of(layer) {
            Some(block) => block == b'M',
            None => !is_with_attention(layer, mamba.attention),
        })
    }

    /// Returns the Mamba-1 of a layer that has it.
    pub(super) fn selective_of(&self, layer: usize) -> Option<ShapeSelective> {
        self.selective
            .filter(|selective| !is_with_attention(layer, selective.attention))
    }

    /// Returns the linear attention with a decay of each channel of a layer that has it.
    pub(super) fn channels_of(&self, layer: usize) -> Option<ShapeChannels> {
        self.channels.filter(|channels| {
            !(layer + 1).is_multiple_of(channels.interval) && layer + 1 != self.n_layers
        })
    }

    /// Returns what a layer is, if it has one block.
    pub(super) fn block_of(&self, layer: usize) -> Option<u8> {
        self.blocks.as_bytes().get(layer).copied()
    }

    /// Whether a layer has heads of K and V.
    pub(super) fn has_heads(&self, layer: usize) -> bool {
        match self.block_of(layer) {
            Some(block) => block == b'*',
            None => {
                self.mamba_of(layer).is_none()
                    && self.selective_of(layer).is_none()
                    && self.channels_of(layer).is_none()
            }
        }
    }

    /// Whether a layer has the heads of [`Shape::global`].
    pub(super) fn is_global(&self, layer: usize) -> bool {
        self.global.is_some_and(|global| {
            (layer + 1).is_multiple_of(global.every) || layer + 1 == self.n_layers
        })
    }

    /// Returns the shape with this name.
    pub fn find(name: &str) -> Option<Shape> {
        SHAPES.iter().copied().find(|shape| shape.name == name)
    }
}
