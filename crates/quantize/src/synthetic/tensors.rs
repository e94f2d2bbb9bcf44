//! Tensors and metadata of a synthetic model: what its architecture needs, under GGUF's names.

use rocmforge_gguf::Writer;

use super::shapes::{
    Shape, ShapeChannels, ShapeExperts, ShapeGlobal, ShapeLatent, ShapeLinear, ShapeMamba,
    ShapeSelective,
};
use super::{Tensor, Values};

const NORM: Values = Values::Vector {
    mean: 1.0,
    reach: 0.3,
};
const BIAS: Values = Values::Vector {
    mean: 0.0,
    reach: 0.5,
};

/// The gate multiplies a sum over a row; with these values it is neither open nor closed.
const GATE: Values = Values::Vector {
    mean: 0.0,
    reach: 0.05,
};

/// From heads that remember long to heads that forget soon.
const DECAY: Values = Values::Vector {
    mean: -0.4,
    reach: 0.39,
};
const KERNEL: Values = Values::Vector {
    mean: 0.1,
    reach: 0.8,
};

/// Adds metadata that an architecture has beyond the usual.
pub(super) fn add_facts(shape: &Shape, w: &mut Writer<'_>) {
    let arch = shape.arch;
    let key = |name: &str| format!("{arch}.{name}");
    let eps = match is_with_biases(arch) {
        true => "attention.layer_norm_epsilon",
        false => "attention.layer_norm_rms_epsilon",
    };
    w.set(&key(eps), shape.norm_eps);
    if shape.n_nextn > 0 {
        w.set(&key("nextn_predict_layers"), shape.n_nextn as u32);
    }
    if let Some(window) = shape.window {
        w.set(&key("attention.sliding_window"), window as u32);
    }
    if let Some(experts) = shape.experts {
        for (name, value) in [
            ("expert_count", Some(experts.n_experts)),
            ("expert_used_count", Some(experts.n_used)),
            ("expert_feed_forward_length", Some(experts.n_ff)),
            ("expert_shared_feed_forward_length", experts.n_ff_shared),
        ] {
            if let Some(value) = value {
                w.set(&key(name), value as u32);
            }
        }
    }
    if let Some(latent) = shape.latent {
        w.set(&key("attention.q_lora_rank"), latent.q_rank as u32);
        w.set(&key("attention.kv_lora_rank"), latent.kv_rank as u32);
        if arch != "minicpm3" {
            for (name, value) in [
                ("attention.key_length", latent.kv_rank + latent.n_rot),
                ("attention.value_length", latent.kv_rank),
                ("attention.key_length_mla", shape.head_dim),
                ("attention.value_length_mla", latent.v_dim),
                ("leading_dense_block_count", latent.n_dense),
            ] {
                w.set(&key(name), value as u32);
            }
            // The shared expert is stated as a number of others.
            let n_shared = shape.experts.map(|e| e.n_ff_shared.unwrap_or(0) / e.n_ff);
            w.set(&key("expert_shared_count"), n_shared.unwrap_or(1) as u32);
        }
    }
    if let Some(linear) = shape.linear {
        w.set(&key("full_attention_interval"), linear.interval as u32);
        let heads = [linear.n_heads, linear.n_k_heads];
        add_state(arch, linear.n_conv, heads, [linear.dim; 2], w);
        // Of the positions of text, height and width, which are equal for text.
        let half = linear.n_rot as i32 / 2;
        let third = half / 3 + 1;
        let sections = vec![third, third, half - 2 * third, 0];
        w.set(&key("rope.dimension_sections"), sections);
    }
    if let Some(mamba) = shape.mamba {
        let heads = [mamba.n_heads, mamba.n_groups];
        add_state(arch, mamba.n_conv, heads, [mamba.dim, mamba.n_state], w);
    }
    if let Some(selective) = shape.selective {
        for (name, value) in [
            ("conv_kernel", selective.n_conv),
            ("inner_size", selective.n_inner),
            ("state_size", selective.n_state),
            ("time_step_rank", selective.rank),
        ] {
            w.set(&key(&format!("ssm.{name}")), value as u32);
        }
    }
    if let Some(channels) = shape.channels {
        w.set(&key("ssm.conv_kernel"), channels.n_conv as u32);
        w.set(&key("kda.head_dim"), channels.dim as u32);
    }
    if (0..shape.n_layers).any(|layer| !shape.has_heads(layer)) {
        let n_kv = (0..shape.n_layers).map(|layer| match shape.has_heads(layer) {
            true => shape.n_kv_heads as i32,
            false => 0,
        });
        w.set(&key("attention.head_count_kv"), n_kv.collect::<Vec<i32>>());
    }
    if !shape.blocks.is_empty() {
        let n_ff = (0..shape.n_layers).map(|layer| match shape.block_of(layer) {
            Some(b'E') => shape.n_ff as i32,
            _ => 0,
        });
        w.set(&key("feed_forward_length"), n_ff.collect::<Vec<i32>>());
    }
    if let Some(global) = shape.global {
        add_heads_by_layer(shape, global, w);
    }
    match arch {
        "gpt-oss" => {
            w.set(&key("rope.scaling.type"), "yarn");
            w.set(&key("rope.scaling.factor"), 32f32);
            w.set(&key("rope.scaling.original_context_length"), 4096u32);
        }
        "granite" | "granitehybrid" => {
            w.set(&key("embedding_scale"), 12f32);
            w.set(&key("residual_scale"), 0.22f32);
            w.set(&key("attention.scale"), 0.015_625f32);
            w.set(&key("logit_scale"), 8f32);
            if shape.mamba.is_some() {
                // Says that attention does not rotate.
                w.set(&key("rope.scaling.finetuned"), false);
            }
        }
        "kimi-linear" => {
            // Sigmoid.
            w.set(&key("expert_gating_func"), 2u32);
            w.set(&key("expert_weights_scale"), 2.446f32);
        }
        "nemotron_h_moe" => {
            w.set(&key("expert_weights_norm"), true);
            w.set(&key("expert_weights_scale"), 2.5f32);
        }
        "gemma3" => {
            w.set(&key("rope.scaling.type"), "linear");
            w.set(&key("rope.scaling.factor"), 8f32);
        }
        _ => {}
    }
}

