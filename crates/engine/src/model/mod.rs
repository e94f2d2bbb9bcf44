//! A model read from a GGUF file: its facts, its weights, and the plan of its computation.

mod arch;
mod config;
mod decoder;
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
pub use layers::LayerView;
pub use lora::{Adapter, AdapterError};
pub use weights::Weights;

use crate::error::EngineError;
use crate::kv_cache::KvType;
use crate::plan::{Passes, Plan, fuse, merge_passes};

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
    pub fn compiled_plan(&self, passes: Passes) -> Plan {
        match passes {
            Passes::Merged => merge_passes(self.plan.clone(), &self.weights),
            Passes::Separate => self.plan.clone(),
        }
    }

    /// Reads the model's facts, checks every tensor's shape and records the plan. Reads no weights.
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, EngineError> {
        Model::load_with(gguf, &[])
    }

    /// As [`Model::load`], changed by `adapters`, whose weights it reads.
    pub fn load_with(gguf: Arc<Gguf>, adapters: &[Adapter]) -> Result<Model, EngineError> {
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
