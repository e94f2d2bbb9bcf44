//! Running a plan one pass at a time, for checks: every value can be read and replaced between passes.

use std::borrow::Cow;

use rocmforge_cpu::Routing;
use rocmforge_plan::{Batch, BufferId, KvShift, Side};

use crate::cpu::{ActsBuffer, LayerCache};
use crate::error::RuntimeError;

/// A backend that runs one operation at a time and whose memory can be read.
pub trait Stepwise {
    /// What runs together with operation `index` of the plan.
    fn pass(&self, _index: usize) -> Pass {
        Pass {
            side: Side::Cpu,
            n_ops: 1,
            undefined: Vec::new(),
        }
    }

    /// Runs the pass that begins with operation `index` of the plan for `batch`.
    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError>;

    /// Moves tokens in the cache.
    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError>;

    /// All that operations of `batch` read and write; a device copies it to the host.
    fn memory(&self, batch: &Batch) -> Result<Memory<'_>, RuntimeError>;
}

/// Operations that a backend runs at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Where they run.
    pub side: Side,
    pub n_ops: usize,
    /// Buffers that the plan's operations write, and this pass need not: nothing reads them afterwards.
    pub undefined: Vec<BufferId>,
}

/// What a plan's operations work on.
pub struct Memory<'a> {
    /// By [`BufferId`], each `[rows, width]`.
    pub(crate) buffers: Cow<'a, [Vec<f32>]>,
    pub(crate) acts: Cow<'a, [ActsBuffer]>,
    pub(crate) routings: Cow<'a, [Routing]>,
    pub(crate) cache: Cow<'a, [LayerCache]>,
}

/// Values in rows of `width`.
pub(crate) struct Part<'a> {
    pub(crate) values: Cow<'a, [f32]>,
    pub(crate) width: usize,
}
