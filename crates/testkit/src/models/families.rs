//! Random models of further architectures: a row of the table says what a family's layers and files have.

mod rows;
pub mod widths;

use rocmforge_gguf::{Error, GgmlType, OwnedValue, Writer};

use super::gemma3n::Gemma3n;
use super::latent::Latent;
use super::recurrent::{Kind, Recurrent};
use super::{N_CTX, N_VOCAB, Outline, Synth};
use rows::rows;

/// Names of the models: architectures, some of them in a second shape.
pub fn names() -> impl Iterator<Item = &'static str> {
    rows().map(|row| row.name)
}

/// Lengths of the prompts of the model `name` for which there are logits of llama.cpp.
///
/// # Panics
/// If there is no such model.
pub fn prompts(name: &str) -> &'static [usize] {
    find(name).expect("a model of the table").prompts
}

/// Returns the positions of a prompt whose logits are compared: all, or some of a long one.
pub fn positions(n_tokens: usize) -> impl ExactSizeIterator<Item = usize> {
    (0..n_tokens).step_by(n_tokens.div_ceil(256))
}

/// Returns what is kept of the logits `[n_tokens, n_vocab]` of a prompt: one of each of its [`positions`], and 16 of the
/// last.
pub fn kept(logits: &[f32], n_tokens: usize) -> Vec<f32> {
    let n_vocab = logits.len() / n_tokens;
    let of_rows = positions(n_tokens).map(|i| logits[i * n_vocab + (37 * i + 11) % n_vocab]);
    let last = logits[logits.len() - n_vocab..].iter().copied();
    of_rows.chain(last.step_by(n_vocab / 16)).collect()
}

/// Creates the model `name` with matrices of type `ty`; `None` if the name is unknown.
pub fn model(name: &str, ty: GgmlType) -> Option<Result<Writer<'static>, Error>> {
    let row = find(name)?;
    Some(row.write(ty, row.n_layers))
}

/// As [`model`], with the first `n_layers` layers.
pub fn model_of(
    name: &str,
    ty: GgmlType,
    n_layers: usize,
) -> Option<Result<Writer<'static>, Error>> {
    Some(find(name)?.write(ty, n_layers))
}

/// Returns the architecture of the model `name`.
pub(super) fn architecture(name: &str) -> Option<&'static str> {
    find(name).map(|row| row.arch)
}

fn find(name: &str) -> Option<&'static Row> {
    rows().find(|row| row.name == name)
}

/// What a model consists of.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    arch: &'static str,
    n_layers: usize,
    /// Layers after these that predict further tokens.
    n_nextn: usize,
    n_embd: usize,
    n_ff: usize,
    /// Query heads, heads of K and V, values per head.
    heads: [usize; 3],
    /// Values per head of V; 0 for as many as of K.
    v_dim: usize,
    /// Which layers have windows; empty if the keys say it.
    windows: &'static [bool],
    /// Query heads and heads of K and V in layers with windows; zeros for the same as in others.
    window_heads: [usize; 2],
    /// Query heads, heads of K and V, and width of the network of each layer, any of which may be missing; empty if
    /// layers are alike.
    uneven: &'static [[usize; 3]],
    /// Number of RoPE's frequency factors.
    n_factors: usize,
    /// Whether there are two sets of them, for short and for long contexts.
    has_long_factors: bool,
    /// Latent attention, instead of these heads.
    latent: Option<Latent>,
    /// Layers that keep a state in place of attention.
    recurrent: Option<Recurrent>,
    blocks: Blocks,
    norm: Norm,
    /// Norms of each layer.
    norms: &'static [&'static str],
    qkv: Qkv,
    /// Biases of attention's projections and of the feed-forward network.
    biases: &'static [&'static str],
    head_norm: HeadNorm,
    gate: Gate,
    feed_forward: FeedForward,
    mixture: Option<Mixture>,
    output: Output,
    keys: &'static [(&'static str, Key)],
    /// Keys of a released model, some of them in place of those above.
    released: &'static [(&'static str, Key)],
    /// Keys without the architecture's name.
    unprefixed: &'static [(&'static str, Key)],
    prompts: &'static [usize],
}

