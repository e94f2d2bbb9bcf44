//! Ranges that name the operations of steps for a profiler ([`Gpu::range`]).

use std::collections::HashMap;
use std::ffi::CString;
use std::ops::Range;

use rocmforge_gpu::{Gpu, NamedRange};
use rocmforge_plan::{Plan, Weights, names};

use super::compile::{Segment, Stage};

/// The names of all stages, as reports have them, by the first and the last of their operations. Empty without a
/// profiler.
#[derive(Default)]
pub(crate) struct OpRanges(HashMap<Range<usize>, CString>);

impl OpRanges {
    pub(crate) fn new(gpu: &Gpu, plan: &Plan, weights: &Weights, segments: &[Segment]) -> OpRanges {
        if gpu.has_ranges() != Ok(true) {
            return OpRanges::default();
        }
        let stages = segments
            .iter()
            .flat_map(|segment| segment.stages.iter().chain(&segment.stages_to_heads));
        let names = stages.map(Stage::ops).map(|range| {
            let ops = &plan.ops[range.clone()];
            let name = match names::of_merged(ops) {
                Some(name) => name.to_string(),
                None => names::of_op(plan, weights, &ops[0]),
            };
            // Names of tensors are those that the model's family reads, without zeros.
            (range, CString::new(name).unwrap_or_default())
        });
        OpRanges(names.collect())
    }

    /// Begins the range of a stage.
    pub(crate) fn begin<'g>(&self, gpu: &'g Gpu, stage: &Stage) -> Option<NamedRange<'g>> {
        gpu.range(self.0.get(&stage.ops())?)
    }

    /// Begins the range of a step.
    pub(crate) fn begin_step<'g>(&self, gpu: &'g Gpu, n_rows: usize) -> Option<NamedRange<'g>> {
        if self.0.is_empty() {
            return None;
        }
        gpu.range(&CString::new(format!("step of {n_rows} rows")).unwrap_or_default())
    }
}
