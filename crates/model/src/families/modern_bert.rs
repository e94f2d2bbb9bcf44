//! ModernBERT: norms before each block, without biases; two of three layers see only tokens nearby.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embedding, embeddings, fused_feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, LAYER_EPS, ModelConfig};
use crate::keys::Keys;
use crate::rope::Rope;
use crate::windows::{set_windows_after_first, with_window_base};

/// Metadata key of the function in the networks.
const HIDDEN_ACTIVATION: &str = "hidden_activation";

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, LAYER_EPS, experts::dense(keys)?)?;
    let in_window = Rope {
        base: 10_000.0,
        ..config.ropes[0].unscaled()
    };
    let in_window = with_window_base(keys, in_window)?;
    set_windows_after_first(keys, &mut config, in_window, 3)?;
    config.activation = match keys.meta.opt_str(&keys.key(HIDDEN_ACTIVATION))? {
        None => None,
        Some("gelu") => Some(Activation::GeluTanh),
        Some("silu" | "swish") => Some(Activation::Silu),
        Some(other) => {
            let shown = rocmforge_gguf::shown(other);
            return Err(keys.bad(HIDDEN_ACTIVATION, shown, "gelu or silu"));
        }
    };
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let activation = m.config.activation.unwrap_or(Activation::GeluTanh);
    let x = embeddings(m, 1.0)?;
    let mut x = m.scaled_layer_norm(x, "token_embd_norm", 1.0)?;
    for (index, layer) in m.config.layers().enumerate() {
        m.plan.begin_layer();
        let tensor = layer.tensor("attn_norm");
        // The first layer reads what is normed already.
        let normed = match index == 0 && !m.loader.has(&format!("{tensor}.weight")) {
            true => x,
            false => m.scaled_layer_norm(x, &tensor, 1.0)?,
        };
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.scaled_layer_norm(x, &layer.tensor("ffn_norm"), 1.0)?;
        let out = fused_feed_forward(m, layer, activation, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.scaled_layer_norm(x, "output_norm", 1.0)?;
    embedding(m, x)
}