/// Adds the metadata of layers with a state: the convolution, heads of values and of keys, and the values of each.
fn add_state(
    arch: &str,
    n_conv: usize,
    [n_heads, n_k_heads]: [usize; 2],
    [dim, k_dim]: [usize; 2],
    w: &mut Writer<'_>,
) {
    for (name, value) in [
        ("conv_kernel", n_conv),
        ("inner_size", n_heads * dim),
        ("state_size", k_dim),
        ("time_step_rank", n_heads),
        ("group_count", n_k_heads),
    ] {
        w.set(&format!("{arch}.ssm.{name}"), value as u32);
    }
}

/// Adds the metadata of layers that differ in their heads and windows, as Gemma 4 states it.
fn add_heads_by_layer(shape: &Shape, global: ShapeGlobal, w: &mut Writer<'_>) {
    let key = |name: &str| format!("{}.{name}", shape.arch);
    let layers = 0..shape.n_layers;
    let n_kv: Vec<i32> = layers
        .clone()
        .map(|layer| shape.heads_of(layer)[0] as i32)
        .collect();
    let windows: Vec<bool> = layers.map(|layer| !shape.is_global(layer)).collect();
    w.set(&key("attention.head_count_kv"), n_kv);
    w.set(&key("attention.sliding_window_pattern"), windows);
    for (name, of_all, of_windows) in [
        ("attention.key_length", global.head_dim, shape.head_dim),
        ("attention.value_length", global.head_dim, shape.head_dim),
        ("rope.dimension_count", global.head_dim, shape.head_dim),
    ] {
        w.set(&key(name), of_all as u32);
        w.set(&key(&format!("{name}_swa")), of_windows as u32);
    }
    w.set(&key("rope.freq_base_swa"), 1e4f32);
    w.set(&key("final_logit_softcapping"), 30f32);
}

/// Returns whether norms subtract the mean, and norms and products add a bias.
fn is_with_biases(arch: &str) -> bool {
    matches!(arch, "gpt2" | "starcoder2")
}

