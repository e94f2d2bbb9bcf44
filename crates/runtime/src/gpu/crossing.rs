//! Buffers of a part of a plan that come from the other device and go there, through memory of the host that this one
//! reads and writes.

use std::collections::HashMap;

use rocmforge_gpu::{Event, Gpu, GpuError, Pinned};

use super::step::StepSizes;
use super::{Begun, GpuBackend};
use rocmforge_plan::{BufferId, PlanPart};

/// By buffer.
pub(crate) struct Crossing {
    ports: HashMap<BufferId, Port>,
    imports: Vec<BufferId>,
    exports: Vec<BufferId>,
}

struct Port {
    /// `[rows, width]` of the largest step.
    host: Pinned<f32>,
    /// The last copy from `host`.
    read: Event,
    was_read: bool,
}

impl Crossing {
    pub(crate) fn new(gpu: &Gpu, part: &PlanPart, sizes: &StepSizes) -> Result<Self, GpuError> {
        let mut ports = HashMap::new();
        for id in part.imports.iter().chain(&part.exports) {
            let info = part.plan.buffers[id.0 as usize];
            let n_rows = info.rows.rows(sizes.max_rows, sizes.max_logits);
            let port = Port {
                host: Pinned::new(gpu, n_rows * info.width)?,
                read: Event::new(gpu)?,
                was_read: false,
            };
            ports.insert(*id, port);
        }
        Ok(Crossing {
            ports,
            imports: part.imports.clone(),
            exports: part.exports.clone(),
        })
    }

    /// Buffers that come from the other device.
    pub(crate) fn imports(&self) -> &[BufferId] {
        &self.imports
    }

    /// Buffers that go there.
    pub(crate) fn exports(&self) -> &[BufferId] {
        &self.exports
    }
}

impl GpuBackend {
    /// Queues the copy of the rows of a step to a buffer that crosses. Rows that only fill up the step are zeros.
    pub(crate) fn import(
        &mut self,
        id: BufferId,
        values: &[f32],
        begun: &Begun,
    ) -> Result<(), GpuError> {
        let port = self.crossing.ports.get_mut(&id);
        let port = port.expect("the buffer crosses");
        let to = self.memory.buffer(id, &begun.shape);
        if to.is_empty() {
            return Ok(());
        }
        if port.was_read {
            port.read.wait()?;
        }
        port.host.write(values);
        let n_filling = to.len().saturating_sub(values.len());
        port.host.write_at(values.len(), &vec![0.0; n_filling]);
        self.gpu.write_pinned(to, &port.host)?;
        port.read.record()?;
        port.was_read = true;
        Ok(())
    }

    /// Queues the copies of buffers that cross to the host.
    pub(crate) fn queue_export(&mut self, ids: &[BufferId], begun: &Begun) -> Result<(), GpuError> {
        for id in ids {
            let port = self.crossing.ports.get_mut(id);
            let port = port.expect("the buffer crosses");
            let from = self.memory.buffer(*id, &begun.shape);
            if !from.is_empty() {
                self.gpu.read_pinned(from, &mut port.host)?;
            }
        }
        Ok(())
    }

    /// The first values of a buffer whose export is over.
    pub(crate) fn exported(&self, id: BufferId, to: &mut [f32]) {
        to.copy_from_slice(&self.crossing.ports[&id].host.read(0..to.len()));
    }

    /// Waits for all that is queued.
    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        self.gpu.synchronize()
    }
}
