//! Copies buffers between the GPU and the CPU through pinned host memory: when they share a plan, and what comes with a batch
//! or goes out beside the logits.

use std::collections::HashMap;

use rocmforge_gpu::{Event, Gpu, GpuError, Pinned};

use super::step::{N_SLOTS, StepSizes};
use super::{GpuBackend, QueuedStep};
use rocmforge_plan::{Batch, BufferId, PlanPart};

/// The buffers that this device exchanges with the other one.
pub(crate) struct Transfers {
    buffers: HashMap<BufferId, HostBuffer>,
    imports: Vec<BufferId>,
    exports: Vec<BufferId>,
    /// What the steps in flight export beside the logits, by slot; allocated when it is first asked for.
    of_steps: [Option<Pinned<f32>>; N_SLOTS],
    /// Values that the largest step exports.
    most_exported: usize,
}

struct HostBuffer {
    /// `[rows, width]` of the largest step.
    host: Pinned<f32>,
    /// Recorded after the last copy from `host`.
    read: Event,
    was_read: bool,
}

impl Transfers {
    pub(crate) fn new(gpu: &Gpu, part: &PlanPart, sizes: &StepSizes) -> Result<Self, GpuError> {
        let mut buffers = HashMap::new();
        let of_batches = part.plan.import();
        for id in part.imports.iter().chain(&part.exports).chain(&of_batches) {
            let info = part.plan.buffers[id.0 as usize];
            let n_rows = info.rows.rows(sizes.max_rows, sizes.max_logits);
            let buffer = HostBuffer {
                host: Pinned::new(gpu, n_rows * info.width)?,
                read: Event::new(gpu)?,
                was_read: false,
            };
            buffers.insert(*id, buffer);
        }
        Ok(Transfers {
            buffers,
            imports: part.imports.clone(),
            exports: part.exports.clone(),
            of_steps: [const { None }; N_SLOTS],
            most_exported: part.plan.export().map_or(0, |id| {
                let info = part.plan.buffers[id.0 as usize];
                info.rows.rows(sizes.max_rows, sizes.max_logits) * info.width
            }),
        })
    }

    /// Returns the buffers that come from the other device.
    pub(crate) fn imports(&self) -> &[BufferId] {
        &self.imports
    }

    /// Returns the buffers that go to the other device.
    pub(crate) fn exports(&self) -> &[BufferId] {
        &self.exports
    }
}

impl GpuBackend {
    /// Queues the copy of `values` to an imported buffer. Padding rows are zeros.
    pub(crate) fn import(
        &mut self,
        id: BufferId,
        values: &[f32],
        queued: &QueuedStep,
    ) -> Result<(), GpuError> {
        let buffer = self.transfers.buffers.get_mut(&id);
        let buffer = buffer.expect("the buffer is exchanged");
        let to = self.memory.buffer(id, &queued.shape);
        if to.is_empty() {
            return Ok(());
        }
        if buffer.was_read {
            buffer.read.wait()?;
        }
        buffer.host.write(values);
        let n_padding = to.len().saturating_sub(values.len());
        buffer.host.write_at(values.len(), &vec![0.0; n_padding]);
        self.gpu.write_pinned(to, &buffer.host)?;
        buffer.read.record()?;
        buffer.was_read = true;
        Ok(())
    }

    /// Queues the copies of exported buffers to the host.
    pub(crate) fn queue_export(
        &mut self,
        ids: &[BufferId],
        queued: &QueuedStep,
    ) -> Result<(), GpuError> {
        for id in ids {
            let buffer = self.transfers.buffers.get_mut(id);
            let buffer = buffer.expect("the buffer is exchanged");
            let from = self.memory.buffer(*id, &queued.shape);
            if !from.is_empty() {
                self.gpu.read_pinned(from, &mut buffer.host)?;
            }
        }
        Ok(())
    }

    /// Copies the first values of an exported buffer to `to`. The export must have completed.
    pub(crate) fn read_export(&self, id: BufferId, to: &mut [f32]) {
        to.copy_from_slice(&self.transfers.buffers[&id].host.read(0..to.len()));
    }

    /// Queues the copy of what comes with a batch, if the plan has any.
    pub(crate) fn import_batch(
        &mut self,
        batch: &Batch,
        queued: &QueuedStep,
    ) -> Result<(), GpuError> {
        match self.plan.import() {
            Some(id) => self.import(id, &batch.imports, queued),
            None => Ok(()),
        }
    }

    /// Queues the copy of what a step exports, if it does.
    pub(crate) fn queue_batch_export(
        &mut self,
        batch: &Batch,
        queued: &QueuedStep,
    ) -> Result<(), GpuError> {
        let Some(id) = self.plan.export().filter(|_| batch.exports) else {
            return Ok(());
        };
        let host = match &mut self.transfers.of_steps[queued.slot] {
            Some(host) => host,
            host => match Pinned::new(&self.gpu, self.transfers.most_exported) {
                Ok(new) => host.insert(new),
                Err(error) if error.is_fatal() => return Err(error),
                // The step has its tokens without it.
                Err(_) => return Ok(()),
            },
        };
        self.gpu
            .read_pinned(self.memory.buffer(id, &queued.shape), host)
    }

    /// Returns what a completed step exports, if it does.
    pub(crate) fn batch_export(&self, batch: &Batch, queued: &QueuedStep) -> Vec<f32> {
        let id = self.plan.export().filter(|_| batch.exports);
        let host = &self.transfers.of_steps[queued.slot];
        let (Some(id), Some(host)) = (id, host) else {
            return Vec::new();
        };
        let width = self.plan.buffers[id.0 as usize].width;
        host.read(0..batch.tokens.len() * width)
    }

    /// Waits for all queued work.
    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        self.gpu.synchronize()
    }
}
