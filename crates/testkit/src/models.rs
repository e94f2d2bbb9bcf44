//! Small random models of every architecture, with the same bytes every time. Tests compare their logits with
//! committed ones of llama.cpp; `cargo xtask gen-model` writes them as files for llama.cpp itself.
//!
//! The weights mean nothing. They are scaled so that activations stay finite, and every factor, window and norm
//! is far enough from its neutral value that leaving it out changes the logits.

pub mod dflash;
pub mod eagle3;
pub mod embeddings;
pub mod families;
mod gemma3n;
mod gemma4;
mod gpt_oss;
mod latent;
mod outline;
pub mod plamo;
mod recurrent;

use gemma3n::GEMMA3N;
pub use gemma4::assistant;
use rocmforge_gguf::quant::quantize_rows;
use rocmforge_gguf::{Error, GgmlType, OwnedValue, Writer};

pub use outline::{Outline, OutlineTensor, Values};

/// Model names: architectures, `olmo3` (`olmo2` with windows and YaRN), `mixtral` (`llama` with experts), and
/// `deepseek2_old` (`deepseek2` with the heads' matrices in one tensor, queries of low rank, and no YaRN).
pub const NAMES: [&str; 26] = [
    "llama",
    "qwen2",
    "qwen3",
    "granite",
    "smollm3",
    "olmo2",
    "olmo3",
    "phi3",
    "gemma2",
    "gemma3",
    "gpt2",
    "starcoder2",
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "seed_oss",
    "mistral3",
    "gemma4",
    "gemma4_wide",
    "gemma4_moe",
    "gpt_oss",
    "deepseek2",
    "deepseek2_old",
    "mistral4",
    "minicpm3",
    "gemma3n",
];

/// Models and types of their matrices, for types in which llama.cpp made none of the files of forge-mini. Also
/// latent attention, whose matrices of heads are multiplied in a way of their own. Not qwen2 or phi3 in NVFP4: there,
/// llama.cpp ignores the factors beside the matrices of the feed-forward network.
pub const QUANTIZED: [(&str, &str); 16] = [
    ("llama", "Q1_0"),
    ("llama", "Q2_0"),
    ("llama", "TQ1_0"),
    ("llama", "TQ2_0"),
    ("llama", "NVFP4"),
    ("mixtral", "NVFP4"),
    ("qwen3moe", "NVFP4"),
    ("llama", "IQ1_S"),
    ("llama", "IQ1_M"),
    ("llama", "IQ2_XXS"),
    ("llama", "IQ2_XS"),
    ("llama", "IQ2_S"),
    ("llama", "IQ3_XXS"),
    ("llama", "IQ3_S"),
    ("deepseek2", "Q4_0"),
    ("minicpm3", "Q4_0"),
];

/// Models and types of their matrices that are compared on an emulated GPU with the CPU (`engine/tests/it/gpu.rs`), beside
/// F16, in which all models are.
pub const ON_GPU: [(&str, GgmlType); 33] = [
    ("llama", GgmlType::F32),
    ("gemma2", GgmlType::F16),
    ("gpt2", GgmlType::BF16),
    ("qwen2", GgmlType::Q4_0),
    ("qwen3", GgmlType::Q4_1),
    ("granite", GgmlType::Q5_0),
    ("phi3", GgmlType::Q5_1),
    ("gemma3", GgmlType::Q8_0),
    ("llama", GgmlType::Q2_K),
    ("smollm3", GgmlType::Q3_K),
    ("olmo2", GgmlType::Q4_K),
    ("olmo3", GgmlType::Q5_K),
    ("starcoder2", GgmlType::Q6_K),
    ("llama", GgmlType::IQ4_NL),
    ("qwen2", GgmlType::IQ4_XS),
    ("llama", GgmlType::MXFP4),
    ("llama", GgmlType::Q1_0),
    ("qwen2", GgmlType::Q2_0),
    ("qwen3", GgmlType::NVFP4),
    ("granite", GgmlType::TQ1_0),
    ("smollm3", GgmlType::TQ2_0),
    ("llama", GgmlType::IQ1_S),
    ("llama", GgmlType::IQ1_M),
    ("olmo2", GgmlType::IQ2_XXS),
    ("llama", GgmlType::IQ2_XS),
    ("gemma3", GgmlType::IQ2_S),
    ("phi3", GgmlType::IQ3_XXS),
    ("qwen2", GgmlType::IQ3_S),
    ("uneven", GgmlType::F16),
    ("mixtral", GgmlType::Q4_K),
    ("qwen2moe", GgmlType::Q8_0),
    ("qwen3moe", GgmlType::F16),
    ("mixtral", GgmlType::NVFP4),
];

