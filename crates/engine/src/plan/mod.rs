//! What a model computes, as data: a list of operations over numbered buffers.
//!
//! A model's wiring records a [`Plan`] once (`model::decoder`); a backend compiles it and runs it for
//! every batch. Profiling, checking one backend against another and cost estimates are loops over the
//! same list, so there is no second description of a model anywhere.

mod build;
mod cost;
mod fuse;
mod op;
mod placement;
mod rope;
mod turns;

pub use build::PlanBuilder;
pub use cost::{BatchShape, OpCost, PlanCost, SeqShape};
pub(crate) use fuse::is_dead;
pub use fuse::{Passes, fuse, merge_passes};
pub use op::{
    ActsId, ActsInfo, BufferId, BufferInfo, KvSpec, Linear, Op, Plan, RopeId, RoutingId, RowCount,
    Scores, WeightId,
};
pub use placement::{Placement, PlanPart, Segment, Side, Split};
pub(crate) use placement::{is_of_experts, layer_starts};
pub use rope::{LongContext, RopeTable};
pub use turns::KeyTurn;