#[derive(Clone, Copy, PartialEq)]
enum Norm {
    Rms,
    RmsWithBias,
    Layer,
    LayerWithoutBias,
    /// Layer norms without weights.
    Plain,
}

#[derive(Clone, Copy, PartialEq)]
enum Qkv {
    Separate,
    Fused,
}

#[derive(Clone, Copy, PartialEq)]
enum HeadNorm {
    None,
    Each,
    Together,
    /// A weight for each value of each head, without a bias.
    Own,
}

/// What the gate of attention's output has values for.
#[derive(Clone, Copy, PartialEq)]
enum Gate {
    None,
    Heads,
    Values,
    /// As `Values`; they follow each head of the queries.
    InQueries,
}

#[derive(Clone, Copy, PartialEq)]
enum FeedForward {
    Gated,
    /// Gate and up in one tensor.
    Fused,
    /// Without a gate.
    Plain,
}

/// What a layer has.
#[derive(Clone, Copy, PartialEq)]
enum Blocks {
    /// Attention, or what is in its place, and a network.
    Two,
    /// No network.
    NoNetwork,
    /// In turn a state, a network, attention, a network.
    OneEach,
}

#[derive(Clone, Copy, PartialEq)]
enum Output {
    Own,
    OwnWithBias,
    Tied,
}

#[derive(Clone, Copy)]
struct Mixture {
    n_experts: usize,
    n_used: u32,
    n_ff: usize,
    /// Leading layers without experts.
    n_dense: usize,
    /// After these, the last of every so many layers has experts.
    period: usize,
    /// Width of the shared experts.
    n_ff_shared: Option<usize>,
    /// The tensor that is added to the scores for the choice.
    bias: Option<&'static str>,
    /// Width between the projections before and after the experts.
    n_latent: Option<usize>,
}

