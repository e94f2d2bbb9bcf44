//! The kernels of `kernels/hopper/attend.hip`: attention of prompts, and of few rows of latent layers, with queries and
//! weights in f16, on Hopper.

use rocmforge_plan::Values;

use super::attention_params::PrefillParams;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{Kernel, kernels};
use crate::kv::{KvShape, KvType};

/// Threads of a block: `ATTEND_THREADS` of `kernels/hopper/attend.h`.
pub(super) const THREADS: u32 = 256;
/// With fewer queries per KV head, most of a block's places would stay empty. Latent layers have no other kernel that
/// reads a key once for so many.
const MIN_QUERIES: usize = 64;
const MIN_QUERIES_OF_LATENT: usize = 16;

kernels! {
    struct AttendKernels {
        attend_64: PrefillParams,
        attend_128: PrefillParams,
        attend_192_128: PrefillParams,
        attend_256: PrefillParams,
        attend_latent_576_512: PrefillParams,
        attend_latent_320_256: PrefillParams,
    }
}

/// The constants with the shared memory and the queries of a block of each kernel.
const CONSTANTS: [[&str; 2]; 6] = [
    ["attend_64_bytes", "attend_64_queries"],
    ["attend_128_bytes", "attend_128_queries"],
    ["attend_192_128_bytes", "attend_192_128_queries"],
    ["attend_256_bytes", "attend_256_queries"],
    [
        "attend_latent_576_512_bytes",
        "attend_latent_576_512_queries",
    ],
    [
        "attend_latent_320_256_bytes",
        "attend_latent_320_256_queries",
    ],
];

/// What the kernels' blocks are like, where the device has them.
pub(super) struct AttendBlocks(Option<[[u32; 2]; CONSTANTS.len()]>);

impl AttendBlocks {
    /// Reads the constants.
    pub(super) fn new(gpu: &Gpu) -> Result<AttendBlocks, GpuError> {
        let module = gpu.kernels().attend.attend_64.module;
        if Image::find(gpu.target(), module).is_none() {
            return Ok(AttendBlocks(None));
        }
        let mut blocks = [[0; 2]; CONSTANTS.len()];
        for (block, names) in blocks.iter_mut().zip(CONSTANTS) {
            for (value, name) in block.iter_mut().zip(names) {
                *value = gpu.constant(module, name)?;
            }
        }
        Ok(AttendBlocks(Some(blocks)))
    }

    /// Returns the kernel for a cache of this shape, which is for f16, and its block's shared memory and queries, if there is
    /// one that `n_queries` queries of a KV head and a sequence keep busy.
    pub(super) fn of<'g>(
        &self,
        gpu: &'g Gpu,
        shape: &KvShape,
        n_queries: usize,
    ) -> Option<(&'g Kernel<PrefillParams>, [u32; 2])> {
        let least = match shape.values {
            Values::Apart => MIN_QUERIES,
            Values::InKeys => MIN_QUERIES_OF_LATENT,
        };
        let is_taken = n_queries >= least && shape.types == KvType::F16.into();
        let blocks = self.0.as_ref().filter(|_| is_taken)?;
        let all = &gpu.kernels().attend;
        let (kernel, place) = match (shape.values, shape.k_dim, shape.v_dim) {
            (Values::Apart, 64, 64) => (&all.attend_64, 0),
            (Values::Apart, 128, 128) => (&all.attend_128, 1),
            (Values::Apart, 192, 128) => (&all.attend_192_128, 2),
            (Values::Apart, 256, 256) => (&all.attend_256, 3),
            (Values::InKeys, 576, 512) => (&all.attend_latent_576_512, 4),
            (Values::InKeys, 320, 256) => (&all.attend_latent_320_256, 5),
            _ => return None,
        };
        Some((kernel, blocks[place]))
    }
}
