//! Memory of a running batch: device memory, and pinned memory for uploads and downloads. It is reused by a later batch
//! that it is large enough for.

use std::sync::{Arc, Mutex};

use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::pinned::Pinned;

/// Maximum number of idle workspaces.
const MAX_IDLE: usize = 4;

/// Memory requirements of a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Sizes {
    /// Bytes of inputs and tables to upload.
    pub(super) upload: usize,
    /// Bytes of converted activations.
    pub(super) work: usize,
    /// Values of outputs.
    pub(super) out: usize,
    pub(super) n_ops: usize,
}

impl Sizes {
    fn fit(&self, room: &Sizes) -> bool {
        let pairs = [
            (self.upload, room.upload),
            (self.work, room.work),
            (self.out, room.out),
            (self.n_ops, room.n_ops),
        ];
        pairs.iter().all(|(wanted, room)| wanted <= room)
    }
}

pub(super) struct Workspace {
    sizes: Sizes,
    pub(super) upload: Pinned<u8>,
    pub(super) uploaded: Buffer,
    pub(super) work: Buffer,
    pub(super) out: Buffer,
    /// `[2, n_ops]`.
    pub(super) times: Buffer,
    /// A word other than 0. Its copy to `host_done_flag` is the last one that a batch queues.
    pub(super) done_flag: Buffer,
    pub(super) host_out: Pinned<f32>,
    pub(super) host_times: Pinned<u64>,
    pub(super) host_done_flag: Pinned<u32>,
    pub(super) started: Event,
    pub(super) ended: Event,
}

impl Workspace {
    fn new(gpu: &Gpu, sizes: Sizes) -> Result<Workspace, GpuError> {
        let done_flag = gpu.alloc::<u32>(1)?;
        gpu.fill_bytes(done_flag.as_slice::<u32>(), 0xff)?;
        Ok(Workspace {
            sizes,
            upload: Pinned::new(gpu, sizes.upload)?,
            uploaded: gpu.alloc::<u8>(sizes.upload)?,
            work: gpu.alloc::<u8>(sizes.work)?,
            out: gpu.alloc::<f32>(sizes.out)?,
            times: gpu.alloc::<u64>(2 * sizes.n_ops)?,
            done_flag,
            host_out: Pinned::new(gpu, sizes.out)?,
            host_times: Pinned::new(gpu, 2 * sizes.n_ops)?,
            host_done_flag: Pinned::new(gpu, 1)?,
            started: Event::new(gpu)?,
            ended: Event::new(gpu)?,
        })
    }
}

/// Workspaces that are not in use.
#[derive(Clone, Default)]
pub(super) struct Pool(Arc<Mutex<Vec<Workspace>>>);

impl Pool {
    pub(super) fn take(&self, gpu: &Gpu, sizes: Sizes) -> Result<Workspace, GpuError> {
        let idle = {
            let mut idle = self.0.lock().unwrap_or_else(|e| e.into_inner());
            let fits = idle.iter().position(|idle| sizes.fit(&idle.sizes));
            fits.map(|at| idle.swap_remove(at))
        };
        idle.map_or_else(|| Workspace::new(gpu, sizes), Ok)
    }

    /// Returns a workspace that no queued work uses.
    pub(super) fn give_back(&self, workspace: Workspace) {
        let mut idle = self.0.lock().unwrap_or_else(|e| e.into_inner());
        idle.push(workspace);
        if idle.len() > MAX_IDLE {
            // The one that has been idle longest.
            let oldest = idle.remove(0);
            drop(idle);
            drop(oldest);
        }
    }
}