/// A value of the metadata.
#[derive(Clone, Copy)]
enum Key {
    U(u32),
    F(f32),
    B(bool),
    Ints(&'static [i32]),
    /// A number for each layer.
    OfLayers(&'static [f32]),
    S(&'static str),
}

impl Key {
    /// Returns the value in a model of `n_layers` layers.
    fn of(self, n_layers: usize) -> OwnedValue {
        match self {
            Key::U(value) => value.into(),
            Key::F(value) => value.into(),
            Key::B(value) => value.into(),
            Key::S(value) => value.into(),
            Key::Ints(values) => values.to_vec().into(),
            Key::OfLayers(values) => values[..n_layers].to_vec().into(),
        }
    }
}

impl Mixture {
    fn are_in(&self, layer: usize) -> bool {
        layer >= self.n_dense && (layer + 1).is_multiple_of(self.period)
    }
}

impl Row {
    fn write(&self, ty: GgmlType, n_layers: usize) -> Result<Writer<'static>, Error> {
        let mut model = self.begin(ty, n_layers);
        self.tensors(&mut model)?;
        Ok(model.writer)
    }

    /// Returns what [`Row::write`] would write, without the weights.
    fn outline(&self) -> Outline {
        let model = self.begin(GgmlType::F32, self.n_layers);
        model.outline(|model| self.tensors(model))
    }

    /// Returns the model with its metadata, and without tensors.
    fn begin(&self, ty: GgmlType, n_layers: usize) -> Synth {
        let mut model = Synth {
            head_dims: [self.heads[2]; 2],
            ..Synth::new((self.name, self.arch), ty, n_layers)
        };
        self.facts(&mut model);
        model.vocabulary();
        model
    }

    fn facts(&self, model: &mut Synth) {
        model.writer.set("general.name", "random");
        let [n_heads, n_kv_heads, head_dim] = self.heads;
        for (key, value) in [
            ("block_count", model.n_layers + self.n_nextn),
            ("context_length", N_CTX),
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", n_kv_heads),
            ("vocab_size", N_VOCAB),
        ] {
            model.set(key, value as u32);
        }
        let [_, v_dim] = self.head_dims();
        if let Some(latent) = &self.latent {
            model.set("attention.head_count", latent.n_heads as u32);
            model.latent_widths(latent);
        } else if n_heads * head_dim != self.n_embd || v_dim != head_dim {
            model.set("attention.key_length", head_dim as u32);
            model.set("attention.value_length", v_dim as u32);
        }
        if !self.windows.is_empty() {
            let layers = 0..model.n_layers + self.n_nextn;
            let heads = layers.clone().map(|layer| self.heads_of(layer));
            let (n_q, n_kv): (Vec<i32>, Vec<i32>) =
                heads.map(|[q, kv]| (q as i32, kv as i32)).unzip();
            let windows: Vec<bool> = layers.map(|layer| self.has_window(layer)).collect();
            model.set("attention.sliding_window_pattern", windows);
            if self.window_heads != [0; 2] {
                model.set("attention.head_count", n_q);
                model.set("attention.head_count_kv", n_kv);
            }
        }
        if !self.uneven.is_empty() {
            let of_layers = |i: usize| {
                let layers = self.uneven[..model.n_layers].iter();
                layers.map(|layer| layer[i] as i32).collect::<Vec<i32>>()
            };
            let [n_q, n_kv, n_ff] = [0, 1, 2].map(of_layers);
            model.set("attention.head_count", n_q);
            model.set("attention.head_count_kv", n_kv);
            model.set("feed_forward_length", n_ff);
        }
        if let Some(recurrent) = &self.recurrent {
            model.recurrent_facts(recurrent);
            let layers = 0..model.n_layers + self.n_nextn;
            let has_heads = |layer: usize| {
                !self.is_recurrent(layer, model.n_layers) && self.has_attention(layer)
            };
            let n_kv = layers.map(|layer| match has_heads(layer) {
                true => n_kv_heads as i32,
                false => 0,
            });
            if recurrent.has_no_heads() {
                let n_kv: Vec<i32> = n_kv.collect();
                model.set("attention.head_count_kv", n_kv);
            }
            if self.blocks != Blocks::Two {
                let layers = 0..model.n_layers + self.n_nextn;
                let n_ff = layers.map(|layer| match self.has_network(layer) {
                    true => self.n_ff as i32,
                    false => 0,
                });
                let n_ff: Vec<i32> = n_ff.collect();
                model.set("feed_forward_length", n_ff);
            }
        }
        match self.norm {
            Norm::Rms | Norm::RmsWithBias => {
                model.set("attention.layer_norm_rms_epsilon", 1e-5f32);
            }
            _ => model.set("attention.layer_norm_epsilon", 1e-5f32),
        }
        model.set("rope.freq_base", 10_000f32);
        if self.n_nextn > 0 {
            model.set("nextn_predict_layers", self.n_nextn as u32);
        }
        if let Some(experts) = &self.mixture {
            model.set("expert_count", experts.n_experts as u32);
            model.set("expert_used_count", experts.n_used);
            model.set("expert_feed_forward_length", experts.n_ff as u32);
        }
        if self.arch == "gemma3n" {
            model.gemma3n_facts(&self.gemma3n());
        }
        let n_layers = model.n_layers + self.n_nextn;
        for (key, value) in self.keys.iter().chain(self.released) {
            model.set(key, value.of(n_layers));
        }
        for (key, value) in self.unprefixed {
            model.writer.set(key, value.of(n_layers));
        }
    }

    fn tensors(&self, model: &mut Synth) -> Result<(), Error> {
        let n_embd = self.n_embd;
        model.matrix("token_embd.weight", N_VOCAB, n_embd)?;
        let output_norm = match self.arch {
            "lfm2" | "lfm2moe" => "token_embd_norm",
            _ => "output_norm",
        };
        if self.norm != Norm::Plain {
            self.norm(model, output_norm, n_embd)?;
        }
        if self.output != Output::Tied {
            model.matrix("output.weight", N_VOCAB, n_embd)?;
        }
        if self.output == Output::OwnWithBias {
            model.vector("output.bias", N_VOCAB, 0.0, 0.5)?;
        }
        if self.has_long_factors {
            model.vector("rope_factors_short.weight", self.n_factors, 1.3, 0.3)?;
            model.vector("rope_factors_long.weight", self.n_factors, 6.0, 4.0)?;
        } else if self.n_factors > 0 {
            model.vector("rope_freqs.weight", self.n_factors, 4.0, 3.0)?;
        }
        if self.arch == "gpt2" {
            model.matrix("position_embd.weight", N_CTX, n_embd)?;
        }
        if self.arch == "gemma3n" {
            model.gemma3n_inputs(&self.gemma3n())?;
        }
        for layer in 0..model.n_layers + self.n_nextn {
            let tensor = |name: &str| format!("blk.{layer}.{name}");
            if self.arch == "gemma3n" {
                model.gemma3n_layer(&self.gemma3n(), &tensor)?;
                continue;
            }
            for norm in self.norms {
                let is_there = match *norm {
                    "attn_norm" => self.has_attention(layer),
                    "ffn_norm" => self.has_network(layer),
                    _ => true,
                };
                if is_there || self.uneven.is_empty() {
                    self.norm(model, &tensor(norm), n_embd)?;
                }
            }
            if self.has_attention(layer) {
                self.attention(model, layer, &tensor)?;
            }
            match &self.mixture {
                _ if !self.has_network(layer) => {}
                Some(experts) if experts.are_in(layer) => {
                    self.mixture(model, &tensor, experts)?;
                    if self.arch == "arctic" {
                        // Beside the experts, as wide as the model.
                        self.feed_forward(model, &tensor, n_embd)?;
                    }
                }
                _ => self.feed_forward(model, &tensor, self.n_ff_of(layer))?,
            }
            if layer >= model.n_layers {
                let last = match self.arch {
                    "bailingmoe3" => "layer_output_norm",
                    _ => "nextn.shared_head_norm",
                };
                for norm in ["nextn.enorm", "nextn.hnorm", last] {
                    self.norm(model, &tensor(norm), n_embd)?;
                }
                model.matrix(&tensor("nextn.eh_proj.weight"), n_embd, 2 * n_embd)?;
            }
        }
        Ok(())
    }

    fn has_network(&self, layer: usize) -> bool {
        if !self.uneven.is_empty() {
            return self.n_ff_of(layer) > 0;
        }
        match self.blocks {
            Blocks::Two => true,
            Blocks::NoNetwork => false,
            Blocks::OneEach => layer % 2 == 1,
        }
    }

    /// Returns whether a layer has attention, or something in its place.
    fn has_attention(&self, layer: usize) -> bool {
        if !self.uneven.is_empty() {
            return self.uneven[layer][0] > 0;
        }
        self.blocks != Blocks::OneEach || layer.is_multiple_of(2)
    }

    /// Returns whether a layer keeps a state, in a model of `n_layers` layers and some that predict further tokens.
    fn is_recurrent(&self, layer: usize, n_layers: usize) -> bool {
        let is_in = |recurrent: Recurrent| recurrent.is_in(layer);
        layer < n_layers && self.has_attention(layer) && self.recurrent.is_some_and(is_in)
    }

    fn has_window(&self, layer: usize) -> bool {
        // Layers that predict further tokens have none.
        self.windows
            .get(layer)
            .is_some_and(|has_window| *has_window)
    }

    /// Query heads, and heads of K and V.
    fn heads_of(&self, layer: usize) -> [usize; 2] {
        if let Some(&[n_heads, n_kv_heads, _]) = self.uneven.get(layer) {
            return [n_heads, n_kv_heads];
        }
        let [n_heads, n_kv_heads, _] = self.heads;
        match self.window_heads != [0; 2] && self.has_window(layer) {
            true => self.window_heads,
            false => [n_heads, n_kv_heads],
        }
    }

    /// Width of a layer's network.
    fn n_ff_of(&self, layer: usize) -> usize {
        self.uneven.get(layer).map_or(self.n_ff, |layer| layer[2])
    }

    fn gemma3n(&self) -> Gemma3n {
        Gemma3n {
            n_embd: self.n_embd,
            heads: self.heads,
            n_ff: self.n_ff,
        }
    }

    /// Values per head of K and V.
    fn head_dims(&self) -> [usize; 2] {
        let [.., k_dim] = self.heads;
        [k_dim, if self.v_dim > 0 { self.v_dim } else { k_dim }]
    }

    fn attention(
        &self,
        model: &mut Synth,
        layer: usize,
        tensor: &dyn Fn(&str) -> String,
    ) -> Result<(), Error> {
        let n_embd = self.n_embd;
        let is_recurrent = self.is_recurrent(layer, model.n_layers);
        if let Some(recurrent) = self.recurrent.filter(|_| is_recurrent) {
            model.recurrent_layer(&recurrent, tensor, n_embd)?;
            if recurrent.kind != Kind::Mamba2Beside {
                return Ok(());
            }
            // Without the usual ending, as in released files.
            model.vector(&tensor("ffn_norm"), n_embd, 1.0, 0.3)?;
        }
        if let Some(latent) = &self.latent {
            if self.gate == Gate::Heads {
                self.linear(model, &tensor, ("attn_gate", latent.n_heads, n_embd))?;
            }
            return model.latent_attention(latent, tensor, n_embd);
        }
        let [n_heads, n_kv_heads] = self.heads_of(layer);
        let [head_dim, v_dim] = self.head_dims();
        let (n_q, n_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        let (n_out, n_v) = (n_heads * v_dim, n_kv_heads * v_dim);
        if n_kv_heads == 0 {
            return self.linear(model, &tensor, ("attn_output", n_embd, n_embd));
        }
        if self.head_norm == HeadNorm::Own {
            for (name, n) in [("attn_q_norm", n_heads), ("attn_k_norm", n_kv_heads)] {
                model.rows(&tensor(&format!("{name}.weight")), [n, head_dim], 1.0, 0.3)?;
            }
        }
        let norms = match self.head_norm {
            HeadNorm::None | HeadNorm::Own => [0; 2],
            HeadNorm::Each => [head_dim; 2],
            HeadNorm::Together => [n_q, n_kv],
        };
        for (name, width) in ["attn_q_norm", "attn_k_norm"].iter().zip(norms) {
            if width > 0 {
                model.norm(&tensor(name), width)?;
            }
        }
        match self.gate {
            Gate::None | Gate::InQueries => {}
            Gate::Heads => self.linear(model, &tensor, ("attn_gate", n_heads, n_embd))?,
            Gate::Values => self.linear(model, &tensor, ("attn_gate", n_out, n_embd))?,
        }
        if self.arch == "gpt-oss" || self.arch == "mimo2" && self.has_window(layer) {
            // Below, among and above the scores.
            model.vector(&tensor("attn_sinks.weight"), n_heads, 1.0, 3.0)?;
        }
        if self.arch == "bitnet" {
            self.norm(model, &tensor("attn_sub_norm"), n_out)?;
        }
        self.linear(model, &tensor, ("attn_output", n_embd, n_out))?;
        let n_q = match self.gate {
            Gate::InQueries => 2 * n_q,
            _ => n_q,
        };
        match self.qkv {
            Qkv::Fused => self.linear(model, &tensor, ("attn_qkv", n_q + n_kv + n_v, n_embd)),
            Qkv::Separate => {
                self.linear(model, &tensor, ("attn_q", n_q, n_embd))?;
                self.linear(model, &tensor, ("attn_k", n_kv, n_embd))?;
                self.linear(model, &tensor, ("attn_v", n_v, n_embd))
            }
        }
    }

    fn feed_forward(
        &self,
        model: &mut Synth,
        tensor: &dyn Fn(&str) -> String,
        n_ff: usize,
    ) -> Result<(), Error> {
        let n_embd = self.n_embd;
        if self.arch == "bitnet" {
            self.norm(model, &tensor("ffn_sub_norm"), n_ff)?;
        }
        self.linear(model, &tensor, ("ffn_down", n_embd, n_ff))?;
        match self.feed_forward {
            FeedForward::Fused => self.linear(model, &tensor, ("ffn_up", 2 * n_ff, n_embd)),
            FeedForward::Plain => self.linear(model, &tensor, ("ffn_up", n_ff, n_embd)),
            FeedForward::Gated => {
                self.linear(model, &tensor, ("ffn_gate", n_ff, n_embd))?;
                self.linear(model, &tensor, ("ffn_up", n_ff, n_embd))
            }
        }
    }

    fn mixture(
        &self,
        model: &mut Synth,
        tensor: &dyn Fn(&str) -> String,
        experts: &Mixture,
    ) -> Result<(), Error> {
        let Mixture {
            n_experts, n_ff, ..
        } = *experts;
        let n_embd = self.n_embd;
        model.router(&tensor("ffn_gate_inp.weight"), [n_experts, n_embd])?;
        if let Some(bias) = experts.bias {
            model.vector(&tensor(bias), n_experts, 0.0, 0.3)?;
        }
        let n_latent = experts.n_latent.unwrap_or(n_embd);
        if experts.n_latent.is_some() {
            model.matrix(&tensor("ffn_latent_down.weight"), n_latent, n_embd)?;
            model.matrix(&tensor("ffn_latent_up.weight"), n_embd, n_latent)?;
        }
        let into = [n_experts, n_ff, n_latent];
        if self.feed_forward != FeedForward::Plain {
            model.expert_matrices(&tensor("ffn_gate_exps.weight"), into)?;
        }
        model.expert_matrices(&tensor("ffn_up_exps.weight"), into)?;
        model.expert_matrices(&tensor("ffn_down_exps.weight"), [n_experts, n_latent, n_ff])?;
        if self.arch == "gpt-oss" {
            model.vector(&tensor("ffn_gate_inp.bias"), n_experts, 0.0, 0.5)?;
            for (name, n_out) in [("gate", n_ff), ("up", n_ff), ("down", n_embd)] {
                // Wide enough that the clamps of both sides of SwiGLU matter.
                let name = tensor(&format!("ffn_{name}_exps.bias"));
                model.rows(&name, [n_experts, n_out], 0.0, 8.0)?;
            }
        }
        if self.arch == "qwen2moe" {
            model.vector(&tensor("ffn_gate_inp_shexp.weight"), n_embd, 0.0, 0.2)?;
        }
        if self.gate == Gate::InQueries && experts.n_ff_shared.is_some() {
            model.matrix(&tensor("ffn_gate_inp_shexp.weight"), 1, n_embd)?;
        }
        if let Some(n_ff) = experts.n_ff_shared {
            if self.feed_forward != FeedForward::Plain {
                model.matrix(&tensor("ffn_gate_shexp.weight"), n_ff, n_embd)?;
            }
            model.matrix(&tensor("ffn_up_shexp.weight"), n_ff, n_embd)?;
            model.matrix(&tensor("ffn_down_shexp.weight"), n_embd, n_ff)?;
        }
        Ok(())
    }

    /// Adds a norm's weight, and its bias if norms have biases.
    fn norm(&self, model: &mut Synth, name: &str, width: usize) -> Result<(), Error> {
        if matches!(self.arch, "plamo2" | "plamo3") && name.contains("post_") {
            // Without the usual ending, as in released files.
            return model.vector(name, width, 1.0, 0.3);
        }
        model.vector(&format!("{name}.weight"), width, 1.0, 0.3)?;
        if matches!(self.norm, Norm::Layer | Norm::RmsWithBias) {
            model.vector(&format!("{name}.bias"), width, 0.0, 0.5)?;
        }
        Ok(())
    }

    /// Adds a matrix `[n_out, n_in]`, and its bias if the row has one.
    fn linear(
        &self,
        model: &mut Synth,
        tensor: &dyn Fn(&str) -> String,
        (name, n_out, n_in): (&str, usize, usize),
    ) -> Result<(), Error> {
        model.matrix(&format!("{}.weight", tensor(name)), n_out, n_in)?;
        if self.biases.contains(&name) {
            model.vector(&format!("{}.bias", tensor(name)), n_out, 0.0, 0.5)?;
        }
        Ok(())
    }
}
