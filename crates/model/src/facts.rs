//! What a file's metadata says about a model, resolved for each layer. Keys are those of the GGUF specification,
//! prefixed by the architecture's name.

use rocmforge_gguf::TokenId;
use rocmforge_plan::{Activation, Mask, RopeStyle, Router, Scores, Weighed};

use crate::embedding::{Embedding, EmbeddingFacts, Reads};
use crate::error::LoadError;
use crate::keys::{Keys, MAX_DIM, MAX_LAYERS, MAX_ROTATED, Part};
use crate::recurrent::{Recurrent, set_recurrent};
use crate::rope::{FrequencyFactors, Rope};

/// Metadata key of the epsilon of RMS norms.
pub(crate) const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
/// Metadata key of the epsilon of layer norms.
pub(crate) const LAYER_EPS: &str = "attention.layer_norm_epsilon";

/// Facts about a family that its files do not state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyFacts {
    /// Which values of a head form RoPE pairs.
    pub(crate) rope_style: RopeStyle,
    pub(crate) rope_factors: FrequencyFactors,
    /// Norms of Q and K.
    pub(crate) head_norm: HeadNorm,
    pub(crate) embedding: EmbeddingFacts,
}

/// The configuration of a model file.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The architecture's name in the file.
    pub arch_name: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    pub n_embd: usize,
    pub layers: Vec<LayerFacts>,
    /// Layers of the file after these, which predict further tokens ahead (multi-token prediction), of
    /// [`Model::drafter`](crate::Model::drafter).
    pub n_nextn: usize,
    /// The ways in which layers rotate Q and K; layers refer to them by index.
    pub ropes: Vec<Rope>,
    pub norm_eps: f32,
    pub scales: Scales,
    /// `Some(cap)` replaces a logit `x` by `cap * tanh(x / cap)`.
    pub logits_cap: Option<f32>,
    /// Context the model was trained for.
    pub n_ctx_train: usize,
    /// Rows of the learned position matrix, which limit the context.
    pub n_positions: Option<usize>,
    /// Rows of the embedding matrix; token ids are below it.
    pub n_vocab: usize,
    /// Values of the input that each layer has from a second embedding.
    pub n_layer_inputs: Option<usize>,
    /// Of a drafter in a file of its own, the width of the hidden values of the model for which it drafts.
    pub n_target: Option<usize>,
    /// Of a drafter that takes hidden values, whether these are normed before what its layer returns is added to them.
    pub has_normed_residual: bool,
    /// Of a drafter that predicts the tokens of a block at once, that block.
    pub draft_block: Option<DraftBlock>,
    /// Residual streams that run beside each other.
    pub n_streams: usize,
    /// The function of the feed-forward networks, if the file states it.
    pub activation: Option<Activation>,
    /// Which tokens of a text each token sees.
    pub reads: Reads,
    /// What the model returns for a text; `None` if it is loaded to generate text.
    pub embedding: Option<Embedding>,
}

/// The block of tokens that a drafter takes: a known one, and others in whose place it predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftBlock {
    /// All of them, 2 or more.
    pub n_tokens: usize,
    /// The token that stands for each of the others.
    pub mask: TokenId,
    /// Whether each sees those after it.
    pub looks_ahead: bool,
}

/// The configuration of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerFacts {
    /// None without attention.
    pub n_heads: usize,
    /// None with heads if a projection is in place of attention.
    pub n_kv_heads: usize,
    /// Values per head of Q and K; not always `n_embd / n_heads`.
    pub k_dim: usize,
    /// Values per head of V.
    pub v_dim: usize,
    pub head_norm: HeadNorm,
    /// Latent attention (MLA): keys and values are computed from a narrow vector, which is what the cache holds. `k_dim`
    /// and `v_dim` are then those of the computed heads.
    pub latent: Option<Latent>,
    /// Index of the rotation of Q and K among those of the model; `None` if they are not rotated.
    pub rope: Option<usize>,
    /// Which positions attention sees.
    pub mask: Mask,
    pub scores: Scores,
    /// Whether each head has a sink, `attn_sinks`.
    pub has_sinks: bool,
    /// The output of attention is multiplied by this function of a projection, `attn_gate`.
    pub gate: Option<Activation>,
    /// The values of that gate follow each head of the queries, in `attn_q`.
    pub has_gates_in_q: bool,
    /// What the layer has in place of attention; the facts about attention then mean nothing.
    pub recurrent: Option<Recurrent>,
    /// The earlier layer whose KV cache this one uses; it then has none of its own.
    pub kv_of: Option<usize>,
    pub feed_forward: FeedForward,
    /// The limit of the SwiGLU of the network, or of the shared expert.
    pub limit: Option<f32>,
    /// The function of the network, if layers differ in it.
    pub activation: Option<Activation>,
    /// Of the network's gate, only what exceeds the mean by this many standard deviations is kept.
    pub sparsity: Option<f32>,
}

