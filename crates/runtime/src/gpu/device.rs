//! Opens and measures GPUs.

pub use rocmforge_gpu::{
    Candidate, DeviceId, DeviceInfo, GpuError, Limit, OpenOptions, Selection, Survey, Variants,
    candidates, image_targets,
};

use std::sync::Arc;

use rocmforge_gpu::ops::{HeadsMemory, half_cache_bytes};
use rocmforge_gpu::{Factors, Gpu, KvShape};
use rocmforge_plan::Roofline;

use super::{compile, weights};
use crate::error::{ConfigError, DeviceError, RuntimeError};
use crate::gpu_config::GpuConfig;
use rocmforge_plan::Weights;
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_plan::{Plan, PlanPart};

impl GpuConfig {
    /// Opens the chosen GPU with its stored tuning.
    pub(crate) fn open(&self) -> Result<Gpu, RuntimeError> {
        let gpu = match self.id {
            Some(id) => Gpu::open_with(id, &self.open)?,
            None => match Gpu::open_best(&self.open) {
                Ok((gpu, _)) => gpu,
                Err(errors) => {
                    let reasons = reasons(&errors);
                    return Err(DeviceError::NoGpu { reasons }.into());
                }
            },
        };
        match &self.tuning.store {
            Some(store) => {
                let known = store.load(&rocmforge_gpu::tuning_key(&gpu)?);
                Ok(gpu.with_tuning(Arc::new(known)))
            }
            None => Ok(gpu),
        }
    }
}

/// Chooses the best GPU of this machine that this build has kernels for, and that can be opened. No other is opened.
///
/// # Errors
/// One for each device that cannot be used, and for each driver that has none.
pub fn best(options: &OpenOptions) -> Result<Selection, Vec<GpuError>> {
    Gpu::open_best(options).map(|(_, selection)| selection)
}

/// Joins errors into one line.
fn reasons(errors: &[GpuError]) -> String {
    let errors: Vec<String> = errors.iter().map(GpuError::to_string).collect();
    errors.join("; ")
}

/// Returns the GPU's types of keys and values of the KV cache.
///
/// # Errors
/// [`ConfigError::GpuKvTypes`] for those that there are no kernels for.
pub(crate) fn kv_types(wanted: KvTypes) -> Result<rocmforge_gpu::KvTypes, RuntimeError> {
    let mut built = rocmforge_gpu::KvTypes::ALL.iter().copied();
    if let Some(found) = built.find(|&types| plan_types(types) == wanted) {
        return Ok(found);
    }
    let known = all_kv_types().map(|types| types.to_string());
    let known = known.collect::<Vec<_>>().join(", ");
    let kv_types = wanted;
    Err(ConfigError::GpuKvTypes { kv_types, known }.into())
}

/// The types of keys and values of the KV cache that GPUs have kernels for.
pub fn all_kv_types() -> impl Iterator<Item = KvTypes> {
    rocmforge_gpu::KvTypes::ALL.iter().copied().map(plan_types)
}

/// Returns the types of a cache on a GPU as the plan names them. An F32 is not among them: prefill multiplies in f16, so
/// an f32 cache would not give f32 precision.
fn plan_types(types: rocmforge_gpu::KvTypes) -> KvTypes {
    let of = |ty| match ty {
        rocmforge_gpu::KvType::F16 => KvType::F16,
        rocmforge_gpu::KvType::Q8_0 => KvType::Q8_0,
        rocmforge_gpu::KvType::F8E4M3 => KvType::F8E4M3,
        rocmforge_gpu::KvType::Q5_1 => KvType::Q5_1,
        rocmforge_gpu::KvType::Q4_0 => KvType::Q4_0,
    };
    KvTypes {
        keys: of(types.keys()),
        values: of(types.values()),
    }
}

/// Lists the AMD and NVIDIA devices of this machine without opening any.
pub fn survey(options: &OpenOptions) -> Survey {
    Gpu::survey(options)
}

/// Returns the key of stored tuning: device, driver and kernels in one line of text.
///
/// # Errors
/// Device errors.
pub fn tuning_key(config: &GpuConfig) -> Result<String, RuntimeError> {
    Ok(rocmforge_gpu::tuning_key(&config.open()?)?)
}

/// Measures the read bandwidth of the GPU's memory, in bytes per second.
pub fn read_bandwidth(config: &GpuConfig) -> Result<f64, RuntimeError> {
    Ok(rocmforge_gpu::read_bandwidth(&config.open()?)?)
}

/// Measures the GPU's roofline: memory bandwidth, and matrix-unit throughput with f16 and 8-bit operands, which its
/// kernels use for float and quantized weights.
pub fn roofline(config: &GpuConfig) -> Result<Roofline, RuntimeError> {
    let gpu = config.open()?;
    Ok(Roofline {
        read_bytes_per_s: rocmforge_gpu::read_bandwidth(&gpu)?,
        f32_ops_per_s: rocmforge_gpu::matrix_ops(&gpu, Factors::F16)?,
        i8_ops_per_s: rocmforge_gpu::matrix_ops(&gpu, Factors::I8)?,
    })
}

/// Returns the bytes that the weights of `plan` need on `gpu`, including the upload's staging buffers.
///
/// # Errors
/// If `gpu` has no kernels for one of their formats.
pub(crate) fn weight_bytes(gpu: &Gpu, plan: &Plan, weights: &Weights) -> Result<u64, RuntimeError> {
    Ok(weights::device_bytes(gpu, plan, weights)? + weights::staging_bytes(plan, weights))
}

/// Returns the most memory for what prompts make of the cache of a layer: keys and values of the heads of latent attention, or
/// a copy in f16.
pub(crate) fn prompt_bytes(
    gpu: &Gpu,
    part: &PlanPart,
    weights: &Weights,
    (types, page): (KvTypes, usize),
) -> Result<u64, RuntimeError> {
    let segments = compile::segments(part, weights, gpu);
    let heads = compile::latent_heads(&part.plan, &segments);
    let of_heads = heads.map_or(0, |heads| HeadsMemory::most_bytes(gpu, heads));
    let types = kv_types(types)?;
    let layers = part.plan.kv.iter().map(|spec| KvShape {
        types,
        n_blocks: 0,
        n_kv_heads: spec.n_kv_heads,
        page,
        k_dim: spec.k_dim,
        v_dim: spec.v_dim,
        values: spec.values,
    });
    let layers: Vec<KvShape> = layers.collect();
    Ok((of_heads + half_cache_bytes(gpu, &layers)?) as u64)
}
