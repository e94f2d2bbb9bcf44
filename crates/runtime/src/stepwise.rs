//! Runs a plan one pass at a time for checks. All values can be read and replaced between passes.

use std::borrow::Cow;

use rocmforge_cpu::Routing;
use rocmforge_plan::{ActsId, Batch, BufferId, KvShift, Side};

use crate::cpu::{ActsBuffer, LayerCache};
use crate::error::RuntimeError;

/// A backend that runs one pass at a time and whose memory can be read.
pub trait Stepwise {
    /// Returns the pass that begins with operation `index` of the plan.
    fn pass(&self, _index: usize) -> Pass {
        Pass {
            side: Side::Cpu,
            n_ops: 1,
            undefined: Vec::new(),
            unwritten: None,
        }
    }

    /// Whether the pass that begins with operation `index` of the plan rounds its operands to f16, or to
    /// sums of two, for `batch`.
    fn takes_halves(&self, _index: usize, _batch: &Batch) -> bool {
        false
    }

    /// Runs the pass that begins with operation `index` of the plan for `batch`.
    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError>;

    /// Moves tokens in the KV cache and rotates their keys.
    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError>;

    /// Returns all values that operations of `batch` read and write, copied to the host if needed.
    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError>;
}

/// Consecutive operations that a backend runs as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// The device that runs them.
    pub side: Side,
    pub n_ops: usize,
    /// Buffers that the separate operations write but this pass may leave undefined. Nothing reads them afterwards.
    pub undefined: Vec<BufferId>,
    /// The same of activations.
    pub unwritten: Option<ActsId>,
}

/// The values that a plan's operations read and write, except weights.
pub struct Memory<'a> {
    /// By [`BufferId`], each `[rows, width]`.
    pub(crate) buffers: Cow<'a, [Vec<f32>]>,
    pub(crate) acts: Cow<'a, [ActsBuffer]>,
    pub(crate) routings: Cow<'a, [Routing]>,
    pub(crate) cache: Cow<'a, [LayerCache]>,
    /// By state, `[n_slots, len]`.
    pub(crate) states: Cow<'a, [Vec<f32>]>,
}

impl Memory<'_> {
    /// Returns a copy that borrows nothing.
    pub(crate) fn into_owned(self) -> Memory<'static> {
        Memory {
            buffers: Cow::Owned(self.buffers.into_owned()),
            acts: Cow::Owned(self.acts.into_owned()),
            routings: Cow::Owned(self.routings.into_owned()),
            cache: Cow::Owned(self.cache.into_owned()),
            states: Cow::Owned(self.states.into_owned()),
        }
    }
}

/// Values in rows of `width`.
pub(crate) struct Part<'a> {
    pub(crate) values: Cow<'a, [f32]>,
    pub(crate) width: usize,
}
