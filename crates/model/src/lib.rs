//! Reads a model from a GGUF file: its configuration, its weights, and the plan of its computation.
//!
//! Invariant: a model is described once, as a plan that every backend runs. A file is loaded only if every
//! tensor has the shape its metadata implies and every tensor is used; anything else is an error that names it.

#![forbid(unsafe_code)]

mod arch;
mod config;
mod decoder;
mod error;
mod feed_forward;
mod keys;
mod layers;
mod lora;
mod moe;
mod rope;
mod weights;

use std::sync::Arc;

use rocmforge_gguf::Gguf;
use rocmforge_plan::{Fusion, KvType, Plan, Weights, fuse_adds, fuse_ops};

pub use arch::Architecture;
pub use config::{Experts, ModelConfig, RopeScaling, Rotation, Scales, SoftCaps};
pub use error::LoadError;
pub use layers::LayerView;
pub use lora::{Adapter, AdapterError};

/// Everything a backend needs to run a model.
#[derive(Debug, Clone)]
pub struct Model {
    pub config: ModelConfig,
    pub weights: Arc<Weights>,
    /// The recorded plan, with residual adds fused into products.
    pub plan: Plan,
}

impl Model {
    /// Returns the plan as a backend runs it.
    pub fn compiled_plan(&self, fusion: Fusion) -> Plan {
        match fusion {
            Fusion::On => fuse_ops(self.plan.clone(), &self.weights),
            Fusion::Off => self.plan.clone(),
        }
    }

    /// Reads the configuration, checks the shape of every tensor and records the plan. Reads no weights.
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, LoadError> {
        Model::load_with(gguf, &[])
    }

    /// As [`Model::load`], with the LoRA `adapters` applied. Reads the adapters' weights.
    pub fn load_with(gguf: Arc<Gguf>, adapters: &[Adapter]) -> Result<Model, LoadError> {
        lora::refuse_adapter(&gguf)?;
        let config = ModelConfig::from_gguf(&gguf)?;
        let (plan, weights) = decoder::record(&config, gguf, adapters)?;
        Ok(Model {
            config,
            weights: Arc::new(weights),
            plan: fuse_adds(plan),
        })
    }

    /// Returns the bytes that one token takes in a KV cache of type `kv_type`.
    pub fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.plan.kv_bytes_per_token(kv_type)
    }
}
