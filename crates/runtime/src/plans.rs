//! The plan of a model as a backend runs it. A GPU that runs all of it has shared experts among the chosen ones; split between
//! devices, they stay on the GPU while the chosen ones may not.

use rocmforge_gpu::ops::MAX_EXPERTS;
use rocmforge_model::Model;
use rocmforge_plan::{Fusion, Plan, fuse_ops, join_shared_experts};

use crate::backend::BackendInfo;

/// Returns the plan of `model` as the backend that `info` describes runs it.
pub fn running_plan(model: &Model, fusion: Fusion, info: &BackendInfo) -> Plan {
    match info.is_on_gpu() && info.parts.is_empty() {
        true => on_gpu(model, fusion),
        false => model.compiled_plan(fusion),
    }
}

/// Returns the plan as a GPU runs it that runs all of it.
pub(crate) fn on_gpu(model: &Model, fusion: Fusion) -> Plan {
    match fusion {
        Fusion::On => fuse_ops(unfused_on_gpu(model, fusion), &model.weights),
        Fusion::Off => unfused_on_gpu(model, fusion),
    }
}

/// Returns the same before operations are fused: the buffers of a step take no more memory.
pub(crate) fn unfused_on_gpu(model: &Model, fusion: Fusion) -> Plan {
    let plan = model.plan.clone();
    match fusion {
        Fusion::On => join_shared_experts(plan, &model.weights, MAX_EXPERTS),
        Fusion::Off => plan,
    }
}
