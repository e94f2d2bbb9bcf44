//! Which device runs each operation of a plan, where two share it: the CPU and a GPU.
//!
//! Operations that follow each other on one side are a segment. Before a segment begins, the buffers that it reads and
//! that the other side has written last come over. Converted activations, routings and the cache never cross, so what
//! reads them is on the side of what writes them.

use std::collections::BTreeSet;
use std::ops::Range;

use super::op::{ActsId, BufferId, Op, Plan, RowCount};

/// Where an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Cpu,
    Gpu,
}

/// Where each operation of a plan runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    sides: Vec<Side>,
    segments: Vec<Segment>,
    output: Side,
}

/// Operations that follow each other on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub side: Side,
    /// Their places in the plan.
    pub ops: Range<usize>,
    /// Their places among the operations of their side.
    pub own_ops: Range<usize>,
    /// What comes over from the other side before the first of them.
    pub imports: Vec<BufferId>,
}

/// What one side runs of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanPart {
    /// Its operations. Ids and layers are those of the whole plan; what these operations do not touch takes no memory.
    pub plan: Plan,
    /// The operations of each segment, in order.
    pub segments: Vec<Range<usize>>,
    /// Buffers that come from the other side, and that go there.
    pub imports: Vec<BufferId>,
    pub exports: Vec<BufferId>,
    /// Whether it makes the logits.
    pub has_output: bool,
}

/// How layers are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// The last so many layers and the output are the GPU's; with 0 nothing is.
    pub n_gpu_layers: usize,
    /// Where the experts of the GPU's layers are.
    pub experts: Side,
}

impl From<Plan> for PlanPart {
    /// All of it.
    fn from(plan: Plan) -> PlanPart {
        let all = 0..plan.ops.len();
        PlanPart {
            plan,
            segments: vec![all],
            imports: Vec::new(),
            exports: Vec::new(),
            has_output: true,
        }
    }
}

impl Placement {
    /// The operations of `plan` on these sides.
    ///
    /// # Panics
    /// If there is not a side for each operation, or one reads converted activations, a routing or a layer of the cache
    /// that the other side writes.
    pub fn new(plan: &Plan, sides: Vec<Side>) -> Placement {
        assert_eq!(sides.len(), plan.ops.len(), "each operation has a side");
        let mut buffers: Vec<Option<Home>> = vec![None; plan.buffers.len()];
        let mut acts: Vec<Option<Side>> = vec![None; plan.acts.len()];
        let mut routings: Vec<Option<Side>> = vec![None; plan.n_routings];
        let mut layers: Vec<Option<Side>> = vec![None; plan.kv.len()];
        let mut n_own = [0, 0];
        let mut segments: Vec<Segment> = Vec::new();
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
            for written in op.writes() {
                buffers[written.0 as usize] = Some(Home {
                    side,
                    crossed: false,
                });
            }
        }
        let output = buffers[plan.logits.0 as usize].map_or(Side::Cpu, |home| home.side);
        Placement {
            sides,
            segments,
            output,
        }
    }

    /// The layers of `plan` divided as `split` says. What comes before the first layer, the lookup of embeddings, is the
    /// CPU's: it reads a few rows of a large table.
    pub fn split(plan: &Plan, split: Split) -> Placement {
        let first = match split.n_gpu_layers {
            0 => plan.ops.len(),
            n => layer_starts(plan)[plan.kv.len().saturating_sub(n)],
        };
        let side = |(at, op): (usize, &Op)| match at < first {
            true => Side::Cpu,
            false if is_of_experts(plan, op) => split.experts,
            false => Side::Gpu,
        };
        Placement::new(plan, plan.ops.iter().enumerate().map(side).collect())
    }

    /// Of each operation.
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// In the order in which they run.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Which side has the logits, and so chooses tokens.
    pub fn output(&self) -> Side {
        self.output
    }

    /// How many of the plan's layers have their cache on `side`.
    pub fn n_layers(&self, plan: &Plan, side: Side) -> usize {
        let ops = plan.ops.iter().zip(&self.sides);
        let own = ops.filter(|(op, own)| **own == side && matches!(op, Op::Attention { .. }));
        own.count()
    }

    /// What `side` runs of `plan`, which this is the placement of.
    pub fn part(&self, plan: &Plan, side: Side) -> PlanPart {
        let own = |(op, own): (&Op, &Side)| (*own == side).then(|| op.clone());
        let ops = plan.ops.iter().zip(&self.sides).filter_map(own).collect();
        let mut part = Plan {
            ops,
            ..plan.clone()
        };
        forget_the_rest(&mut part);
        let crossing = |to: Side| {
            let segments = self.segments.iter().filter(|segment| segment.side == to);
            let ids: BTreeSet<BufferId> = segments.flat_map(|s| s.imports.clone()).collect();
            ids.into_iter().collect()
        };
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
            has_output: self.output == side,
        }
    }
}

/// Who has written a buffer last, and whether the other side has it, too.
#[derive(Clone, Copy)]
struct Home {
    side: Side,
    crossed: bool,
}

/// Whether `op` works with the experts that tokens are sent to.
pub fn is_of_experts(plan: &Plan, op: &Op) -> bool {
    let of_choices = |id: &BufferId| {
        let rows = plan.buffers[id.0 as usize].rows;
        matches!(rows, RowCount::Choices { .. })
    };
    op.routing().is_some() || op.reads().iter().chain(&op.writes()).any(of_choices)
}

/// The operation that each layer begins with: the last place before its cache is written at which nothing but one buffer,
/// the residual stream, is used afterwards.
pub fn layer_starts(plan: &Plan) -> Vec<usize> {
    let mut starts = vec![0; plan.kv.len()];
    // Layers whose append is behind this place, and whose start is not found yet.
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
        buffers.extend(op.reads());
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
        }
    }
    starts
}

/// Takes the memory from what no operation of `plan` touches.
fn forget_the_rest(plan: &mut Plan) {
    let Plan {
        ops,
        buffers,
        acts,
        kv,
        ..
    } = plan;
    let touched: BTreeSet<BufferId> = ops
        .iter()
        .flat_map(|op| [op.reads(), op.writes()].concat())
        .collect();
    for (id, buffer) in (0..).zip(buffers) {
        if !touched.contains(&BufferId(id)) {
            buffer.width = 0;
        }
    }
    let written: BTreeSet<ActsId> = ops.iter().filter_map(Op::acts_written).collect();
    for (id, acts) in (0..).zip(acts) {
        if !written.contains(&ActsId(id)) {
            acts.width = 0;
        }
    }
    let cached: BTreeSet<usize> = ops.iter().filter_map(Op::kv_layer).collect();
    for (layer, kv) in kv.iter_mut().enumerate() {
        if !cached.contains(&layer) {
            kv.n_kv_heads = 0;
        }
    }
}
