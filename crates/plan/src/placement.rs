//! Placement: which operations of a plan run on the CPU and which on the GPU.
//!
//! Consecutive operations on one side form a segment. Before a segment runs, the buffers that it reads and that the
//! other side wrote last are copied over. Converted activations, routings and the KV cache are never copied, so their
//! readers are on the same side as their writers.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::op::{BufferId, Op, Plan, RowCount};

/// The device that an operation runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Cpu,
    Gpu,
}

/// The side of each operation of a plan, and the segments that follow from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    sides: Vec<Side>,
    segments: Vec<Segment>,
    /// Operations whose output is copied to the other side.
    exporters: BTreeSet<usize>,
    output: Side,
}

/// Consecutive operations on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub side: Side,
    /// Indices of the operations in the plan.
    pub ops: Range<usize>,
    /// Indices of the operations among those of their side.
    pub own_ops: Range<usize>,
    /// Buffers to copy from the other side before the first operation.
    pub imports: Vec<BufferId>,
}

/// The part of a plan that one side runs.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanPart {
    /// The side's operations. Ids and layers are those of the whole plan; unused buffers and layers take no memory.
    pub plan: Plan,
    /// Operations of each segment, in order.
    pub segments: Vec<Range<usize>>,
    /// Buffers that are copied from the other side.
    pub imports: Vec<BufferId>,
    pub exports: Vec<BufferId>,
    /// The side's operations, by index, that write what is copied to the other side.
    pub exporters: BTreeSet<usize>,
    /// Whether this side computes the logits.
    pub has_output: bool,
}

/// How layers are divided between CPU and GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Number of layers on the GPU: the last ones, with the output. With 0, nothing runs on the GPU.
    pub n_gpu_layers: usize,
    /// Side of the experts of the GPU's layers.
    pub experts: Side,
}

impl From<Plan> for PlanPart {
    /// The whole plan as one part.
    fn from(plan: Plan) -> PlanPart {
        let all = 0..plan.ops.len();
        PlanPart {
            plan,
            segments: vec![all],
            imports: Vec::new(),
            exports: Vec::new(),
            exporters: BTreeSet::new(),
            has_output: true,
        }
    }
}

impl Placement {
    /// Places each operation of `plan` on the side given for it.
    ///
    /// # Panics
    /// If `sides` does not have one entry per operation, or an operation reads converted activations, a routing or a
    /// cache layer that the other side writes.
    pub fn new(plan: &Plan, sides: Vec<Side>) -> Placement {
        assert_eq!(sides.len(), plan.ops.len(), "each operation has a side");
        let mut buffers: Vec<Option<Home>> = vec![None; plan.buffers.len()];
        let mut acts: Vec<Option<Side>> = vec![None; plan.acts.len()];
        let mut routings: Vec<Option<Side>> = vec![None; plan.n_routings];
        let mut layers: Vec<Option<Side>> = vec![None; plan.kv.len()];
        let mut states: Vec<Option<Side>> = vec![None; plan.states.len()];
        let mut n_own = [0, 0];
        let mut segments: Vec<Segment> = Vec::new();
        let mut exporters = BTreeSet::new();
        for (at, (op, &side)) in plan.ops.iter().zip(&sides).enumerate() {
            let own = &mut n_own[side as usize];
            if segments.last().is_none_or(|last| last.side != side) {
                segments.push(Segment {
                    side,
                    ops: at..at,
                    own_ops: *own..*own,
                    imports: Vec::new(),
                });
            }
            let segment = segments.last_mut().expect("one was pushed");
            *own += 1;
            segment.ops.end = at + 1;
            segment.own_ops.end = *own;
            for read in op.reads() {
                let home = &mut buffers[read.0 as usize];
                if let Some(home) = home
                    && home.side != side
                    && !std::mem::replace(&mut home.crossed, true)
                {
                    segment.imports.push(read);
                    exporters.insert(home.writer);
                }
            }
            let stays = |home: Option<Side>| home.is_none_or(|home| home == side);
            let acts_stay = op.acts_read().is_none_or(|id| stays(acts[id.0 as usize]));
            assert!(acts_stay, "operation {at} reads activations of its side");
            if let Some(id) = op.acts_written() {
                acts[id.0 as usize] = Some(side);
            }
            if let Some(id) = op.routing() {
                let home = &mut routings[id.0 as usize];
                let is_new = matches!(op, Op::Route { .. });
                assert!(is_new || stays(*home), "operation {at} has its routing");
                *home = Some(side);
            }
            if let Some(layer) = op.kv_layer() {
                assert!(stays(layers[layer]), "operation {at} has its cache");
                layers[layer] = Some(side);
            }
            if let Some(state) = op.state() {
                assert!(stays(states[state]), "operation {at} has its state");
                states[state] = Some(side);
            }
            for written in op.writes() {
                buffers[written.0 as usize] = Some(Home {
                    side,
                    writer: at,
                    crossed: false,
                });
            }
        }
        let output = buffers[plan.logits.0 as usize].map_or(Side::Cpu, |home| home.side);
        Placement {
            sides,
            segments,
            exporters,
            output,
        }
    }

