//! Runs the hybrid backend one pass at a time for checks. Each pass runs on its own side, after the buffers it reads
//! are copied there.

use std::borrow::Cow;

use super::HybridBackend;
use crate::error::RuntimeError;
use crate::stepwise::{Memory, Pass, Stepwise};
use rocmforge_plan::Batch;
use rocmforge_plan::KvShift;
use rocmforge_plan::{BufferId, Op, Plan, Side};

/// The side that holds the current values of each buffer.
pub(crate) struct Residency {
    buffers: Vec<Side>,
    acts: Vec<Side>,
    routings: Vec<Side>,
    /// KV caches.
    layers: Vec<Side>,
    states: Vec<Side>,
}

impl Residency {
    /// Returns the sides before the first step: a buffer that exists on one side only is there.
    pub(crate) fn new(cpu: &Plan, gpu: &Plan) -> Residency {
        let home = |of_cpu: bool| match of_cpu {
            true => Side::Cpu,
            false => Side::Gpu,
        };
        let buffers = cpu.buffers.iter().zip(&gpu.buffers);
        let acts = cpu.acts.iter().zip(&gpu.acts);
        Residency {
            buffers: buffers
                .map(|(a, b)| home(a.width > 0 || b.width == 0))
                .collect(),
            acts: acts
                .map(|(a, b)| home(a.width > 0 || b.width == 0))
                .collect(),
            routings: vec![Side::Cpu; cpu.n_routings],
            layers: cpu.kv.iter().map(|kv| home(kv.n_kv_heads > 0)).collect(),
            states: { cpu.states.iter() }
                .map(|state| home(state.len > 0))
                .collect(),
        }
    }

    /// Records that `op` ran on `side`.
    fn written(&mut self, op: &Op, side: Side) {
        for id in op.writes() {
            self.buffers[id.0 as usize] = side;
        }
        if let Some(id) = op.acts_written() {
            self.acts[id.0 as usize] = side;
        }
        if let Some(id) = op.routing() {
            self.routings[id.0 as usize] = side;
        }
    }
}

impl HybridBackend {
    /// Returns the side of an operation, and its index in that side's plan.
    fn place(&self, index: usize) -> (Side, usize) {
        let mut segments = self.placement.segments().iter();
        let segment = segments.find(|segment| segment.ops.contains(&index));
        let segment = segment.expect("every operation belongs to a segment");
        (
            segment.side,
            segment.own_ops.start + index - segment.ops.start,
        )
    }

    /// Copies a buffer to `side` unless its values are there.
    fn copy_to(&mut self, id: BufferId, side: Side, batch: &Batch) -> Result<(), RuntimeError> {
        let home = &mut self.residency.buffers[id.0 as usize];
        match (*home, side) {
            (Side::Gpu, Side::Cpu) => {
                let values = self.gpu.values(id, batch)?;
                self.cpu.buffer_mut(id).copy_from_slice(&values);
            }
            (Side::Cpu, Side::Gpu) => self.gpu.set_values(id, self.cpu.buffer(id), batch)?,
            _ => {}
        }
        *home = side;
        Ok(())
    }
}

impl Stepwise for HybridBackend {
    fn pass(&self, index: usize) -> Pass {
        match self.place(index) {
            (Side::Cpu, own) => self.cpu.pass(own),
            (Side::Gpu, own) => self.gpu.pass(own),
        }
    }

    fn takes_halves(&self, index: usize, batch: &Batch) -> bool {
        match self.place(index) {
            (Side::Cpu, _) => false,
            (Side::Gpu, own) => self.gpu.takes_halves(own, batch),
        }
    }

    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        let (side, own) = self.place(index);
        let ops = self.plan.ops[index..index + self.pass(index).n_ops].to_vec();
        // Resizes the CPU's buffers for the batch.
        self.cpu.begin(batch);
        for id in ops.iter().flat_map(Op::reads) {
            self.copy_to(id, side, batch)?;
        }
        match side {
            Side::Cpu => self.cpu.run_one(own, batch)?,
            Side::Gpu => self.gpu.run_one(own, batch)?,
        }
        ops.iter().for_each(|op| self.residency.written(op, side));
        Ok(())
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError> {
        self.cpu.run_shift(shift)?;
        self.gpu.run_shift(shift)
    }

    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError> {
        let (cpu, gpu) = (self.cpu.memory(batch)?, self.gpu.memory(batch)?);
        let residency = &self.residency;
        Ok(Memory {
            buffers: merged(&residency.buffers, &cpu.buffers, &gpu.buffers),
            acts: merged(&residency.acts, &cpu.acts, &gpu.acts),
            routings: merged(&residency.routings, &cpu.routings, &gpu.routings),
            cache: merged(&residency.layers, &cpu.cache, &gpu.cache),
            states: merged(&residency.states, &cpu.states, &gpu.states),
        })
    }
}

/// Takes each value from the side that holds the current one.
fn merged<T: Clone>(sides: &[Side], cpu: &[T], gpu: &[T]) -> Cow<'static, [T]> {
    let current = sides.iter().enumerate().map(|(i, side)| match side {
        Side::Gpu => gpu[i].clone(),
        Side::Cpu => cpu[i].clone(),
    });
    Cow::Owned(current.collect())
}
