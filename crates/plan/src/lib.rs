//! What a model computes, as data: a list of operations over numbered buffers, and the batches it runs on.
//!
//! The recorder of a model family writes a [`Plan`] once; a backend compiles it and runs it for every [`Batch`].
//! Profiling, checking one backend against another and cost estimates are loops over the same list. This crate
//! knows no device: kernels, models and backends share its vocabulary.
#![forbid(unsafe_code)]

mod acts;
mod batch;
mod breakers;
mod cost;
mod error;
mod fuse;
mod kv;
mod op;
mod params;
mod placement;
mod recorder;
mod roofline;
mod rope;
mod sampler_kind;
mod sampling;
mod turns;
mod weights;

pub use acts::{ActFormat, act_format};
pub use batch::{
    Batch, BatchSeq, DryHistory, InputToken, LogitsRow, RowOutput, SampleRow, Sampled, StepOutput,
    TokenLogprob, Want,
};
pub use breakers::Breakers;
pub use cost::{BatchShape, OpCost, PlanCost, SeqShape};
pub use error::ParameterError;
pub use fuse::{Fusion, fuse, fuse_passes, is_dead};
pub use kv::{KvShift, KvSpec, KvType, SlotRun};
pub use op::{
    ActsId, ActsInfo, BufferId, BufferInfo, Linear, Op, Plan, RopeId, RoutingId, RowCount, Scores,
    WeightId,
};
pub use params::{Activation, ExpertWeights, OutMode, RopeStyle, Router, RowsOf};
pub use placement::{Placement, PlanPart, Segment, Side, Split, is_of_experts, layer_starts};
pub use recorder::Recorder;
pub use roofline::Roofline;
pub use rope::{LongContext, RopeTable};
pub use sampler_kind::{SamplerKind, UnknownSampler};
pub use sampling::{Dry, DynamicTemperature, Mirostat, SamplingParams, Xtc};
pub use turns::KeyTurn;
pub use weights::{Weight, WeightEntry, Weights};
