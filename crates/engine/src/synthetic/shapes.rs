//! The shapes of released models, as their configuration files give them.

/// What decides the tensors of a model without experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub n_layers: usize,
    pub n_embd: usize,
    pub n_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub n_vocab: usize,
    pub rope_base: f32,
    pub n_ctx: usize,
    pub norm_eps: f32,
    /// Whether the embedding is the output projection, too.
    pub is_tied: bool,
    /// Whether the file has factors of the rotation's frequencies, as those of Llama 3 do.
    pub has_rope_freqs: bool,
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
        n_heads,
        n_kv_heads,
        head_dim,
        n_vocab,
        rope_base,
        n_ctx,
        norm_eps,
        is_tied: false,
        has_rope_freqs: false,
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

/// Every known shape: layers, embedding, feed-forward; heads, KV heads, head; vocabulary, context; RoPE base, epsilon.
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
];

impl Shape {
    /// The shape of this name.
    pub fn find(name: &str) -> Option<Shape> {
        SHAPES.iter().copied().find(|shape| shape.name == name)
    }
}
