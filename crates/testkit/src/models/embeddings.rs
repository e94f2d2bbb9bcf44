//! Random models for embeddings: those that attend to both sides, and decoders with a classifier.

use rocmforge_gguf::{Error, GgmlType, Writer};

use super::{N_VOCAB, Synth};

/// A model, and the ways in which its hidden values are pooled.
pub struct Case {
    pub name: &'static str,
    /// Names of poolings, as in options.
    pub poolings: &'static [&'static str],
}

const VECTORS: &[&str] = &["mean", "cls", "last"];
const SCORES: &[&str] = &["rank"];

const fn case(name: &'static str, poolings: &'static [&'static str]) -> Case {
    Case { name, poolings }
}

/// The models: architectures, some of them in a second shape.
pub const CASES: [Case; 25] = [
    case("bert", VECTORS),
    case("bert_scores", SCORES),
    case("bert_labels", SCORES),
    case("nomic_bert", VECTORS),
    case("nomic_bert_moe", VECTORS),
    case("jina_bert_v2", VECTORS),
    case("jina_bert_v2_code", VECTORS),
    case("jina_bert_v2_scores", SCORES),
    case("jina_bert_v3", VECTORS),
    case("modern_bert", VECTORS),
    case("modern_bert_silu", &["mean"]),
    case("modern_bert_scores", SCORES),
    case("gemma_embedding", VECTORS),
    case("qwen3_embedding", VECTORS),
    case("qwen3_scores", SCORES),
    case("llama_embed", VECTORS),
    case("eurobert", VECTORS),
    case("neo_bert", VECTORS),
    case("nomic_bert_thirds", &["cls"]),
    case("nomic_bert_moe_small", &["mean"]),
    case("jina_bert_v3_wide", &["mean"]),
    case("gemma_embedding_wide", &["mean"]),
    case("llama_embed_thirds", &["mean"]),
    case("eurobert_single", &["mean"]),
    case("neo_bert_scores", SCORES),
];

/// Models of the cases and other types of their matrices for which there are embeddings of llama.cpp, with the first way
/// of pooling.
pub const QUANTIZED: [(&str, GgmlType); 8] = [
    ("bert", GgmlType::Q8_0),
    ("bert", GgmlType::F16),
    ("nomic_bert", GgmlType::Q8_0),
    ("nomic_bert_moe", GgmlType::Q8_0),
    ("jina_bert_v2", GgmlType::F16),
    ("modern_bert", GgmlType::Q8_0),
    ("gemma_embedding", GgmlType::Q8_0),
    ("qwen3_embedding", GgmlType::Q8_0),
];

/// Models that are compared on an emulated GPU with the CPU, in F16.
pub const ON_GPU: [&str; 20] = [
    "bert",
    "bert_scores",
    "nomic_bert",
    "nomic_bert_moe",
    "jina_bert_v2",
    "jina_bert_v2_code",
    "modern_bert",
    "gemma_embedding",
    "qwen3_scores",
    "jina_bert_v2_scores",
    "llama_embed",
    "eurobert",
    "neo_bert",
    "nomic_bert_thirds",
    "nomic_bert_moe_small",
    "jina_bert_v3_wide",
    "gemma_embedding_wide",
    "llama_embed_thirds",
    "eurobert_single",
    "neo_bert_scores",
];

/// Lengths of the texts for which there are embeddings of llama.cpp.
pub const LENGTHS: [usize; 3] = [1, 33, 130];

/// Returns what is kept of an embedding.
pub fn kept(embedding: &[f32]) -> Vec<f32> {
    let step = embedding.len().div_ceil(32);
    embedding.iter().copied().step_by(step).collect()
}

/// The shape of a model, and how it differs from BERT.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    arch: &'static str,
    n_layers: usize,
    n_embd: usize,
    n_ff: usize,
    /// Query heads, heads of K and V, values per head.
    heads: [usize; 3],
    network: Network,
    biases: Biases,
    has_types: bool,
    scores: Scores,
}

#[derive(Clone, Copy, PartialEq)]
enum Network {
    Plain,
    Gated,
    /// Gate and up in one tensor.
    Fused,
    /// Experts without gates in every other layer.
    Experts,
}

#[derive(Clone, Copy, PartialEq)]
enum Biases {
    None,
    /// Of norms.
    Norms,
    /// Of norms and of projections.
    All,
}

/// The classifier.
#[derive(Clone, Copy, PartialEq)]
enum Scores {
    None,
    /// Two projections, one score.
    Two,
    /// The first projection alone, one score.
    One,
    /// One projection, a score for each label.
    Labels(&'static [&'static str]),
}