/// Latent attention of a layer (DeepSeek-AI 2024, DeepSeek-V2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector from which queries are computed; `None` if they are computed directly.
    pub q_rank: Option<usize>,
    /// Width of the vector from which keys and values are computed.
    pub kv_rank: usize,
    /// Values at the end of each query and key that are rotated; those of the keys are the same in all heads.
    pub n_rot: usize,
}

/// Which values each norm of Q and K spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorm {
    /// Each head separately, if the file has the tensors.
    IfPresent,
    /// Each head separately; the tensors are required.
    Each,
    /// Each head separately, with weights of its own; the tensors are required.
    Own,
    /// All heads together; the tensors are required.
    Together,
    /// As `Each`, after the rotation.
    EachAfterRope,
    /// As `EachAfterRope`, without weights.
    PlainAfterRope,
    /// All heads together by layer norms, if the file has the tensors.
    TogetherCentered,
    /// Each head separately by layer norms with weights of its own, if the file has the tensors.
    OwnCentered,
}

/// The second half of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForward {
    Dense { n_ff: usize },
    Mixture(Experts),
}

impl FeedForward {
    /// Width of the network, or of one expert.
    pub fn n_ff(&self) -> usize {
        match self {
            FeedForward::Dense { n_ff } => *n_ff,
            FeedForward::Mixture(experts) => experts.n_ff,
        }
    }
}

/// The mixture of experts (MoE) that replaces a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    pub n_experts: usize,
    /// Width of one expert.
    pub n_ff: usize,
    pub router: Router,
    /// What the router's weights multiply.
    pub weighed: Weighed,
    /// The limit of the experts' SwiGLU.
    pub limit: Option<f32>,
    /// Width of the vectors that the experts map to each other, if it is not that of the residual stream.
    pub n_latent: Option<usize>,
    pub shared: Option<SharedExpert>,
}

/// The expert that every token uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedExpert {
    pub n_ff: usize,
    /// Whether its output is multiplied by a gate of its own.
    pub is_gated: bool,
}

/// Constant factors of a model; 1 if a family has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    /// On the embeddings.
    pub embedding: f64,
    /// On the output of each block, before it is added to the residual stream.
    pub residual: f64,
    /// On attention's output, before it is added to the residual stream.
    pub attention: f64,
    /// Divides the logits.
    pub logits: f64,
}

/// A layer of a model, and its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer<'a> {
    index: usize,
    pub(crate) facts: &'a LayerFacts,
}

impl Layer<'_> {
    /// Returns the full name of the layer's tensor `name`.
    pub(crate) fn tensor(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.index)
    }
}

impl ModelConfig {
    /// Checks the rotation of each layer against its heads.
    pub(crate) fn check_ropes(&self, keys: &Keys<'_>) -> Result<(), LoadError> {
        for layer in &self.layers {
            let n_rot = layer.rope.map_or(0, |rope| self.ropes[rope].n_rot);
            if n_rot > layer.k_dim.min(MAX_ROTATED) || n_rot % 2 != 0 {
                const OF_WINDOWS: &str = "rope.dimension_count_swa";
                let has_own = keys.meta.get(&keys.key(OF_WINDOWS)).is_some();
                let key = match has_own && layer.rope != Some(0) {
                    true => OF_WINDOWS,
                    false => "rope.dimension_count",
                };
                return Err(keys.bad(key, n_rot, "an even number, at most the head size"));
            }
        }
        Ok(())
    }