/// A model that llama.cpp does not run: `llama` with different widths of keys and values.
const UNEVEN: &str = "uneven";

const N_EMBD: usize = 256;
const N_FF: usize = 512;
const N_HEADS: usize = 8;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = N_EMBD / N_HEADS;
const N_VOCAB: usize = 512;
const N_CTX: usize = 2048;
/// Values per head of V in `uneven`.
const UNEVEN_V_DIM: usize = 48;
/// Values per head in Gemma 3 and Seed-OSS.
const WIDE_HEAD_DIM: usize = 64;
const N_EXPERTS: usize = 8;
/// Width of an expert in Qwen, and of the shared expert.
const EXPERT_N_FF: usize = 256;
const SHARED_N_FF: usize = 768;
/// Number of rotated values per head in Phi.
const PHI_N_ROT: usize = 24;

/// Returns the token sequence for which there are committed logits.
pub fn prompt(n_tokens: usize, n_vocab: usize) -> Vec<u32> {
    let id = |i: usize| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    (0..n_tokens)
        .map(|i| (id(i) % n_vocab as u64) as u32)
        .collect()
}

/// Creates the model `name` with matrices of type `ty`; `None` if the name is unknown.
pub fn model(name: &str, ty: GgmlType) -> Option<Result<Writer<'static>, Error>> {
    // Enough layers that each kind appears twice.
    let n_layers = match name {
        "gemma3" | "gemma4" => 8,
        "gemma3n" => 25,
        _ => 4,
    };
    model_of(name, ty, n_layers)
}

/// As [`model`], with the first `n_layers` layers.
pub fn model_of(
    name: &str,
    ty: GgmlType,
    n_layers: usize,
) -> Option<Result<Writer<'static>, Error>> {
    let names = NAMES.into_iter().chain([UNEVEN]);
    let name = { names }.find(|known| *known == name)?;
    let build = || {
        let arch = arch_of(name);
        let head_dims = match name {
            UNEVEN => [HEAD_DIM, UNEVEN_V_DIM],
            // Wider heads than `n_embd / n_heads`, as in released files.
            "gemma3" | "seed_oss" => [WIDE_HEAD_DIM; 2],
            _ => [HEAD_DIM; 2],
        };
        let mut model = Synth {
            head_dims,
            ..Synth::new((name, arch), ty, n_layers)
        };
        model.begin(name);
        model.tensors(name)?;
        Ok(model.writer)
    };
    Some(build())
}

/// Returns the architecture of the model `name`, one of [`NAMES`] or of [`families::names`].
pub fn architecture(name: &str) -> Option<&'static str> {
    let own = NAMES.into_iter().find(|known| *known == name).map(arch_of);
    own.or_else(|| families::architecture(name))
}

