//! MiniCPM 3: latent attention in dense layers, with the constant factors of MiniCPM, which files do not state.

use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS, Scales, scale_of_width};
use crate::families::deepseek2::set_latent;
use crate::keys::Keys;
use crate::rope;

/// Factor on the embeddings.
const EMBEDDING: f64 = 12.0;
/// Factor on the output of a block, times the root of the number of layers.
const DEPTH: f64 = 1.4;
/// Width of the model whose logits need no factor.
const BASE_WIDTH: f64 = 256.0;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    // Converters write the width of a key, and leave that of a value at what follows from the model's width.
    let states_width = keys.meta.get(&keys.key("attention.value_length")).is_some();
    for layer in &mut config.layers {
        if !states_width {
            if !config.n_embd.is_multiple_of(layer.n_heads) {
                let wanted = "a divisor of the embedding length";
                return Err(keys.bad("attention.head_count", layer.n_heads, wanted));
            }
            layer.v_dim = config.n_embd / layer.n_heads;
        }
        layer.scores.scale = scale_of_width(layer.k_dim);
    }
    set_latent(keys, &mut config)?;
    // The converter writes the factors of RoPE without a scaling type.
    let has_type = keys.meta.get(&keys.key("rope.scaling.type")).is_some();
    if !has_type && keys.gguf.tensor("rope_factors_long.weight").is_some() {
        config.ropes[0].scaling = rope::scaling(keys, Some("longrope"), config.n_ctx_train)?;
    }
    config.scales = Scales {
        embedding: EMBEDDING,
        attention: 1.0,
        residual: DEPTH / (config.n_layers() as f64).sqrt(),
        logits: config.n_embd as f64 / BASE_WIDTH,
    };
    Ok(config)
}