    /// Reads what all families state in the same way; layers differ at most in their numbers of heads. `eps_key` is the
    /// metadata key of the norms' epsilon. The error names the key that is missing, out of range or not supported.
    pub(crate) fn read(
        keys: &Keys<'_>,
        family: &KeyFacts,
        eps_key: &str,
        feed_forward: FeedForward,
    ) -> Result<ModelConfig, LoadError> {
        let n_blocks = keys.size("block_count", MAX_LAYERS)?;
        let all_heads = keys.sizes("attention.head_count", n_blocks, MAX_DIM)?;
        let all_kv_heads = keys
            .opt_sizes("attention.head_count_kv", n_blocks, MAX_DIM)?
            .unwrap_or_else(|| all_heads.clone());
        let heads = [all_heads, all_kv_heads];
        ModelConfig::read_with_heads(keys, (family, eps_key), feed_forward, heads)
    }

    /// As [`ModelConfig::read`], with `recurrent` in place of attention in layers for which the file states no heads of K
    /// and V.
    pub(crate) fn read_hybrid(
        keys: &Keys<'_>,
        family: (&KeyFacts, &str),
        feed_forward: FeedForward,
        recurrent: Recurrent,
    ) -> Result<ModelConfig, LoadError> {
        let (mut config, heads) = ModelConfig::read_with_zeros(keys, family, feed_forward)?;
        set_recurrent(&mut config, recurrent, |layer| heads[layer][1] == 0);
        Ok(config)
    }

    /// As [`ModelConfig::read`], of a file with layers without heads of K and V, whose facts about heads mean nothing.
    /// Also returns the stated numbers of heads, and of heads of K and V, for each layer.
    pub(crate) fn read_with_zeros(
        keys: &Keys<'_>,
        family: (&KeyFacts, &str),
        feed_forward: FeedForward,
    ) -> Result<(ModelConfig, Vec<[usize; 2]>), LoadError> {
        const KV_HEADS: &str = "attention.head_count_kv";
        let n_blocks = keys.size("block_count", MAX_LAYERS)?;
        let mut heads = keys.counts("attention.head_count", n_blocks, MAX_DIM)?;
        let mut kv_heads = match keys.meta.get(&keys.key(KV_HEADS)) {
            None => heads.clone(),
            Some(_) => keys.counts(KV_HEADS, n_blocks, MAX_DIM)?,
        };
        let stated = heads.iter().zip(&kv_heads).map(|(&q, &kv)| [q, kv]);
        let stated: Vec<[usize; 2]> = stated.collect();
        // Numbers that mean nothing, but pass for heads.
        let some = heads.iter().copied().find(|&n| n > 0).unwrap_or(1);
        for (heads, kv_heads) in heads.iter_mut().zip(&mut kv_heads) {
            if *kv_heads == 0 {
                (*heads, *kv_heads) = (some, some);
            }
        }
        let heads = [heads, kv_heads];
        let config = ModelConfig::read_with_heads(keys, family, feed_forward, heads)?;
        Ok((config, stated))
    }

