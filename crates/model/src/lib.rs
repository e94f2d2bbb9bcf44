//! A model read from a GGUF file: its facts, its weights, and the plan of its computation.

#![forbid(unsafe_code)]

mod arch;
mod config;
mod decoder;
mod error;
mod feed_forward;
mod keys;
mod layers;
mod lora;
mod mixture;
mod rope;
mod weights;

use std::sync::Arc;

use rocmforge_gguf::Gguf;

pub use arch::Architecture;
pub use config::{Experts, ModelConfig, RopeScaling, Rotation, Scales, SoftCaps};
pub use error::LoadError;
pub use layers::LayerView;
pub use lora::{Adapter, AdapterError};

use rocmforge_plan::{Fusion, KvType, Plan, Weights, fuse, fuse_passes};

/// Everything a backend needs to run a model.
#[derive(Debug, Clone)]
pub struct Model {
    pub config: ModelConfig,
    pub weights: Arc<Weights>,
    /// Recorded and fused.
    pub plan: Plan,
}

impl Model {
    /// The plan as a backend runs it.
    pub fn compiled_plan(&self, fusion: Fusion) -> Plan {
        match fusion {
            Fusion::On => fuse_passes(self.plan.clone(), &self.weights),
            Fusion::Off => self.plan.clone(),
        }
    }

    /// Reads the model's facts, checks every tensor's shape and records the plan. Reads no weights.
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, LoadError> {
        Model::load_with(gguf, &[])
    }

    /// As [`Model::load`], changed by `adapters`, whose weights it reads.
    pub fn load_with(gguf: Arc<Gguf>, adapters: &[Adapter]) -> Result<Model, LoadError> {
        lora::refuse_adapter(&gguf)?;
        let config = ModelConfig::from_gguf(&gguf)?;
        let (plan, weights) = decoder::record(&config, gguf, adapters)?;
        Ok(Model {
            config,
            weights: Arc::new(weights),
            plan: fuse(plan),
        })
    }

    /// Bytes that one token takes in a KV cache of `kv_type`.
    pub fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.plan.kv_bytes_per_token(kv_type)
    }
}
