//! Runs the GPU backend one pass at a time for checks, and copies its memory to the host.

use std::borrow::Cow;

use rocmforge_cpu as cpu;
use rocmforge_cpu::Isa;
use rocmforge_gpu::{ActFormat, Acts, GpuError, ops};

use super::choices::{Choices, Chooser};
use super::compile::{Segment, Stage};
use super::step::{StepShape, StepToken};
use super::{GpuBackend, NOT_FINITE};
use crate::cpu::{ActsBuffer, LayerCache};
use crate::error::RuntimeError;
use crate::stepwise::{Memory, Pass, Stepwise};
use rocmforge_plan::KvShift;
use rocmforge_plan::{ActsId, BufferId, Op, RoutingId, RowCount, Side};
use rocmforge_plan::{Batch, InputToken};

impl Stepwise for GpuBackend {
    fn pass(&self, index: usize) -> Pass {
        let (_, stage) = self.stage(index);
        Pass {
            side: Side::Gpu,
            n_ops: stage.ops().len(),
            undefined: stage.undefined(),
            unwritten: stage.unwritten_acts(),
        }
    }

    fn takes_halves(&self, index: usize, batch: &Batch) -> bool {
        let shape = StepShape::of(batch, Chooser::Best);
        let mut ops = self.plan.ops[self.stage(index).1.ops()].iter();
        ops.any(|op| self.is_in_halves(op, &shape))
    }

    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        let shape = StepShape::of(batch, Chooser::Best);
        if let Op::Import { out } = self.plan.ops[index] {
            let mut values = batch.imports.clone();
            values.resize(self.memory.buffer(out, &shape).len(), 0.0);
            return Ok(self.set_values(out, &values, batch)?);
        }
        let tokens = batch.tokens.iter().map(|token| match *token {
            InputToken::Id(id) => StepToken::Id(id),
            InputToken::Sampled { .. } => StepToken::Id(NOT_FINITE),
        });
        let tokens: Vec<StepToken> = tokens.collect();
        let choices = Choices::default();
        self.memory.step.write(batch, &tokens, &choices, &shape);
        let step = &self.memory.step;
        self.begin(&shape)?;
        // The stage's kernel may read the step's words before its predecessor ends.
        self.gpu.synchronize()?;
        let (segment, stage) = self.stage(index);
        self.run_stage(segment, stage, &shape)?;
        let (io, none) = (step.io(&shape), step.sampled(&shape).part(0..0));
        ops::end_step(&self.gpu, &io, none, step.results())?;
        Ok(self.gpu.synchronize()?)
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError> {
        self.shift(std::slice::from_ref(shift), 0)?;
        Ok(self.gpu.synchronize()?)
    }

    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError> {
        let shape = StepShape::of(batch, Chooser::Best);
        let buffers = (0..self.plan.buffers.len()).map(|id| {
            let buffer = self.memory.buffer(BufferId(id as u32), &shape);
            self.gpu.read(buffer)
        });
        let routings =
            (0..self.plan.n_routings).map(|id| self.routing(RoutingId(id as u32), &shape));
        let routings: Vec<cpu::Routing> = routings.collect::<Result<_, GpuError>>()?;
        let acts = (0..self.plan.acts.len()).map(|id| {
            let id = ActsId(id as u32);
            if let RowCount::Heads { n_heads } = self.plan.acts[id.0 as usize].rows {
                let heads = cpu::Routing::of_heads(n_heads, shape.n_rows);
                return self.sorted_acts(id, &heads, &shape);
            }
            match self.routing_of(id) {
                Some(routing) => self.sorted_acts(id, &routings[routing.0 as usize], &shape),
                None => Ok(ActsBuffer::Rows(
                    self.acts(id, self.memory.acts(id, &shape))?,
                )),
            }
        });
        let acts = acts.collect::<Result<Vec<ActsBuffer>, GpuError>>()?;
        let cache = self.plan.kv.iter().enumerate().map(|(i, spec)| {
            let layer = self.memory.layer(i);
            let (k, v) = (self.gpu.read(layer.k)?, self.gpu.read(layer.v)?);
            let types = self.options.kv_types;
            Ok(LayerCache::from_planes(*spec, types, [&k, &v]))
        });
        let states = 0..self.plan.states.len();
        let states = states.map(|state| self.gpu.read(self.memory.state(state)));
        Ok(Memory {
            buffers: Cow::Owned(buffers.collect::<Result<_, GpuError>>()?),
            acts: Cow::Owned(acts),
            routings: Cow::Owned(routings),
            cache: Cow::Owned(cache.collect::<Result<_, GpuError>>()?),
            states: Cow::Owned(states.collect::<Result<_, GpuError>>()?),
        })
    }
}

