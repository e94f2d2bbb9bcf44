//! The execution of one batch: upload, conversion, products, download.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::IntoBytes as _;

use super::layout::Layout;
use super::result::BatchMatmulResult;
use super::workspace::{Pool, Workspace};
use super::{BatchQuantizedMatmul, MatmulInput, QuantizedMatmulOp};
use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::operands::OutMode;
use crate::ops::{Conversion, Group, GroupedProduct, Product};

/// A batch that is checked and has its memory.
pub(super) struct Execution {
    gpu: Gpu,
    group: Group,
    /// Bytes of `upload` in use, and where the tables are among them.
    n_upload: usize,
    tables: Range<usize>,
    n_out: usize,
    outputs: Vec<Range<usize>>,
    /// Recorded after everything that the batch queues.
    done: Arc<Event>,
    is_queued: bool,
    /// Kept until the batch is done.
    _inputs: Vec<Arc<Buffer>>,
    /// Present until the batch is finished or dropped.
    workspace: Option<Workspace>,
    pool: Pool,
}

impl Execution {
    /// # Errors
    /// [`GpuError::Batch`] if the batch is invalid; [`GpuError::OutOfMemory`] and other errors of the device.
    pub(super) fn prepare(
        batch: &BatchQuantizedMatmul,
        ops: &[QuantizedMatmulOp<'_>],
    ) -> Result<Execution, GpuError> {
        let gpu = &batch.gpu;
        let layout = Layout::new(gpu, &batch.weights, ops).map_err(GpuError::Batch)?;
        let mut workspace = batch.pool.take(gpu, layout.sizes)?;
        let mut inputs = Vec::new();
        for input in &layout.inputs {
            match input.from {
                MatmulInput::Host(values) => {
                    workspace.upload.write_at(input.upload, values.as_bytes());
                }
                MatmulInput::Device(buffer) => inputs.push(Arc::clone(buffer)),
            }
        }
        let group = group(gpu, &layout, &workspace)?;
        workspace.upload.write_at(layout.tables, group.tables());
        workspace.host_done_flag.set(0, 0);
        let n_upload = layout.tables + group.tables().len();
        let outputs = layout.operations.iter().map(|op| op.output.clone());
        Ok(Execution {
            gpu: gpu.clone(),
            n_upload,
            tables: layout.tables..n_upload,
            n_out: layout.sizes.out,
            outputs: outputs.collect(),
            group,
            done: Arc::new(Event::new(gpu)?),
            is_queued: false,
            _inputs: inputs,
            workspace: Some(workspace),
            pool: batch.pool.clone(),
        })
    }

    /// Queues everything without waiting.
    pub(super) fn queue(&mut self) -> Result<(), GpuError> {
        let gpu = &self.gpu;
        let n_ops = self.outputs.len();
        let workspace = self.workspace.as_mut().expect("the batch is not finished");
        // Set first: if a later call fails, earlier work may already be running.
        self.is_queued = true;
        let uploaded = workspace.uploaded.as_slice::<u8>().part(0..self.n_upload);
        gpu.write_pinned(uploaded, &workspace.upload)?;
        let times = workspace.times.as_slice::<u64>().part(0..2 * n_ops);
        gpu.fill_bytes(times.part(0..n_ops), 0xff)?;
        gpu.fill_bytes(times.part(n_ops..2 * n_ops), 0)?;
        workspace.started.record()?;
        let tables = uploaded.part(self.tables.clone());
        self.group.launch(gpu, tables, times)?;
        workspace.ended.record()?;
        let out = workspace.out.as_slice::<f32>().part(0..self.n_out);
        gpu.read_pinned(out, &mut workspace.host_out)?;
        gpu.read_pinned(times, &mut workspace.host_times)?;
        gpu.read_pinned(
            workspace.done_flag.as_slice(),
            &mut workspace.host_done_flag,
        )?;
        self.done.record()
    }

    /// Returns the event recorded after everything that [`Execution::queue`] queues.
    pub(super) fn done(&self) -> Arc<Event> {
        Arc::clone(&self.done)
    }

    /// Whether the results are in host memory. They stay valid even if the device is lost later.
    pub(super) fn has_results(&self) -> bool {
        let workspace = self.workspace.as_ref();
        workspace.is_some_and(|workspace| workspace.host_done_flag.get(0) != 0)
    }

    pub(super) fn wait(&self) -> Result<(), GpuError> {
        self.done.wait()
    }

    /// Returns the results. They must be there.
    pub(super) fn finish(mut self) -> BatchMatmulResult {
        let workspace = self.workspace.take().expect("the batch is not finished");
        let outputs = std::mem::take(&mut self.outputs);
        BatchMatmulResult::new(
            &self.gpu,
            outputs,
            self.group.n_launches(),
            workspace,
            self.pool.clone(),
        )
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let Some(workspace) = self.workspace.take() else {
            return;
        };
        // Memory that queued work may still use is reused only after that work. If the wait fails, the memory is freed
        // instead, which waits by itself.
        if !self.is_queued || self.done.wait().is_ok() && workspace.host_done_flag.get(0) != 0 {
            self.pool.give_back(workspace);
        }
    }
}

/// Builds the launches of a batch on the memory of `workspace`.
fn group(gpu: &Gpu, layout: &Layout<'_>, workspace: &Workspace) -> Result<Group, GpuError> {
    let [upload, work] = [&workspace.uploaded, &workspace.work].map(Buffer::as_slice::<u8>);
    let conversions = layout.conversions(upload, work);
    let conversions: Vec<Conversion<'_>> =
        conversions.map(|(x, out)| Conversion { x, out }).collect();
    let products = layout.operations.iter().enumerate().map(|(timed, op)| {
        let out = workspace.out.as_slice::<f32>();
        GroupedProduct {
            x: layout.acts(op, upload, work),
            product: Product {
                matrix: op.matrix,
                bias: None,
                mode: OutMode::Store,
                out: out.part(op.output.clone()),
            },
            timed,
        }
    });
    let mut group = Group::default();
    group.convert(gpu, &conversions);
    group.multiply(gpu, &products.collect::<Vec<_>>())?;
    Ok(group)
}
