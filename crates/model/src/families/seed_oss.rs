//! Seed-OSS: Llama with biases of Q, K and V. The norm before the feed-forward network has another name.

use rocmforge_plan::Value;

use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::families::llama;
use crate::keys::Keys;

/// What these files call the norm before a feed-forward network.
pub(super) const FFN_NORM: &str = "post_attention_norm";

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    llama::record_with(m, FFN_NORM)
}