fn arch_of(name: &'static str) -> &'static str {
    match name {
        "olmo3" => "olmo2",
        "mixtral" | UNEVEN => "llama",
        "gemma4_wide" | "gemma4_moe" => "gemma4",
        "gpt_oss" => "gpt-oss",
        "deepseek2_old" => "deepseek2",
        name => name,
    }
}

struct Synth {
    writer: Writer<'static>,
    name: &'static str,
    arch: &'static str,
    ty: GgmlType,
    n_layers: usize,
    /// Values per head of K and V.
    head_dims: [usize; 2],
    /// Where tensors are listed, instead of filled.
    listed: Option<Vec<OutlineTensor>>,
}

impl Synth {
    fn new((name, arch): (&'static str, &'static str), ty: GgmlType, n_layers: usize) -> Synth {
        Synth {
            writer: Writer::new(arch),
            name,
            arch,
            ty,
            n_layers,
            head_dims: [HEAD_DIM; 2],
            listed: None,
        }
    }

    /// Adds the metadata of the model `name`.
    fn begin(&mut self, name: &str) {
        self.facts(name);
        self.vocabulary();
    }

    /// Returns the model without its weights: the metadata, and what `tensors` adds.
    fn outline(mut self, tensors: impl FnOnce(&mut Synth) -> Result<(), Error>) -> Outline {
        self.listed = Some(Vec::new());
        tensors(&mut self).expect("tensors that are listed are not written");
        Outline {
            header: self.writer,
            tensors: self.listed.unwrap_or_default(),
        }
    }

    fn set(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.writer.set(&format!("{}.{key}", self.arch), value);
    }

    fn n_kv_heads(&self) -> usize {
        match self.arch {
            "gpt2" => N_HEADS,
            _ => N_KV_HEADS,
        }
    }

    /// Returns whether norms subtract the mean, and norms and products add a bias.
    fn has_biases(&self) -> bool {
        matches!(self.arch, "gpt2" | "starcoder2")
    }

    fn facts(&mut self, name: &str) {
        // llama.cpp expects Phi's vocabulary in a file whose name contains "phi".
        self.writer.set("general.name", "random");
        for (key, value) in [
            ("block_count", self.n_layers),
            ("context_length", N_CTX),
            ("embedding_length", N_EMBD),
            ("feed_forward_length", N_FF),
            ("attention.head_count", N_HEADS),
            ("attention.head_count_kv", self.n_kv_heads()),
            ("vocab_size", N_VOCAB),
        ] {
            self.set(key, value as u32);
        }
        if let Some(latent) = self.latent() {
            self.latent_facts(&latent);
        } else if self.head_dims != [HEAD_DIM; 2] {
            let [k_dim, v_dim] = self.head_dims;
            self.set("attention.key_length", k_dim as u32);
            self.set("attention.value_length", v_dim as u32);
        }
        match self.has_biases() {
            true => self.set("attention.layer_norm_epsilon", 1e-5f32),
            false => self.set("attention.layer_norm_rms_epsilon", 1e-5f32),
        }
        if self.arch != "gpt2" {
            self.set("rope.freq_base", 10_000f32);
        }
        match name {
            "granite" => {
                self.set("embedding_scale", 12f32);
                self.set("residual_scale", 0.22f32);
                self.set("attention.scale", 0.3f32);
                self.set("logit_scale", 8f32);
            }
            "olmo3" => {
                self.set("attention.sliding_window", 64u32);
                self.set("rope.scaling.type", "yarn");
                self.set("rope.scaling.factor", 8f32);
                self.set("rope.scaling.original_context_length", 256u32);
            }
            "gemma4" | "gemma4_wide" | "gemma4_moe" => self.gemma4_facts(),
            "gemma3n" => self.gemma3n_facts(&GEMMA3N),
            "gpt_oss" => self.gpt_oss_facts(),
            "mistral3" => {
                self.set("attention.temperature_scale", 0.5f32);
                self.set("rope.scaling.type", "yarn");
                self.set("rope.scaling.factor", 8f32);
                self.set("rope.scaling.original_context_length", 64u32);
                self.set("rope.scaling.yarn_beta_fast", 4f32);
                self.set("rope.scaling.yarn_beta_slow", 0.5f32);
                self.set("rope.scaling.yarn_log_multiplier", 0.5f32);
            }
            "phi3" => {
                self.set("rope.dimension_count", PHI_N_ROT as u32);
                self.set("rope.scaling.original_context_length", 256u32);
                self.set("rope.scaling.attn_factor", 1.19f32);
                // Released files have this key, and llama.cpp ignores it.
                self.set("attention.sliding_window", 64u32);
            }
            "gemma2" => {
                self.set("attention.sliding_window", 64u32);
                self.set("attn_logit_softcapping", 3f32);
                self.set("final_logit_softcapping", 5f32);
            }
            "gemma3" => {
                self.set("attention.sliding_window", 64u32);
                self.set("rope.freq_base", 1_000_000f32);
                self.set("rope.scaling.type", "linear");
                self.set("rope.scaling.factor", 8f32);
            }
            "mixtral" => self.experts(2),
            "qwen2moe" => {
                self.experts(4);
                self.set("expert_feed_forward_length", EXPERT_N_FF as u32);
                self.set("expert_shared_feed_forward_length", SHARED_N_FF as u32);
            }
            "qwen3moe" => {
                self.experts(3);
                self.set("expert_feed_forward_length", EXPERT_N_FF as u32);
            }
            _ => {}
        }
    }

    fn experts(&mut self, n_used: u32) {
        self.set("expert_count", N_EXPERTS as u32);
        self.set("expert_used_count", n_used);
    }

    /// Adds a SentencePiece vocabulary of bytes and numbered words.
    fn vocabulary(&mut self) {
        let special = ["<unk>", "<s>", "</s>"].map(str::to_string);
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let words = (special.len() + 256..N_VOCAB).map(|id| format!("\u{2581}w{id}"));
        let tokens: Vec<String> = special.into_iter().chain(bytes).chain(words).collect();
        let (unknown, control, byte, normal) = (2, 3, 6, 1);
        let types = (0..N_VOCAB).map(|id| match id {
            0 => unknown,
            1 | 2 => control,
            id if id < 259 => byte,
            _ => normal,
        });
        let w = &mut self.writer;
        w.set("tokenizer.ggml.model", "llama");
        w.set("tokenizer.ggml.token_type", types.collect::<Vec<i32>>());
        let scores = (0..N_VOCAB).map(|id| -(id as f32));
        w.set("tokenizer.ggml.scores", scores.collect::<Vec<f32>>());
        w.set("tokenizer.ggml.tokens", tokens);
        w.set("tokenizer.ggml.bos_token_id", 1u32);
        w.set("tokenizer.ggml.eos_token_id", 2u32);
    }

    fn tensors(&mut self, name: &str) -> Result<(), Error> {
        self.matrix("token_embd.weight", N_VOCAB, N_EMBD)?;
        if !matches!(
            self.arch,
            "granite"
                | "smollm3"
                | "gemma2"
                | "gemma3"
                | "gpt2"
                | "starcoder2"
                | "gemma4"
                | "gemma3n"
        ) {
            self.matrix("output.weight", N_VOCAB, N_EMBD)?;
            self.scale("output")?;
        }
        self.norm("output_norm", N_EMBD)?;
        if name == "gpt2" {
            self.matrix("position_embd.weight", N_CTX, N_EMBD)?;
        }
        if let ("minicpm3", Some(latent)) = (name, self.latent()) {
            let n_factors = latent.n_rot / 2;
            self.vector("rope_factors_short.weight", n_factors, 1.3, 0.3)?;
            self.vector("rope_factors_long.weight", n_factors, 6.0, 4.0)?;
        }
        if name == "phi3" {
            self.vector("rope_factors_short.weight", PHI_N_ROT / 2, 1.3, 0.3)?;
            self.vector("rope_factors_long.weight", PHI_N_ROT / 2, 6.0, 4.0)?;
        }
        if self.arch == "gemma4" {
            self.gemma4_inputs()?;
        }
        if self.arch == "gemma3n" {
            self.gemma3n_inputs(&GEMMA3N)?;
        }
        for layer in 0..self.n_layers {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            if self.arch == "gemma4" {
                self.gemma4_layer(layer, &tensor)?;
                continue;
            }
            if self.arch == "gemma3n" {
                self.gemma3n_layer(&GEMMA3N, &tensor)?;
                continue;
            }
            if self.arch == "gpt-oss" {
                self.gpt_oss_layer(&tensor)?;
                continue;
            }
            let norms: &[&str] = match self.arch {
                "olmo2" => &["post_attention_norm", "post_ffw_norm"],
                "gemma2" | "gemma3" => &[
                    "attn_norm",
                    "ffn_norm",
                    "post_attention_norm",
                    "post_ffw_norm",
                ],
                // Its post-attention norm stands before the feed-forward network.
                "seed_oss" => &["attn_norm", "post_attention_norm"],
                _ => &["attn_norm", "ffn_norm"],
            };
            for norm in norms {
                self.norm(&tensor(norm), N_EMBD)?;
            }
            match self.latent() {
                Some(latent) => self.latent_attention(&latent, &tensor, N_EMBD)?,
                None => self.attention(&tensor)?,
            }
            match name {
                "deepseek2" | "deepseek2_old" | "mistral4" if layer > 0 => {
                    self.mixture(&tensor, EXPERT_N_FF)?;
                }
                "mixtral" => self.mixture(&tensor, N_FF)?,
                "qwen2moe" | "qwen3moe" => self.mixture(&tensor, EXPERT_N_FF)?,
                _ => self.feed_forward(&tensor)?,
            }
        }
        Ok(())
    }

    fn mixture(&mut self, tensor: &dyn Fn(&str) -> String, n_ff: usize) -> Result<(), Error> {
        self.router(&tensor("ffn_gate_inp.weight"), [N_EXPERTS, N_EMBD])?;
        self.expert_matrices(&tensor("ffn_gate_exps.weight"), [N_EXPERTS, n_ff, N_EMBD])?;
        self.expert_matrices(&tensor("ffn_up_exps.weight"), [N_EXPERTS, n_ff, N_EMBD])?;
        self.expert_matrices(&tensor("ffn_down_exps.weight"), [N_EXPERTS, N_EMBD, n_ff])?;
        for name in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            self.scales(&tensor(name), N_EXPERTS)?;
        }
        if self.latent().is_some() {
            self.shared_experts(tensor)?;
        }
        if self.arch == "qwen2moe" {
            self.vector(&tensor("ffn_gate_inp_shexp.weight"), N_EMBD, 0.0, 0.2)?;
            self.matrix(&tensor("ffn_gate_shexp.weight"), SHARED_N_FF, N_EMBD)?;
            self.matrix(&tensor("ffn_up_shexp.weight"), SHARED_N_FF, N_EMBD)?;
            self.matrix(&tensor("ffn_down_shexp.weight"), N_EMBD, SHARED_N_FF)?;
        }
        Ok(())
    }

    /// Adds a router's matrix. The logits clearly favour some experts, so that rounding changes no choice.
    fn router(&mut self, name: &str, [n_experts, n_embd]: [usize; 2]) -> Result<(), Error> {
        // As many favours in wide models as in those of 256 values.
        let reach = 0.4 * (256.0 / n_embd.max(256) as f32).sqrt();
        self.floats(name, &[n_embd, n_experts], (0.0, reach))
    }

    /// Adds the matrices of experts, with values of variance `1 / n_in`.
    fn expert_matrices(
        &mut self,
        name: &str,
        [n_experts, n_out, n_in]: [usize; 3],
    ) -> Result<(), Error> {
        self.tensor(name, &[n_in, n_out, n_experts], Values::Matrix)
    }

    fn attention(&mut self, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        let [head_dim, v_dim] = self.head_dims;
        let (n_q, n_kv) = (N_HEADS * head_dim, self.n_kv_heads() * head_dim);
        let n_v = self.n_kv_heads() * v_dim;
        match self.arch {
            "qwen3" | "qwen3moe" | "gemma3" => {
                self.norm(&tensor("attn_q_norm"), head_dim)?;
                self.norm(&tensor("attn_k_norm"), head_dim)?;
            }
            "olmo2" => {
                self.norm(&tensor("attn_q_norm"), n_q)?;
                self.norm(&tensor("attn_k_norm"), n_kv)?;
            }
            "qwen2" | "qwen2moe" | "seed_oss" => {
                for (name, width) in [("q", n_q), ("k", n_kv), ("v", n_kv)] {
                    self.vector(&tensor(&format!("attn_{name}.bias")), width, 0.0, 0.5)?;
                }
            }
            _ => {}
        }
        self.linear(&tensor("attn_output"), N_EMBD, N_HEADS * v_dim)?;
        if matches!(self.arch, "phi3" | "gpt2") {
            return self.linear(&tensor("attn_qkv"), n_q + 2 * n_kv, N_EMBD);
        }
        self.linear(&tensor("attn_q"), n_q, N_EMBD)?;
        self.linear(&tensor("attn_k"), n_kv, N_EMBD)?;
        self.linear(&tensor("attn_v"), n_v, N_EMBD)
    }

    fn feed_forward(&mut self, tensor: &dyn Fn(&str) -> String) -> Result<(), Error> {
        self.linear(&tensor("ffn_down"), N_EMBD, N_FF)?;
        if self.arch == "phi3" {
            return self.linear(&tensor("ffn_up"), 2 * N_FF, N_EMBD);
        }
        if !self.has_biases() {
            self.linear(&tensor("ffn_gate"), N_FF, N_EMBD)?;
        }
        self.linear(&tensor("ffn_up"), N_FF, N_EMBD)
    }

    /// Adds a norm's weight, and its bias if the architecture has biases.
    fn norm(&mut self, name: &str, width: usize) -> Result<(), Error> {
        self.vector(&format!("{name}.weight"), width, 1.0, 0.3)?;
        if self.has_biases() {
            self.vector(&format!("{name}.bias"), width, 0.0, 0.5)?;
        }
        Ok(())
    }

    /// As [`Synth::matrix`], with a bias if the architecture has biases.
    fn linear(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<(), Error> {
        self.matrix(&format!("{name}.weight"), n_out, n_in)?;
        self.scale(name)?;
        if self.has_biases() {
            self.vector(&format!("{name}.bias"), n_out, 0.0, 0.5)?;
        }
        Ok(())
    }

    /// Adds the numbers that converters write beside a matrix in NVFP4: a factor on its products, and one that only
    /// activations of four bits would need.
    fn scale(&mut self, name: &str) -> Result<(), Error> {
        self.scales(name, 1)
    }

    /// As [`Synth::scale`], of the matrices of `n` experts.
    fn scales(&mut self, name: &str, n: usize) -> Result<(), Error> {
        if self.ty == GgmlType::NVFP4 {
            self.vector(&format!("{name}.scale"), n, 1.2, 0.5)?;
            self.vector(&format!("{name}.input_scale"), n, 1.2, 0.5)?;
        }
        Ok(())
    }

    /// Adds a matrix `[n_out, n_in]` with values of variance `1 / n_in`.
    fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<(), Error> {
        self.tensor(name, &[n_in, n_out], Values::Matrix)
    }

    /// Adds `len` values within `reach` of `mean`.
    fn vector(&mut self, name: &str, len: usize, mean: f32, reach: f32) -> Result<(), Error> {
        self.floats(name, &[len], (mean, reach))
    }

    /// As [`Synth::vector`], of `n_rows` vectors of `len` values.
    fn rows(
        &mut self,
        name: &str,
        [n_rows, len]: [usize; 2],
        mean: f32,
        reach: f32,
    ) -> Result<(), Error> {
        self.floats(name, &[len, n_rows], (mean, reach))
    }

    /// Adds a tensor in F32 of values within `reach` of `mean`, with the dimensions in the file's order.
    fn floats(
        &mut self,
        name: &str,
        dims: &[usize],
        (mean, reach): (f32, f32),
    ) -> Result<(), Error> {
        self.tensor(name, dims, Values::Floats { mean, reach })
    }

    /// Adds a tensor, with the dimensions in the file's order.
    fn tensor(&mut self, name: &str, dims: &[usize], values: Values) -> Result<(), Error> {
        let n: usize = dims.iter().product();
        let row_len = dims[0];
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        if let Some(listed) = &mut self.listed {
            listed.push(OutlineTensor {
                name: name.to_owned(),
                dims,
                values,
            });
            return Ok(());
        }
        match values {
            Values::Floats { mean, reach } => {
                let values = uniform(name, n, mean, reach);
                self.writer
                    .add_tensor_f32(name, &dims, GgmlType::F32, &values)?;
                Ok(())
            }
            Values::Matrix => {
                let reach = (3.0 / row_len as f64).sqrt() as f32;
                self.add(name, &dims, &uniform(name, n, 0.0, reach))
            }
        }
    }

    /// Adds a tensor of the model's type, in Q8_0 if its rows are not whole blocks of that type.
    fn add(&mut self, name: &str, dims: &[u64], values: &[f32]) -> Result<(), Error> {
        let ty = match dims[0].is_multiple_of(self.ty.block_len() as u64) {
            true => self.ty,
            false => GgmlType::Q8_0,
        };
        match self.writer.add_tensor_f32(name, dims, ty, values) {
            // Types whose quantizer searches for the best blocks.
            Err(Error::Unsupported { .. }) => {
                let mut blocks = vec![0; values.len() / ty.block_len() * ty.block_bytes()];
                quantize_rows(ty, values, dims[0] as usize, None, &mut blocks)?;
                self.writer.add_tensor(name, dims, ty, blocks)?;
            }
            added => drop(added?),
        }
        Ok(())
    }
}

/// Returns the values of the tensor `name`: splitmix64, seeded with the FNV-1a hash of the name.
pub fn uniform(name: &str, n: usize, mean: f32, reach: f32) -> Vec<f32> {
    let mut state = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    // The upper 24 bits are exact in f32.
    let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..n).map(|_| mean + reach * unit(next())).collect()
}