    /// Places the layers of `plan` as `split` says. What precedes the first layer, the embedding lookup, stays on the
    /// CPU: it reads a few rows of a large table. So does what keeps states, for which there are no kernels on a GPU.
    pub fn split(plan: &Plan, split: Split) -> Placement {
        let first = match split.n_gpu_layers {
            0 => plan.ops.len(),
            n => first_of_layers(plan, n),
        };
        let side = |(at, op): (usize, &Op)| match at < first {
            true => Side::Cpu,
            false if is_of_experts(plan, op) => split.experts,
            false if op.state().is_some() => Side::Cpu,
            false => Side::Gpu,
        };
        Placement::new(plan, plan.ops.iter().enumerate().map(side).collect())
    }

    /// The side of each operation.
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// The segments in execution order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The side that computes the logits, and so samples tokens.
    pub fn output(&self) -> Side {
        self.output
    }

    /// Returns the number of layers whose cache is on `side`.
    pub fn n_layers(&self, plan: &Plan, side: Side) -> usize {
        let ops = plan.ops.iter().zip(&self.sides);
        let own = ops.filter(|(op, own)| **own == side && matches!(op, Op::Attention { .. }));
        own.count()
    }

    /// Returns the part of `plan` that runs on `side`. `plan` is the one this placement was made for.
    pub fn part(&self, plan: &Plan, side: Side) -> PlanPart {
        let own = |(op, own): (&Op, &Side)| (*own == side).then(|| op.clone());
        let ops = plan.ops.iter().zip(&self.sides).filter_map(own).collect();
        let mut part = Plan {
            ops,
            ..plan.clone()
        };
        part.forget_unused();
        let crossing = |to: Side| {
            let segments = self.segments.iter().filter(|segment| segment.side == to);
            let ids: BTreeSet<BufferId> = segments.flat_map(|s| s.imports.clone()).collect();
            ids.into_iter().collect()
        };
        let own_ops = (0..self.sides.len()).filter(|&op| self.sides[op] == side);
        let exporters = own_ops
            .enumerate()
            .filter(|(_, op)| self.exporters.contains(op));
        let segments = self.segments.iter().filter(|segment| segment.side == side);
        let other = match side {
            Side::Cpu => Side::Gpu,
            Side::Gpu => Side::Cpu,
        };
        PlanPart {
            plan: part,
            segments: segments.map(|segment| segment.own_ops.clone()).collect(),
            imports: crossing(side),
            exports: crossing(other),
            exporters: exporters.map(|(own, _)| own).collect(),
            has_output: self.output == side,
        }
    }
}

/// Which side wrote a buffer last, by which operation, and whether the other side has a copy.
#[derive(Clone, Copy)]
struct Home {
    side: Side,
    writer: usize,
    crossed: bool,
}

/// Returns whether `op` works on rows of chosen experts.
pub fn is_of_experts(plan: &Plan, op: &Op) -> bool {
    let of_choices = |id: &BufferId| {
        let rows = plan.buffers[id.0 as usize].rows;
        matches!(rows, RowCount::Choices { .. })
    };
    op.routing().is_some() || op.reads().iter().chain(&op.writes()).any(of_choices)
}

/// Returns the index of the first operation of the last `n` layers with a cache, and of the layers whose caches they use.
fn first_of_layers(plan: &Plan, n: usize) -> usize {
    let starts = layer_starts(plan);
    let mut first = starts[plan.kv.len().saturating_sub(n)];
    loop {
        let used = plan.ops[first..].iter().filter_map(Op::kv_layer);
        match used.map(|layer| starts[layer]).min() {
            Some(earlier) if earlier < first => first = earlier,
            _ => return first,
        }
    }
}

/// Returns the buffers of which layers read parts, and that are written before the first layer only.
fn inputs_of_layers(plan: &Plan) -> BTreeSet<BufferId> {
    let is_append = |op: &Op| matches!(op, Op::KvAppend { .. });
    let first = plan.ops.iter().position(is_append).unwrap_or(0);
    let later = &plan.ops[first..];
    let parts = later.iter().filter_map(|op| match op {
        Op::CopyPart { x, .. } => Some(*x),
        _ => None,
    });
    let is_written = |id: &BufferId| later.iter().any(|op| op.writes().contains(id));
    parts.filter(|id| !is_written(id)).collect()
}

/// Returns the index of each layer's first operation: the last index, before the layer's cache is written, from which
/// on only one earlier buffer (the residual stream) is used.
pub fn layer_starts(plan: &Plan) -> Vec<usize> {
    let mut starts = vec![0; plan.kv.len()];
    let of_all = inputs_of_layers(plan);
    // Layers whose append has been passed (going backwards) and whose start has not been found.
    let mut open = Vec::new();
    let mut buffers = BTreeSet::from([plan.logits]);
    let mut acts = BTreeSet::new();
    let mut routings = BTreeSet::new();
    for (at, op) in plan.ops.iter().enumerate().rev() {
        for written in op.writes() {
            buffers.remove(&written);
        }
        if let Some(written) = op.acts_written() {
            acts.remove(&written);
        }
        buffers.extend(op.reads().into_iter().filter(|id| !of_all.contains(id)));
        acts.extend(op.acts_read());
        routings.extend(op.routing());
        if let Op::Route { out, .. } = op {
            routings.remove(out);
        }
        if let Op::KvAppend { layer, .. } = op {
            open.push(*layer);
        }
        if buffers.len() == 1 && acts.is_empty() && routings.is_empty() {
            for layer in open.drain(..) {
                starts[layer] = at;
            }
            // Layers without a cache belong to the one before them, and those before the first one to the first.
            if let Some(first) = starts.first_mut().filter(|_| !plan.states.is_empty()) {
                *first = at.max(1);
            }
        }
    }
    starts
}