/// Returns the tensors of the layers of `shape`, and those outside the layers.
pub(super) fn all(shape: &Shape) -> Vec<Tensor> {
    let Shape {
        arch,
        n_embd,
        n_vocab,
        n_layers,
        ..
    } = *shape;
    let mut all = List {
        shape,
        tensors: Vec::new(),
    };
    // Embeddings stay the largest part of the hidden state: else, after some layers, all tokens would choose the same few
    // experts. Gemma multiplies its embeddings itself.
    let embedding = match shape.experts {
        Some(_) if arch != "gemma4" => Values::Embedding,
        _ => Values::Matrix,
    };
    all.add("token_embd.weight", &[n_embd, n_vocab], embedding);
    if arch == "gpt2" {
        let dims = [n_embd, shape.n_ctx];
        all.add("position_embd.weight", &dims, Values::Matrix);
    }
    for layer in 0..n_layers + shape.n_nextn {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let is_of_drafter = layer >= n_layers;
        let norms: &[&str] = match arch {
            "olmo2" => &["post_attention_norm", "post_ffw_norm"],
            "gemma2" | "gemma3" | "gemma4" => &[
                "attn_norm",
                "ffn_norm",
                "post_attention_norm",
                "post_ffw_norm",
            ],
            "seed_oss" | "gpt-oss" | "qwen35" | "qwen35moe" => {
                &["attn_norm", "post_attention_norm"]
            }
            _ if !shape.blocks.is_empty() => &["attn_norm"],
            _ => &["attn_norm", "ffn_norm"],
        };
        for norm in norms {
            all.norm(&name(norm), n_embd);
        }
        if let Some(mamba) = shape.mamba_of(layer) {
            all.mamba(&name, mamba);
        } else if let Some(selective) = shape.selective_of(layer) {
            all.selective(&name, selective);
        } else if let Some(channels) = shape.channels_of(layer) {
            all.channels(&name, channels);
        } else if shape.has_heads(layer) {
            match (shape.latent, shape.linear) {
                (Some(latent), _) => all.latent_attention(&name, latent),
                (None, Some(linear))
                    if !is_of_drafter && !(layer + 1).is_multiple_of(linear.interval) =>
                {
                    all.linear_attention(&name, linear);
                }
                _ if arch == "gemma4" => all.gemma4_attention(&name, layer),
                _ => all.attention(&name),
            }
        }
        match shape.experts {
            _ if shape.block_of(layer).is_some_and(|block| block != b'E') => {}
            Some(experts) if arch == "gemma4" => {
                all.feed_forward(&name);
                all.gemma4_mixture(&name, experts);
            }
            Some(experts) if shape.latent.is_none_or(|latent| layer >= latent.n_dense) => {
                all.mixture(&name, experts);
            }
            _ => all.feed_forward(&name),
        }
        if is_of_drafter {
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                all.norm(&name(&format!("nextn.{norm}")), n_embd);
            }
            all.linear(&name("nextn.eh_proj"), [2 * n_embd, n_embd]);
        }
    }
    all.norm("output_norm", n_embd);
    if !shape.is_tied {
        all.add("output.weight", &[n_embd, n_vocab], Values::Matrix);
    }
    if shape.has_rope_freqs {
        all.add(
            "rope_freqs.weight",
            &[shape.global.map_or(shape.head_dim, |g| g.head_dim) / 2],
            Values::RopeFreqs,
        );
    }
    all.tensors
}

struct List<'a> {
    shape: &'a Shape,
    tensors: Vec<Tensor>,
}

