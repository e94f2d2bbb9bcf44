//! Linear attention of prompts in chunks on matrix units: which sequences, and by which kernel
//! (`kernels/delta_chunks.hip`, `kernels/channel_chunks.hip`, `kernels/ssd_chunks.hip`).

use std::sync::OnceLock;

use rocmforge_plan::{Decay, LinearHeads, StateRule};

use super::recurrent::LinearParams;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{AnyKernel, Kernel, KernelTable, kernels};
use crate::variant::Variant;

/// The fewest rows of a sequence that are computed in chunks. Fewer gain little or nothing.
pub const CHUNK_ROWS: usize = 32;

kernels! {
    struct DeltaKernels {
        delta_chunks_64: LinearParams,
        delta_chunks_128: LinearParams,
    }
}

kernels! {
    struct ChannelKernels {
        channel_chunks_128: LinearParams,
    }
}

kernels! {
    struct SsdKernels {
        ssd_chunks_64: LinearParams,
        ssd_chunks_128: LinearParams,
        ssd_chunks_256: LinearParams,
    }
}

pub(crate) type DeltaChunks = Chunks<DeltaKernels>;
pub(crate) type ChannelChunks = Chunks<ChannelKernels>;
pub(crate) type SsdChunks = Chunks<SsdKernels>;

/// The kernels of a rule.
pub(crate) struct Chunks<K> {
    kernels: K,
    module: &'static str,
    /// Threads of a block; 0 if the device has no matrix units.
    n_threads: OnceLock<u32>,
}

impl<K: KernelTable> KernelTable for Chunks<K> {
    fn of_module(module: &'static str) -> Chunks<K> {
        Chunks {
            kernels: K::of_module(module),
            module,
            n_threads: OnceLock::new(),
        }
    }

    fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        self.kernels.each(visit);
    }
}

impl<K> Chunks<K> {
    fn n_threads(&self, gpu: &Gpu) -> Result<u32, GpuError> {
        if let Some(n) = self.n_threads.get() {
            return Ok(*n);
        }
        let n = gpu.constant(self.module, "chunk_threads")?;
        Ok(*self.n_threads.get_or_init(|| n))
    }
}

/// A kernel, and what its launches have to know.
#[derive(Clone, Copy)]
pub(super) struct ChunkKernel<'a> {
    pub(super) kernel: &'a Kernel<LinearParams>,
    pub(super) n_threads: u32,
    /// Columns of a state that a block has.
    pub(super) n_columns: usize,
}

/// The rules that have chunks.
#[derive(Clone, Copy)]
enum ChunkRule {
    Delta,
    /// The delta rule with a factor for each channel.
    Channel,
    Ssd,
}

impl ChunkRule {
    /// The rule of such an operation, if its keys and values have lengths that there are kernels for.
    fn of<W>((heads, rule, of): (&LinearHeads, StateRule, Decay<W>)) -> Option<ChunkRule> {
        let (rule, keys) = match (rule, of) {
            (StateRule::Delta, Decay::Head) => (ChunkRule::Delta, &[64, 128][..]),
            (StateRule::Delta, Decay::Channel) => (ChunkRule::Channel, &[128][..]),
            (StateRule::Add, Decay::Head) => (ChunkRule::Ssd, &[64, 128, 256][..]),
            (StateRule::Add, Decay::Channel) | (_, Decay::Value(_)) => return None,
        };
        let has_kernel =
            keys.contains(&heads.k_dim) && heads.v_dim.is_multiple_of(16) && heads.columns() == 32;
        has_kernel.then_some(rule)
    }

    fn kernel(self, gpu: &Gpu, k_dim: usize) -> Result<ChunkKernel<'_>, GpuError> {
        let kernels = gpu.kernels();
        let (delta, ssd) = (&kernels.delta_chunks, &kernels.ssd_chunks);
        let channel = &kernels.channel_chunks;
        let (kernel, n_columns) = match (self, k_dim) {
            (ChunkRule::Delta, 64) => (&delta.kernels.delta_chunks_64, 64),
            (ChunkRule::Delta, _) => (&delta.kernels.delta_chunks_128, 64),
            (ChunkRule::Channel, _) => (&channel.kernels.channel_chunks_128, 64),
            (ChunkRule::Ssd, 64) => (&ssd.kernels.ssd_chunks_64, 64),
            (ChunkRule::Ssd, 128) => (&ssd.kernels.ssd_chunks_128, 64),
            (ChunkRule::Ssd, _) => (&ssd.kernels.ssd_chunks_256, 32),
        };
        let n_threads = match self {
            ChunkRule::Delta => delta.n_threads(gpu)?,
            ChunkRule::Channel => channel.n_threads(gpu)?,
            ChunkRule::Ssd => ssd.n_threads(gpu)?,
        };
        Ok(ChunkKernel {
            kernel,
            n_threads,
            n_columns,
        })
    }
}

/// Whether there are devices that take sequences of at least [`CHUNK_ROWS`] rows in chunks.
pub fn has_chunks<W>(how: (&LinearHeads, StateRule, Decay<W>)) -> bool {
    ChunkRule::of(how).is_some()
}

/// Whether [`linear_attention`](super::linear_attention) takes sequences in chunks, of which the longest has so many rows: by
/// a rule that has them, if the device has matrix units, and if rows need not have the same bits in any company.
///
/// # Errors
/// Those of loading the kernels.
pub fn is_in_chunks<W>(
    gpu: &Gpu,
    how: (&LinearHeads, StateRule, Decay<W>),
    max_rows_of_seq: usize,
) -> Result<bool, GpuError> {
    Ok(kernel(gpu, how, max_rows_of_seq)?.is_some())
}

/// Returns the kernel for sequences of at least [`CHUNK_ROWS`] rows, if [`is_in_chunks`].
pub(super) fn kernel<'a, W>(
    gpu: &'a Gpu,
    how: (&LinearHeads, StateRule, Decay<W>),
    max_rows_of_seq: usize,
) -> Result<Option<ChunkKernel<'a>>, GpuError> {
    let is_off = [
        Variant::LinearRows,
        Variant::LoadsNarrow,
        Variant::RowsPrompt,
        Variant::RowsAnswer,
    ];
    if max_rows_of_seq < CHUNK_ROWS || is_off.into_iter().any(|variant| gpu.takes(variant)) {
        return Ok(None);
    }
    let k_dim = how.0.k_dim;
    let Some(rule) = ChunkRule::of(how) else {
        return Ok(None);
    };
    let kernel = rule.kernel(gpu, k_dim)?;
    Ok((kernel.n_threads > 0).then_some(kernel))
}