const BERT: Shape = Shape {
    name: "bert",
    arch: "bert",
    n_layers: 3,
    n_embd: 128,
    n_ff: 256,
    heads: [4, 4, 32],
    network: Network::Plain,
    biases: Biases::All,
    has_types: true,
    scores: Scores::None,
};

const SMALL: Shape = Shape {
    n_layers: 2,
    n_ff: 192,
    ..BERT
};

#[rustfmt::skip]
const SHAPES: [Shape; 25] = [
    BERT,
    Shape { name: "bert_scores", n_embd: 192, heads: [3, 3, 64], scores: Scores::Two, has_types: false, ..BERT },
    Shape { name: "bert_labels", scores: Scores::Labels(&["a", "b", "c"]), ..BERT },
    Shape { name: "nomic_bert", arch: "nomic-bert", heads: [2, 2, 64], network: Network::Gated, biases: Biases::Norms, ..BERT },
    Shape { name: "nomic_bert_moe", arch: "nomic-bert-moe", heads: [2, 2, 64], n_layers: 4, network: Network::Experts, ..BERT },
    Shape { name: "jina_bert_v2", arch: "jina-bert-v2", heads: [2, 2, 64], network: Network::Gated, ..BERT },
    Shape { name: "jina_bert_v2_code", arch: "jina-bert-v2", n_embd: 192, heads: [6, 6, 32], network: Network::Fused, ..BERT },
    Shape { name: "jina_bert_v2_scores", arch: "jina-bert-v2", n_embd: 192, heads: [3, 3, 64], network: Network::Gated, scores: Scores::One, ..BERT },
    Shape { name: "jina_bert_v3", arch: "jina-bert-v3", ..BERT },
    Shape { name: "modern_bert", arch: "modern-bert", n_layers: 4, heads: [2, 2, 64], network: Network::Fused, biases: Biases::None, ..BERT },
    Shape { name: "modern_bert_silu", arch: "modern-bert", network: Network::Fused, biases: Biases::None, ..BERT },
    Shape { name: "modern_bert_scores", arch: "modern-bert", heads: [2, 2, 64], network: Network::Fused, biases: Biases::None, scores: Scores::Two, ..BERT },
    Shape { name: "gemma_embedding", arch: "gemma-embedding", n_layers: 7, heads: [3, 1, 64], network: Network::Gated, biases: Biases::None, ..BERT },
    Shape { name: "qwen3_embedding", arch: "qwen3", heads: [4, 2, 64], network: Network::Gated, biases: Biases::None, ..BERT },
    Shape { name: "qwen3_scores", arch: "qwen3", heads: [4, 2, 64], network: Network::Gated, biases: Biases::None, scores: Scores::Labels(&["yes", "no"]), ..BERT },
    Shape { name: "llama_embed", arch: "llama-embed", heads: [4, 2, 32], network: Network::Gated, biases: Biases::None, ..BERT },
    Shape { name: "eurobert", arch: "eurobert", n_embd: 192, heads: [3, 1, 64], network: Network::Gated, biases: Biases::None, ..BERT },
    Shape { name: "neo_bert", arch: "neo-bert", heads: [2, 2, 64], network: Network::Fused, biases: Biases::None, ..BERT },
    Shape { name: "nomic_bert_thirds", arch: "nomic-bert", n_embd: 192, heads: [3, 3, 64], network: Network::Gated, biases: Biases::Norms, has_types: false, ..SMALL },
    Shape { name: "nomic_bert_moe_small", arch: "nomic-bert-moe", network: Network::Experts, has_types: false, ..SMALL },
    Shape { name: "jina_bert_v3_wide", arch: "jina-bert-v3", n_embd: 192, heads: [3, 3, 64], has_types: false, ..SMALL },
    Shape { name: "gemma_embedding_wide", arch: "gemma-embedding", heads: [3, 1, 256], network: Network::Gated, biases: Biases::None, ..SMALL },
    Shape { name: "llama_embed_thirds", arch: "llama-embed", heads: [3, 1, 64], network: Network::Gated, biases: Biases::None, ..SMALL },
    Shape { name: "eurobert_single", arch: "eurobert", heads: [2, 2, 64], network: Network::Gated, biases: Biases::None, ..SMALL },
    Shape { name: "neo_bert_scores", arch: "neo-bert", n_embd: 192, heads: [3, 3, 64], network: Network::Fused, biases: Biases::None, scores: Scores::Two, ..SMALL },
];

/// Creates the model `name` with matrices of type `ty`; `None` if the name is unknown.
pub fn model(name: &str, ty: GgmlType) -> Option<Result<Writer<'static>, Error>> {
    let shape = SHAPES.iter().find(|shape| shape.name == name)?;
    Some(shape.write(ty))
}

