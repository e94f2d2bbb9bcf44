//! Placement: which operations of a plan run on the CPU and which on the GPU.
//!
//! Consecutive operations on one side form a segment. Before a segment runs, the buffers that it reads and that the
//! other side wrote last are copied over. Converted activations, routings, the KV cache and states are never copied, so
//! their readers are on the same side as their writers.

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
    /// CPU: it reads a few rows of a large table.
    pub fn split(plan: &Plan, split: Split) -> Placement {
        let starts = layer_starts(plan);
        let n_cpu_layers = starts.len().saturating_sub(split.n_gpu_layers);
        let first = starts.get(n_cpu_layers).copied();
        let first = first.unwrap_or(plan.ops.len());
        let side = |(at, op): (usize, &Op)| match at < first {
            true => Side::Cpu,
            false if is_of_experts(plan, op) => split.experts,
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

    /// Returns the number of layers that begin on `side`.
    pub fn n_layers(&self, plan: &Plan, side: Side) -> usize {
        let layers = plan.layers.iter();
        layers.filter(|&&first| self.sides[first] == side).count()
    }

    /// Returns the part of `plan` that runs on `side`. `plan` is the one this placement was made for.
    pub fn part(&self, plan: &Plan, side: Side) -> PlanPart {
        let own = |(op, own): (&Op, &Side)| (*own == side).then(|| op.clone());
        let ops = plan.ops.iter().zip(&self.sides).filter_map(own).collect();
        let is_own = |at: &usize| self.sides[*at] == side;
        let layers = plan.layers.iter().filter(|first| is_own(first));
        let layers = layers.map(|first| (0..*first).filter(is_own).count());
        let mut part = Plan {
            ops,
            layers: layers.collect(),
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

/// Returns for each layer the index of the first operation of all that the layers from it on need: its own, or that of an
/// earlier layer whose cache one of them uses.
pub fn layer_starts(plan: &Plan) -> Vec<usize> {
    let n_layers = plan.layers.len();
    let layer_of = |at: usize| plan.layers.partition_point(|first| *first <= at);
    // The layer that writes each cache.
    let mut homes = vec![n_layers; plan.kv.len()];
    // The earliest layer whose cache each layer uses.
    let mut uses: Vec<usize> = (0..n_layers).collect();
    for (at, op) in plan.ops.iter().enumerate() {
        let (Some(cache), Some(layer)) = (op.kv_layer(), layer_of(at).checked_sub(1)) else {
            continue;
        };
        if let Op::KvAppend { .. } = op {
            homes[cache] = layer;
        }
        uses[layer] = uses[layer].min(homes[cache]);
    }
    for layer in (1..n_layers).rev() {
        uses[layer - 1] = uses[layer - 1].min(uses[layer]);
    }
    let mut starts: Vec<usize> = Vec::with_capacity(n_layers);
    for (layer, &used) in uses.iter().enumerate() {
        starts.push(match used < layer {
            true => starts[used],
            false => plan.layers[layer],
        });
    }
    starts
}
