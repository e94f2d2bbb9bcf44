//! A model's computation as data: a list of operations over numbered buffers, and the batches it runs on.
//!
//! Invariant: this crate is only vocabulary. It knows no device and runs no kernel; kernels, models and backends all
//! speak in its types. A model records its [`Plan`] once, and everything else (execution, fusion, placement, cost
//! estimates, checks of one backend against another) is a loop over that list.
#![forbid(unsafe_code)]

mod acts;
mod batch;
mod breakers;
mod constraint;
mod cost;
mod error;
mod fuse;
mod kv;
mod liveness;
pub mod names;
mod op;
mod op_ids;
mod params;
mod placement;
mod recorder;
mod roofline;
mod rope;
mod sampler_kind;
mod sampling;
mod shared_expert;
mod state;
mod turns;
mod weights;

pub use acts::{ActFormat, act_format};
pub use batch::{
    Batch, BatchSeq, DryHistory, InputToken, KeptState, LogitsRow, RowOutput, SampleRow, Sampled,
    SeqState, StateStart, StepOutput, StepRows, TokenLogprob, Want,
};
pub use breakers::Breakers;
pub use constraint::{Constraint, ConstraintError, Progress, TokenMask};
pub use cost::{BatchShape, OpCost, PlanCost, SeqShape};
pub use error::ParameterError;
pub use fuse::{Fusion, fuse_adds, fuse_ops, is_dead};
pub use kv::{KvShift, KvSpec, KvType, KvTypes, Mask, SlotRun, Values};
pub use op::{
    ActsId, ActsInfo, Alibi, BufferId, BufferInfo, Growth, Linear, MixWeights, Op, Plan, RopeId,
    RoutingId, RowCount, Scores, WeightId,
};
pub use params::{
    Activation, ExpertGroups, ExpertScores, ExpertStack, ExpertVectors, ExpertWeights, Factor,
    OutMode, RopeStyle, Router, RowsOf, SharedWeight, Weighed,
};
pub use placement::{Placement, PlanPart, Segment, Side, Split, is_of_experts, layer_starts};
pub use recorder::{ExpertProjection, Mixing, Projection, Recorder, Routing, Value};
pub use roofline::Roofline;
pub use rope::{LongContext, RopeTable};
pub use sampler_kind::{SamplerKind, UnknownSampler};
pub use sampling::{Dry, DynamicTemperature, Mirostat, SamplingParams, Xtc};
pub use shared_expert::join_shared_experts;
pub use state::{ConvForm, Decay, KeySharing, LinearHeads, LinearInputs, StateRule, StateSpec};
pub use turns::{Fixed, KeyTurn};
pub use weights::{Weight, WeightEntry, Weights};