impl GpuBackend {
    /// Whether an operation rounds its operands to f16, or to sums of two, in a step of `shape`.
    fn is_in_halves(&self, op: &Op, shape: &StepShape) -> bool {
        if let Op::Attention { .. } = op {
            return self.launcher(shape).attends_in_halves(op);
        }
        if let Op::LinearAttention {
            heads, rule, decay, ..
        } = op
        {
            let in_chunks =
                ops::is_in_chunks(&self.gpu, (heads, *rule, *decay), shape.max_rows_of_seq);
            // Kernels that do not load fail where they are launched.
            return in_chunks.unwrap_or(false);
        }
        let Some(x) = op.acts_read() else {
            return false;
        };
        let (gpu, x) = (&self.gpu, self.memory.acts(x, shape));
        let routing = match *op {
            Op::ExpertMatMul { routing, .. } => Some(self.memory.routing(routing, shape)),
            Op::HeadMatMul { n_heads, .. } => Some(self.memory.heads(n_heads, shape)),
            _ => None,
        };
        op.matrices().into_iter().any(|weight| {
            let ty = self.weights.ty(weight);
            match &routing {
                Some(routing) => ops::takes_halves_of_experts(gpu, &x, routing, ty),
                None => ops::takes_halves(gpu, &x, ty),
            }
        })
    }

    /// Reads a buffer of a step of `batch`.
    pub(crate) fn values(&self, id: BufferId, batch: &Batch) -> Result<Vec<f32>, GpuError> {
        let shape = StepShape::of(batch, Chooser::Best);
        self.gpu.read(self.memory.buffer(id, &shape))
    }

    /// Overwrites a buffer of a step of `batch`.
    pub(crate) fn set_values(
        &self,
        id: BufferId,
        values: &[f32],
        batch: &Batch,
    ) -> Result<(), GpuError> {
        let shape = StepShape::of(batch, Chooser::Best);
        self.gpu.write(self.memory.buffer(id, &shape), values)
    }

    /// Returns the stage whose first operation is `index`, and its segment.
    fn stage(&self, index: usize) -> (&Segment, &Stage) {
        let mut stages = { self.segments.iter() }
            .flat_map(|segment| segment.stages.iter().map(move |stage| (segment, stage)));
        let stage = stages.find(|(_, stage)| stage.ops().start == index);
        stage.expect("a pass begins at the first operation of a stage")
    }

    /// Reads an expert routing in the CPU's form; empty if the device's rows are not sorted by expert, or are left from
    /// another step.
    fn routing(&self, id: RoutingId, shape: &StepShape) -> Result<cpu::Routing, GpuError> {
        let routing = self.memory.routing(id, shape);
        let experts = self.gpu.read(routing.experts)?;
        let weights = self.gpu.read(routing.weights)?;
        let choices = experts.into_iter().zip(weights);
        let found = cpu::Routing::of_choices(routing.n_experts, routing.n_used, choices);
        let rows = self.gpu.read(routing.rows)?;
        Ok(found
            .filter(|found| {
                let tokens = 0..found.n_tokens();
                let choices = tokens.flat_map(|token| found.choices(token));
                choices.map(|choice| choice.row).eq(rows)
            })
            .unwrap_or_default())
    }

    /// Returns the routing that sorted these activations, if they are sorted by expert.
    fn routing_of(&self, id: ActsId) -> Option<RoutingId> {
        self.plan.ops.iter().find_map(|op| match *op {
            Op::QuantizeExperts { routing, out, .. } if out == id => Some(routing),
            _ => None,
        })
    }

    /// Reads activations that are sorted by expert.
    fn sorted_acts(
        &self,
        id: ActsId,
        routing: &cpu::Routing,
        shape: &StepShape,
    ) -> Result<ActsBuffer, GpuError> {
        let all = self.memory.acts(id, shape);
        let groups = routing.groups().map(|rows| self.acts(id, all.part(rows)));
        let groups = groups.collect::<Result<_, GpuError>>()?;
        Ok(ActsBuffer::ByExpert(cpu::ExpertActs::of_groups(groups)))
    }

    /// Reads activations in the CPU's form.
    fn acts(&self, id: ActsId, acts: Acts<'_>) -> Result<cpu::Acts, GpuError> {
        let (format, [n, width]) = (
            self.plan.acts[id.0 as usize].format,
            [acts.n_rows, acts.width],
        );
        let mut out = cpu::Acts::new();
        if width == 0 {
            // They are on the other device.
            return Ok(out);
        }
        match acts.form {
            ActFormat::F32 => {
                let values = self.gpu.read(acts.values)?;
                out.quantize(Isa::Scalar, &self.pool, &values, [n, width], format);
            }
            ActFormat::Q8x32 | ActFormat::Q8x256 => {
                let codes = self.gpu.read(acts.codes)?;
                let scales = self.gpu.read(acts.scales)?;
                out.set_codes(&self.pool, format, [n, width], &codes, &scales);
            }
        }
        Ok(out)
    }
}