impl List<'_> {
    fn attention(&mut self, name: &dyn Fn(&str) -> String) {
        let Shape {
            arch,
            n_embd,
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *self.shape;
        let (n_q, n_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        match arch {
            "phi3" | "gpt2" => self.linear(&name("attn_qkv"), [n_embd, n_q + 2 * n_kv]),
            _ => {
                // Each head of queries is followed by its gate.
                let n_first = match self.shape.linear {
                    Some(_) => 2 * n_q,
                    None => n_q,
                };
                self.linear(&name("attn_q"), [n_embd, n_first]);
                self.linear(&name("attn_k"), [n_embd, n_kv]);
                self.linear(&name("attn_v"), [n_embd, n_kv]);
            }
        }
        self.linear(&name("attn_output"), [n_q, n_embd]);
        match arch {
            "qwen2" | "qwen2moe" | "seed_oss" | "gpt-oss" => {
                for (part, width) in [("q", n_q), ("k", n_kv), ("v", n_kv)] {
                    self.add(&name(&format!("attn_{part}.bias")), &[width], BIAS);
                }
                if arch == "gpt-oss" {
                    self.add(&name("attn_output.bias"), &[n_embd], BIAS);
                    self.add(&name("attn_sinks.weight"), &[n_heads], BIAS);
                }
            }
            "qwen3" | "qwen3moe" | "qwen35" | "qwen35moe" | "gemma3" => {
                self.norm(&name("attn_q_norm"), head_dim);
                self.norm(&name("attn_k_norm"), head_dim);
            }
            "olmo2" => {
                self.norm(&name("attn_q_norm"), n_q);
                self.norm(&name("attn_k_norm"), n_kv);
            }
            _ => {}
        }
    }

    fn gemma4_attention(&mut self, name: &dyn Fn(&str) -> String, layer: usize) {
        let (n_embd, n_heads) = (self.shape.n_embd, self.shape.n_heads);
        let [n_kv_heads, head_dim] = self.shape.heads_of(layer);
        let (n_q, n_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        self.linear(&name("attn_q"), [n_embd, n_q]);
        self.linear(&name("attn_k"), [n_embd, n_kv]);
        if !self.shape.is_global(layer) {
            self.linear(&name("attn_v"), [n_embd, n_kv]);
        }
        self.linear(&name("attn_output"), [n_q, n_embd]);
        // Scores are not scaled, and would be so large that a single position had all the weight.
        let mean = 1.0 / (head_dim as f32).sqrt();
        let of_queries = Values::Vector {
            mean,
            reach: 0.3 * mean,
        };
        self.add(&name("attn_q_norm.weight"), &[head_dim], of_queries);
        self.norm(&name("attn_k_norm"), head_dim);
        self.add(&name("layer_output_scale.weight"), &[1], NORM);
    }

    /// Adds the experts beside a layer's network, with norms of their own, and gate and up in one tensor.
    fn gemma4_mixture(&mut self, name: &dyn Fn(&str) -> String, experts: ShapeExperts) {
        let n_embd = self.shape.n_embd;
        let ShapeExperts {
            n_experts, n_ff, ..
        } = experts;
        for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
            self.norm(&name(norm), n_embd);
        }
        let router = name("ffn_gate_inp.weight");
        self.add(&router, &[n_embd, n_experts], Values::Matrix);
        // Its input is divided by the root of its width.
        let root = (n_embd as f32).sqrt();
        let of_router = Values::Vector {
            mean: root,
            reach: 0.3 * root,
        };
        self.add(&name("ffn_gate_inp.scale"), &[n_embd], of_router);
        let both = [n_embd, 2 * n_ff, n_experts];
        self.add(&name("ffn_gate_up_exps.weight"), &both, Values::Matrix);
        let down = [n_ff, n_embd, n_experts];
        self.add(&name("ffn_down_exps.weight"), &down, Values::Matrix);
        self.add(&name("ffn_down_exps.scale"), &[n_experts], NORM);
    }

    fn latent_attention(&mut self, name: &dyn Fn(&str) -> String, latent: ShapeLatent) {
        let Shape {
            n_embd,
            n_heads,
            head_dim,
            ..
        } = *self.shape;
        let ShapeLatent {
            q_rank,
            kv_rank,
            n_rot,
            v_dim,
            ..
        } = latent;
        let (n_q, n_plain) = (n_heads * head_dim, head_dim - n_rot);
        if q_rank == 0 {
            self.linear(&name("attn_q"), [n_embd, n_q]);
        } else {
            self.linear(&name("attn_q_a"), [n_embd, q_rank]);
            self.norm(&name("attn_q_a_norm"), q_rank);
            self.linear(&name("attn_q_b"), [q_rank, n_q]);
        }
        self.linear(&name("attn_kv_a_mqa"), [n_embd, kv_rank + n_rot]);
        self.norm(&name("attn_kv_a_norm"), kv_rank);
        if self.shape.arch == "minicpm3" {
            self.linear(&name("attn_kv_b"), [kv_rank, n_heads * (n_plain + v_dim)]);
        } else {
            let of_keys = [n_plain, kv_rank, n_heads];
            self.add(&name("attn_k_b.weight"), &of_keys, Values::Matrix);
            let of_values = [kv_rank, v_dim, n_heads];
            self.add(&name("attn_v_b.weight"), &of_values, Values::Matrix);
        }
        self.linear(&name("attn_output"), [n_heads * v_dim, n_embd]);
    }

    fn linear_attention(&mut self, name: &dyn Fn(&str) -> String, linear: ShapeLinear) {
        let n_embd = self.shape.n_embd;
        let ShapeLinear {
            n_conv,
            n_heads,
            n_k_heads,
            dim,
            ..
        } = linear;
        let n_v = n_heads * dim;
        let n_mixed = 2 * n_k_heads * dim + n_v;
        self.linear(&name("attn_qkv"), [n_embd, n_mixed]);
        self.linear(&name("attn_gate"), [n_embd, n_v]);
        self.linear(&name("ssm_alpha"), [n_embd, n_heads]);
        self.linear(&name("ssm_beta"), [n_embd, n_heads]);
        self.add(&name("ssm_conv1d.weight"), &[n_conv, n_mixed], KERNEL);
        self.add(&name("ssm_dt.bias"), &[n_heads], BIAS);
        self.add(&name("ssm_a"), &[n_heads], DECAY);
        self.norm(&name("ssm_norm"), dim);
        self.linear(&name("ssm_out"), [n_v, n_embd]);
    }

    fn mamba(&mut self, name: &dyn Fn(&str) -> String, mamba: ShapeMamba) {
        let n_embd = self.shape.n_embd;
        let ShapeMamba {
            n_conv,
            n_heads,
            dim,
            n_groups,
            n_state,
            ..
        } = mamba;
        let n_v = n_heads * dim;
        let n_mixed = n_v + 2 * n_groups * n_state;
        self.linear(&name("ssm_in"), [n_embd, n_v + n_mixed + n_heads]);
        self.add(&name("ssm_conv1d.weight"), &[n_conv, n_mixed], KERNEL);
        self.add(&name("ssm_conv1d.bias"), &[n_mixed], BIAS);
        self.add(&name("ssm_dt.bias"), &[n_heads], BIAS);
        self.add(&name("ssm_a"), &[1, n_heads], DECAY);
        self.add(&name("ssm_d"), &[1, n_heads], NORM);
        self.add(&name("ssm_norm.weight"), &[n_v / n_groups, n_groups], NORM);
        self.linear(&name("ssm_out"), [n_v, n_embd]);
    }

    fn selective(&mut self, name: &dyn Fn(&str) -> String, selective: ShapeSelective) {
        let n_embd = self.shape.n_embd;
        let ShapeSelective {
            n_conv,
            n_inner,
            n_state,
            rank,
            ..
        } = selective;
        self.linear(&name("ssm_in"), [n_embd, 2 * n_inner]);
        self.add(&name("ssm_conv1d.weight"), &[n_conv, n_inner], KERNEL);
        self.add(&name("ssm_conv1d.bias"), &[n_inner], BIAS);
        self.linear(&name("ssm_x"), [n_inner, rank + 2 * n_state]);
        for (norm, width) in [("dt", rank), ("b", n_state), ("c", n_state)] {
            self.norm(&name(&format!("ssm_{norm}_norm")), width);
        }
        self.linear(&name("ssm_dt"), [rank, n_inner]);
        self.add(&name("ssm_dt.bias"), &[n_inner], BIAS);
        self.add(&name("ssm_a"), &[n_state, n_inner], DECAY);
        self.add(&name("ssm_d"), &[n_inner], NORM);
        self.linear(&name("ssm_out"), [n_inner, n_embd]);
    }

    fn channels(&mut self, name: &dyn Fn(&str) -> String, channels: ShapeChannels) {
        let n_embd = self.shape.n_embd;
        let ShapeChannels {
            n_conv,
            n_heads,
            dim,
            ..
        } = channels;
        let n = n_heads * dim;
        for part in ["q", "k", "v"] {
            self.linear(&name(&format!("attn_{part}")), [n_embd, n]);
            let kernel = name(&format!("ssm_conv1d_{part}.weight"));
            self.add(&kernel, &[n_conv, 1, n, 1], KERNEL);
        }
        self.linear(&name("ssm_beta"), [n_embd, n_heads]);
        for part in ["f", "g"] {
            self.linear(&name(&format!("ssm_{part}_a")), [n_embd, dim]);
            self.linear(&name(&format!("ssm_{part}_b")), [dim, n]);
        }
        self.add(&name("ssm_dt.bias"), &[n], BIAS);
        self.add(&name("ssm_a"), &[1, n_heads, 1, 1], DECAY);
        self.norm(&name("ssm_norm"), dim);
        self.linear(&name("attn_output"), [n, n_embd]);
    }

    fn feed_forward(&mut self, name: &dyn Fn(&str) -> String) {
        let Shape {
            arch, n_embd, n_ff, ..
        } = *self.shape;
        if arch == "phi3" {
            // The tensor contains the gate's rows as well.
            self.linear(&name("ffn_up"), [n_embd, 2 * n_ff]);
        } else {
            if !is_with_biases(arch) {
                self.linear(&name("ffn_gate"), [n_embd, n_ff]);
            }
            self.linear(&name("ffn_up"), [n_embd, n_ff]);
        }
        self.linear(&name("ffn_down"), [n_ff, n_embd]);
    }

    fn mixture(&mut self, name: &dyn Fn(&str) -> String, experts: ShapeExperts) {
        let n_embd = self.shape.n_embd;
        let ShapeExperts {
            n_experts, n_ff, ..
        } = experts;
        let router = name("ffn_gate_inp.weight");
        self.add(&router, &[n_embd, n_experts], Values::Matrix);
        let parts = self.parts();
        for part in parts {
            let [n_in, n_out] = match *part {
                "down" => [n_ff, n_embd],
                _ => [n_embd, n_ff],
            };
            let stack = name(&format!("ffn_{part}_exps.weight"));
            self.add(&stack, &[n_in, n_out, n_experts], Values::Matrix);
        }
        if self.shape.arch == "gpt-oss" {
            self.add(&name("ffn_gate_inp.bias"), &[n_experts], BIAS);
            for (part, n_out) in [("gate", n_ff), ("up", n_ff), ("down", n_embd)] {
                let bias = name(&format!("ffn_{part}_exps.bias"));
                self.add(&bias, &[n_out, n_experts], BIAS);
            }
        }
        if let Some(n_ff) = experts.n_ff_shared {
            if self.shape.latent.is_none() && self.shape.blocks.is_empty() {
                self.add(&name("ffn_gate_inp_shexp.weight"), &[n_embd], GATE);
            }
            for part in parts {
                let dims = match *part {
                    "down" => [n_ff, n_embd],
                    _ => [n_embd, n_ff],
                };
                self.linear(&name(&format!("ffn_{part}_shexp")), dims);
            }
        }
    }

    /// The matrices of an expert; those of Nemotron have no gate.
    fn parts(&self) -> &'static [&'static str] {
        match self.shape.arch {
            "nemotron_h_moe" => &["up", "down"],
            _ => &["gate", "up", "down"],
        }
    }

    /// Adds the weight of a norm, and its bias if the architecture has biases.
    fn norm(&mut self, name: &str, width: usize) {
        self.add(&format!("{name}.weight"), &[width], NORM);
        if is_with_biases(self.shape.arch) {
            self.add(&format!("{name}.bias"), &[width], BIAS);
        }
    }

    /// Adds a matrix, and its bias if the architecture has biases.
    fn linear(&mut self, name: &str, dims: [usize; 2]) {
        self.add(&format!("{name}.weight"), &dims, Values::Matrix);
        if is_with_biases(self.shape.arch) {
            self.add(&format!("{name}.bias"), &dims[1..], BIAS);
        }
    }

    fn add(&mut self, name: &str, dims: &[usize], values: Values) {
        self.tensors.push(Tensor {
            name: name.to_string(),
            dims: dims.iter().map(|&dim| dim as u64).collect(),
            values,
        });
    }
}
