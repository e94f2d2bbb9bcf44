//! The GPU backend one operation at a time, for checks: its memory is copied to the host.

use std::borrow::Cow;

use rocmforge_cpu::{self as cpu, Isa};
use rocmforge_gpu::{ActForm, GpuError, ops};

use super::choices::{Choices, Chooser};
use super::compile::Stage;
use super::step::{StepShape, StepToken};
use super::{GpuBackend, NOT_FINITE};
use crate::backend::check::{Memory, Pass, Stepwise};
use crate::backend::cpu::{ActsBuffer, LayerCache};
use crate::batch::{Batch, InputToken};
use crate::error::EngineError;
use crate::kv_cache::KvShift;
use crate::plan::{ActsId, BufferId, Side};

impl Stepwise for GpuBackend {
    fn pass(&self, index: usize) -> Pass {
        let stage = self.stage(index);
        Pass {
            side: Side::Gpu,
            n_ops: stage.ops().len(),
            undefined: match stage {
                Stage::One(_) => None,
                Stage::RopeKv { ops, .. } => Some(ops.k_unwritten),
            },
        }
    }

    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), EngineError> {
        let shape = StepShape::of(batch, Chooser::Best);
        let tokens = batch.tokens.iter().map(|token| match *token {
            InputToken::Id(id) => StepToken::Id(id),
            InputToken::Sampled { .. } => StepToken::Id(NOT_FINITE),
        });
        let tokens: Vec<StepToken> = tokens.collect();
        let choices = Choices::default();
        self.memory.step.write(batch, &tokens, &choices, &shape);
        let step = &self.memory.step;
        self.begin(&shape)?;
        self.launcher(&shape).run(self.stage(index))?;
        let (io, none) = (step.io(&shape), step.sampled(&shape).part(0..0));
        ops::end_step(&self.gpu, &io, none, step.results())?;
        Ok(self.gpu.synchronize()?)
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), EngineError> {
        self.shift(std::slice::from_ref(shift), 0)?;
        Ok(self.gpu.synchronize()?)
    }

    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, EngineError> {
        let shape = StepShape::of(batch, Chooser::Best);
        let buffers = (0..self.plan.buffers.len()).map(|id| {
            let buffer = self.memory.buffer(BufferId(id as u32), &shape);
            self.gpu.read(buffer)
        });
        let acts = (0..self.plan.acts.len()).map(|id| self.acts(ActsId(id as u32), &shape));
        let cache = self.plan.kv.iter().enumerate().map(|(i, spec)| {
            let layer = self.memory.layer(i);
            let (k, v) = (self.gpu.read(layer.k)?, self.gpu.read(layer.v)?);
            let kv_type = self.options.kv_type;
            Ok(LayerCache::from_planes(*spec, kv_type, [&k, &v]))
        });
        Ok(Memory {
            buffers: Cow::Owned(buffers.collect::<Result<_, GpuError>>()?),
            acts: Cow::Owned(acts.collect::<Result<_, GpuError>>()?),
            routings: Cow::Owned(Vec::new()),
            cache: Cow::Owned(cache.collect::<Result<_, GpuError>>()?),
        })
    }
}

impl GpuBackend {
    /// A buffer of a step of `batch`.
    pub(in crate::backend) fn values(
        &self,
        id: BufferId,
        batch: &Batch,
    ) -> Result<Vec<f32>, GpuError> {
        let shape = StepShape::of(batch, Chooser::Best);
        self.gpu.read(self.memory.buffer(id, &shape))
    }

    /// Overwrites a buffer of a step of `batch`.
    pub(in crate::backend) fn set_values(
        &self,
        id: BufferId,
        values: &[f32],
        batch: &Batch,
    ) -> Result<(), GpuError> {
        let shape = StepShape::of(batch, Chooser::Best);
        self.gpu.write(self.memory.buffer(id, &shape), values)
    }

    /// The stage that begins with operation `index` of the plan.
    fn stage(&self, index: usize) -> &Stage {
        let mut stages = self.segments.iter().flat_map(|segment| &segment.stages);
        let stage = stages.find(|stage| stage.ops().start == index);
        stage.expect("passes begin with the operations of a stage")
    }

    /// Activations as the CPU has them.
    fn acts(&self, id: ActsId, shape: &StepShape) -> Result<ActsBuffer, GpuError> {
        let acts = self.memory.acts(id, shape);
        let (format, [n, width]) = (
            self.plan.acts[id.0 as usize].format,
            [acts.n_rows, acts.width],
        );
        let mut out = cpu::Acts::new();
        if width == 0 {
            // Another device has them.
            return Ok(ActsBuffer::Rows(out));
        }
        match acts.form {
            ActForm::F32 => {
                let values = self.gpu.read(acts.values)?;
                out.quantize(Isa::Scalar, &self.pool, &values, n, width, format);
            }
            ActForm::Q8x32 | ActForm::Q8x256 => {
                let codes = self.gpu.read(acts.codes)?;
                let scales = self.gpu.read(acts.scales)?;
                out.set_codes(&self.pool, format, [n, width], &codes, &scales);
            }
        }
        Ok(ActsBuffer::Rows(out))
    }
}