/// Returns the architecture of the model `name`.
pub fn architecture(name: &str) -> Option<&'static str> {
    let shape = SHAPES.iter().find(|shape| shape.name == name)?;
    Some(shape.arch)
}

impl Shape {
    fn write(&self, ty: GgmlType) -> Result<Writer<'static>, Error> {
        let mut model = Synth {
            head_dims: [self.heads[2]; 2],
            ..Synth::new((self.name, self.arch), ty, self.n_layers)
        };
        self.facts(&mut model);
        model.vocabulary();
        match self.is_normed_before() {
            true => self.normed_before(&mut model)?,
            false => self.normed_after(&mut model)?,
        }
        self.classifier(&mut model)?;
        Ok(model.writer)
    }

    fn facts(&self, model: &mut Synth) {
        model.writer.set("general.name", "random");
        let [n_heads, n_kv_heads, head_dim] = self.heads;
        for (key, value) in [
            ("block_count", self.n_layers),
            ("context_length", 512),
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", n_kv_heads),
            ("vocab_size", N_VOCAB),
        ] {
            model.set(key, value as u32);
        }
        if n_heads * head_dim != self.n_embd {
            model.set("attention.key_length", head_dim as u32);
            model.set("attention.value_length", head_dim as u32);
        }
        match self.arch {
            arch if self.is_normed_before() && arch != "modern-bert" => {
                model.set("attention.layer_norm_rms_epsilon", 1e-5f32);
            }
            _ => model.set("attention.layer_norm_epsilon", 1e-5f32),
        }
        if self.arch != "qwen3" {
            model.set("attention.causal", false);
        }
        model.set("rope.freq_base", 20_000f32);
        // Narrower than the longest text, and not than the others.
        match self.name {
            "gemma_embedding" => model.set("attention.sliding_window", 24u32),
            "gemma_embedding_wide" => {
                model.set("attention.sliding_window", 24u32);
                model.set("attention.sliding_window_pattern", 2u32);
            }
            "modern_bert" => {
                model.set("attention.sliding_window", 32u32);
                model.set("rope.freq_base_swa", 5_000f32);
            }
            "modern_bert_silu" => model.set("hidden_activation", "silu"),
            _ => {}
        }
        if self.network == Network::Experts {
            model.set("moe_every_n_layers", 2u32);
            model.set("expert_count", 8u32);
            model.set("expert_used_count", 2u32);
        }
        let w = &mut model.writer;
        w.set("tokenizer.ggml.token_type_count", 2u32);
        if let Scores::Labels(labels) = self.scores {
            let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
            model.set("classifier.output_labels", labels);
        }
        if self.scores != Scores::None {
            model.set("pooling_type", 4u32);
        }
    }

    /// Whether norms stand before each block.
    fn is_normed_before(&self) -> bool {
        let others = [
            "modern-bert",
            "gemma-embedding",
            "qwen3",
            "llama-embed",
            "eurobert",
            "neo-bert",
        ];
        others.contains(&self.arch)
    }

    /// BERT's layers.
    fn normed_after(&self, model: &mut Synth) -> Result<(), Error> {
        let n_embd = self.n_embd;
        model.matrix("token_embd.weight", N_VOCAB, n_embd)?;
        // In F32, as in released files: llama.cpp adds no other rows.
        let reach = (3.0 / n_embd as f64).sqrt() as f32;
        if self.has_types {
            model.rows("token_types.weight", [2, n_embd], 0.0, reach)?;
        }
        if self.arch == "bert" {
            model.rows("position_embd.weight", [512, n_embd], 0.0, reach)?;
        }
        self.norm(model, "token_embd_norm", n_embd)?;
        for layer in 0..self.n_layers {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            self.attention(model, &tensor)?;
            self.norm(model, &tensor("attn_output_norm"), n_embd)?;
            if self.name == "jina_bert_v2_code" {
                self.norm(model, &tensor("attn_norm_2"), n_embd)?;
                self.norm(model, &tensor("attn_q_norm"), n_embd)?;
                self.norm(model, &tensor("attn_k_norm"), n_embd)?;
            }
            self.network(model, layer, &tensor)?;
            self.norm(model, &tensor("layer_output_norm"), n_embd)?;
        }
        Ok(())
    }

    /// Layers with norms before each block.
    fn normed_before(&self, model: &mut Synth) -> Result<(), Error> {
        let (n_embd, head_dim) = (self.n_embd, self.heads[2]);
        model.matrix("token_embd.weight", N_VOCAB, n_embd)?;
        if self.arch == "modern-bert" {
            self.norm(model, "token_embd_norm", n_embd)?;
        }
        let output_norm = match self.arch {
            "neo-bert" => "enc.output_norm",
            _ => "output_norm",
        };
        self.norm(model, output_norm, n_embd)?;
        for layer in 0..self.n_layers {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            if layer > 0 || self.arch != "modern-bert" {
                self.norm(model, &tensor("attn_norm"), n_embd)?;
            }
            self.attention(model, &tensor)?;
            if matches!(self.arch, "gemma-embedding" | "qwen3") {
                self.norm(model, &tensor("attn_q_norm"), head_dim)?;
                self.norm(model, &tensor("attn_k_norm"), head_dim)?;
            }
            if self.arch == "gemma-embedding" {
                self.norm(model, &tensor("post_attention_norm"), n_embd)?;
                self.norm(model, &tensor("post_ffw_norm"), n_embd)?;
            }
            self.norm(model, &tensor("ffn_norm"), n_embd)?;
            self.network(model, layer, &tensor)?;
        }
        if self.name == "gemma_embedding" {
            model.set("dense_2_feat_in", n_embd as u32);
            model.set("dense_2_feat_out", 320u32);
            model.set("dense_3_feat_in", 320u32);
            model.set("dense_3_feat_out", n_embd as u32);
            model.matrix("dense_2.weight", 320, n_embd)?;
            model.matrix("dense_3.weight", n_embd, 320)?;
        }
        Ok(())
    }

    fn attention(&self, model: &mut Synth, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        let [n_heads, n_kv_heads, head_dim] = self.heads;
        let (n_q, n_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        self.linear(model, &tensor("attn_output"), [self.n_embd, n_q])?;
        if matches!(self.arch, "modern-bert" | "nomic-bert" | "neo-bert") {
            return self.linear(model, &tensor("attn_qkv"), [n_q + 2 * n_kv, self.n_embd]);
        }
        self.linear(model, &tensor("attn_q"), [n_q, self.n_embd])?;
        self.linear(model, &tensor("attn_k"), [n_kv, self.n_embd])?;
        self.linear(model, &tensor("attn_v"), [n_kv, self.n_embd])
    }

    fn network(
        &self,
        model: &mut Synth,
        layer: usize,
        tensor: &dyn Fn(&str) -> String,
    ) -> Result<(), Error> {
        let (n_embd, n_ff) = (self.n_embd, self.n_ff);
        if self.network == Network::Experts && layer % 2 == 1 {
            model.router(&tensor("ffn_gate_inp.weight"), [8, n_embd])?;
            model.expert_matrices(&tensor("ffn_up_exps.weight"), [8, n_ff, n_embd])?;
            return model.expert_matrices(&tensor("ffn_down_exps.weight"), [8, n_embd, n_ff]);
        }
        self.linear(model, &tensor("ffn_down"), [n_embd, n_ff])?;
        match self.network {
            Network::Fused => model.matrix(&tensor("ffn_up.weight"), 2 * n_ff, n_embd),
            Network::Gated => {
                model.matrix(&tensor("ffn_gate.weight"), n_ff, n_embd)?;
                model.matrix(&tensor("ffn_up.weight"), n_ff, n_embd)
            }
            Network::Plain | Network::Experts => {
                self.linear(model, &tensor("ffn_up"), [n_ff, n_embd])
            }
        }
    }

    fn classifier(&self, model: &mut Synth) -> Result<(), Error> {
        match self.scores {
            Scores::None => Ok(()),
            Scores::Two => {
                self.linear(model, "cls", [self.n_embd; 2])?;
                if self.arch == "modern-bert" {
                    model.vector("cls.norm.weight", self.n_embd, 1.0, 0.3)?;
                }
                self.linear(model, "cls.output", [1, self.n_embd])
            }
            Scores::One => self.linear(model, "cls", [1, self.n_embd]),
            Scores::Labels(labels) => self.linear(model, "cls.output", [labels.len(), self.n_embd]),
        }
    }

    fn norm(&self, model: &mut Synth, name: &str, width: usize) -> Result<(), Error> {
        model.vector(&format!("{name}.weight"), width, 1.0, 0.3)?;
        if self.biases != Biases::None {
            model.vector(&format!("{name}.bias"), width, 0.0, 0.5)?;
        }
        Ok(())
    }

    /// Adds a matrix `[n_out, n_in]`, and its bias if projections have biases.
    fn linear(
        &self,
        model: &mut Synth,
        name: &str,
        [n_out, n_in]: [usize; 2],
    ) -> Result<(), Error> {
        model.matrix(&format!("{name}.weight"), n_out, n_in)?;
        if self.biases == Biases::All {
            model.vector(&format!("{name}.bias"), n_out, 0.0, 0.5)?;
        }
        Ok(())
    }
}