    /// As [`ModelConfig::read`], with these numbers of heads, and of heads of K and V, in each layer.
    fn read_with_heads(
        keys: &Keys<'_>,
        (family, eps_key): (&KeyFacts, &str),
        feed_forward: FeedForward,
        [all_heads, all_kv_heads]: [Vec<usize>; 2],
    ) -> Result<ModelConfig, LoadError> {
        let n_blocks = all_heads.len();
        let mut n_nextn = match keys.part {
            Part::Assistant => 0,
            Part::Text | Part::Drafter => keys.n_nextn()?,
        };
        if n_nextn >= n_blocks {
            return Err(keys.bad("nextn_predict_layers", n_nextn, "fewer than all layers"));
        }
        if keys.part == Part::Drafter {
            n_nextn = 0;
        }
        let n_embd = keys.size("embedding_length", MAX_DIM)?;
        for (n_heads, n_kv_heads) in all_heads.iter().zip(&all_kv_heads) {
            if *n_heads == 0 || !n_heads.is_multiple_of(*n_kv_heads) {
                return Err(keys.bad(
                    "attention.head_count_kv",
                    n_kv_heads,
                    "a divisor of the head count",
                ));
            }
        }
        let n_heads = all_heads[0];
        let k_dim = match keys.opt_size("attention.key_length", MAX_DIM)? {
            Some(dim) => dim,
            None if n_embd % n_heads == 0 => n_embd / n_heads,
            None => {
                return Err(keys.bad(
                    "attention.head_count",
                    n_heads,
                    "a divisor of the embedding length",
                ));
            }
        };
        let v_dim = keys
            .opt_size("attention.value_length", MAX_DIM)?
            .unwrap_or(k_dim);
        let n_rot = keys
            .opt_size("rope.dimension_count", MAX_DIM)?
            .unwrap_or(k_dim);
        let reads = match keys.meta.opt_bool(&keys.key("attention.causal"))? {
            Some(false) => Reads::BothSides,
            _ => family.embedding.reads,
        };
        let n_ctx_train = keys.size("context_length", u32::MAX as usize)?;
        let norm_eps = keys.meta.f32(&keys.key(eps_key))?;
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(keys.bad(eps_key, norm_eps, "between 0 and 1"));
        }
        let n_vocab = match keys.gguf.tensor("token_embd.weight") {
            Some(embedding) => embedding.n_rows() as usize,
            // A drafter may embed tokens as the model for which it drafts.
            None if keys.part == Part::Assistant => 0,
            None => {
                return Err(LoadError::MissingTensor {
                    name: "token_embd.weight".into(),
                    arch: keys.arch.to_string(),
                });
            }
        };
        let layer = |(&n_heads, &n_kv_heads): (&usize, &usize)| LayerFacts {
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            head_norm: family.head_norm,
            latent: None,
            rope: Some(0),
            mask: match reads {
                Reads::Backward => Mask::All,
                Reads::BothSides => Mask::Both,
            },
            scores: Scores {
                scale: scale_of_width(k_dim),
                soft_cap: None,
                growth: None,
                alibi: None,
            },
            has_sinks: false,
            gate: None,
            has_gates_in_q: false,
            recurrent: None,
            kv_of: None,
            feed_forward,
            limit: None,
            activation: None,
            sparsity: None,
        };
        Ok(ModelConfig {
            arch_name: keys.arch.to_string(),
            n_embd,
            layers: all_heads
                .iter()
                .zip(&all_kv_heads)
                .take(n_blocks - n_nextn)
                .map(layer)
                .collect(),
            n_nextn,
            ropes: vec![Rope::read(
                keys,
                family.rope_style,
                family.rope_factors,
                [n_rot, n_ctx_train],
            )?],
            norm_eps,
            scales: Scales {
                embedding: 1.0,
                residual: 1.0,
                attention: 1.0,
                logits: 1.0,
            },
            logits_cap: None,
            n_ctx_train,
            n_positions: None,
            n_layer_inputs: None,
            n_target: None,
            has_normed_residual: false,
            draft_block: None,
            n_streams: 1,
            activation: None,
            reads,
            embedding: None,
            n_vocab,
            name: keys.meta.opt_str("general.name")?.map(str::to_string),
        })
    }

    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns whether any layer has a mixture of experts.
    pub fn has_experts(&self) -> bool {
        let mut layers = self.layers.iter();
        layers.any(|layer| matches!(layer.feed_forward, FeedForward::Mixture(_)))
    }

    /// Returns the layers in the order in which they run.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        (0..self.n_layers()).map(|index| self.layer(index))
    }

    pub(crate) fn layer(&self, index: usize) -> Layer<'_> {
        let facts = &self.layers[index];
        Layer { index, facts }
    }
}

/// Returns the usual factor on dot products of rows of `width` values.
pub(crate) fn scale_of_width(width: usize) -> f32 {
    (1.0 / (width as f64).sqrt()) as f32
}
