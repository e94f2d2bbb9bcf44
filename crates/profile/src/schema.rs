//! What a profiled run found, as plain data: the form of `rocmforge profile --json`.
//!
//! Times are milliseconds unless the name says otherwise. What was not measured is `None`, never zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::Summary;

/// The version of this form.
pub const SCHEMA: u32 = 1;

/// A profiled run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// RFC 3339, UTC.
    pub created: String,
    /// As typed.
    pub command: String,
    pub machine: Machine,
    pub model: ModelFacts,
    pub workload: Workload,
    pub ceilings: Option<Ceilings>,
    pub ttft: Ttft,
    /// Prefill, then decode.
    pub phases: Vec<Phase>,
    pub launches: Option<Launches>,
    /// Milliseconds by backend, such as `cpu` and `cuda:0`.
    pub time_by_backend: BTreeMap<String, f64>,
    /// Executions by backend; empty in profiles of versions that did not count them.
    #[serde(default)]
    pub ops_by_backend: BTreeMap<String, u64>,
    /// Executions by type of operation, counted as [`crate::telemetry::BackendExecutionSummary`] does.
    pub ops_by_type: BTreeMap<String, u64>,
    pub slow_ops: Vec<SlowOp>,
    pub memory: Memory,
    pub utilization: Option<Utilization>,
    pub overhead: Overhead,
    /// The most gain first.
    pub advice: Vec<Advice>,
    /// Of one prompt and its first steps; ordered by start.
    pub timeline: Vec<Span>,
    /// What the reader should know of how it was measured.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Device in words.
    pub device: String,
    /// `cpu`, `cuda:0`, `hip:0`, `host:nv`.
    pub backend: String,
    pub cpu: String,
    pub isa: String,
    pub n_threads: usize,
    pub os: String,
    pub driver: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    pub name: String,
    pub arch: String,
    /// Mix of types, such as `Q4_K - Medium`.
    pub format: String,
    pub n_params: u64,
    pub weight_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub n_prompt: usize,
    pub n_gen: usize,
    pub n_seqs: usize,
    /// Runs with the observer, and without.
    pub n_profiled: usize,
    pub n_unprofiled: usize,
}

/// What the machine can do, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub read_bytes_per_s: f64,
    /// Of floats: multiply-adds of f32 on a CPU; on a GPU its matrix units with factors in f16 and sums in f32.
    pub f32_ops_per_s: Option<f64>,
    pub i8_ops_per_s: Option<f64>,
    /// What starting an operation costs, microseconds: handing work to the threads on a CPU, a launch among others on a GPU.
    pub start_us: Option<f64>,
}

/// Time to the first token, in its parts. Parts that overlap others say so in `notes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ttft {
    pub model_load: Option<f64>,
    pub tokenize: Option<f64>,
    pub embedding: Option<f64>,
    pub prefill: Option<f64>,
    pub first_token: Option<f64>,
    pub h2d: Option<f64>,
    pub d2h: Option<f64>,
    /// From the request to the token, by the wall clock, without loading.
    pub total: f64,
    pub target: f64,
    pub meets_target: bool,
    /// The part that takes longest.
    pub dominant: String,
    pub notes: Vec<String>,
}

/// Prefill or decode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// `prefill` or `decode`.
    pub name: String,
    pub n_tokens: usize,
    pub n_steps: usize,
    /// Wall clock of a run: with the observer and without.
    pub profiled: Summary,
    pub unprofiled: Summary,
    pub tokens_per_s: f64,
    /// Sum over operations in a profiled run, and what of its wall clock no operation accounts for.
    pub ops_ms: f64,
    pub between_ops_ms: f64,
    /// Least time by the roofline, of the whole phase.
    pub least_ms: Option<f64>,
    /// By share of time, the greatest first.
    pub ops: Vec<OpRow>,
    /// As `ops`, by kernel; empty on a CPU.
    pub kernels: Vec<OpRow>,
}

/// Operations of a kind, of one run of the phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpRow {
    /// Such as `matmul ffn_down Q6_K [4096, 14336]`, or the kernel's name.
    pub name: String,
    /// Type of operation, such as `matmul`.
    pub kind: String,
    pub calls: u64,
    pub total_ms: f64,
    /// Of a call, in microseconds.
    pub call_us: Summary,
    /// Share of the phase's `ops_ms`.
    pub share: f64,
    /// Bytes that must come from memory, and operations, of all calls.
    pub bytes: u64,
    pub f32_ops: u64,
    pub i8_ops: u64,
    /// Of the ceilings.
    pub bandwidth_share: Option<f64>,
    pub ops_share: Option<f64>,
    pub bound: Option<Bound>,
}

/// What an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Compute,
    /// Too small for the machine: it costs what starting it costs.
    Launch,
}

/// Kernel launches. `None` on a CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launches {
    pub per_token: f64,
    pub graphs: bool,
    /// Time of the host for one launch, microseconds.
    pub submit_us: Summary,
    /// What a step takes beyond its kernels, microseconds.
    pub overhead_us: f64,
    /// The first that applies, and its reason.
    pub recommendation: Recommendation,
    pub reason: String,
    /// All of them, those with the most to gain first.
    pub verdicts: Vec<Verdict>,
}

/// Whether a recommendation applies, and the numbers that say so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub recommendation: Recommendation,
    pub applies: bool,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recommendation {
    NoAction,
    DeferSynchronization,
    BatchOperations,
    UseHipGraph,
}

/// Operations without a fast kernel, by what keeps them from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowOp {
    pub reason: String,
    pub count: usize,
}

/// Bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub weights: u64,
    pub kv_pool: u64,
    pub kv_per_token: u64,
    pub scratch: Option<u64>,
    /// Of the process on a CPU, of our allocations on a device.
    pub peak: Option<u64>,
    /// Slots in pages that are taken but hold no token, over all slots that are taken.
    pub fragmentation: f64,
}

/// How busy the device was, sampled while it generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Utilization {
    /// Where it was read.
    pub source: String,
    pub busy_percent: Summary,
    pub memory_used_bytes: Option<u64>,
    /// Whether the mean is above 80 %.
    pub meets_target: bool,
}

/// Profiling against not profiling, milliseconds of a whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    pub profiled_ms: f64,
    pub unprofiled_ms: f64,
    /// Cost of one timed scope, nanoseconds, measured in the same run.
    pub scope_ns: f64,
}

/// What to fix next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub title: String,
    /// The measurements that say so.
    pub reason: String,
    /// Of the phase's time, if it ran at the bound that the advice names.
    pub gain: f64,
    pub phase: String,
}

/// A stretch of time on a lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub name: String,
    pub kind: String,
    pub lane: Lane,
    pub start_us: f64,
    pub duration_us: f64,
    /// Spans around it on the lane.
    pub depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    Cpu,
    Device,
}
