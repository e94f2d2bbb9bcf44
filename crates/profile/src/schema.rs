//! The result of a profiled run as plain data; the schema of `rocmforge profile --json`.
//!
//! Times are in milliseconds unless the name says otherwise. What was not measured is `None`, never zero.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::Summary;

/// The version of this schema.
pub const SCHEMA: u32 = 1;

/// A profiled run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub schema: u32,
    /// Version of rocmforge.
    pub version: String,
    /// Time of creation, RFC 3339 in UTC.
    pub created: String,
    /// The command line as typed.
    pub command: String,
    pub machine: Machine,
    pub model: ModelFacts,
    pub workload: Workload,
    pub ceilings: Option<Ceilings>,
    pub ttft: Ttft,
    /// Prefill and decode, in this order.
    pub phases: Vec<Phase>,
    pub launches: Option<Launches>,
    /// Milliseconds per backend, such as `cpu` and `cuda:0`.
    pub time_by_backend: BTreeMap<String, f64>,
    /// Executed operations per backend; empty in profiles of older versions.
    #[serde(default)]
    pub ops_by_backend: BTreeMap<String, u64>,
    /// Executed operations per type, counted as in [`crate::telemetry::BackendExecutionSummary`].
    pub ops_by_type: BTreeMap<String, u64>,
    pub slow_ops: Vec<SlowOp>,
    pub memory: Memory,
    pub utilization: Option<Utilization>,
    pub overhead: Overhead,
    /// Largest gain first.
    pub advice: Vec<Advice>,
    /// Spans of one prompt and its steps, sorted by start.
    pub timeline: Vec<Span>,
    /// Notes on how it was measured.
    pub notes: Vec<String>,
}

/// The machine of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the device.
    pub device: String,
    /// `cpu`, `cuda:0`, `hip:0`, `host:nv`.
    pub backend: String,
    pub cpu: String,
    pub isa: String,
    pub n_threads: usize,
    pub os: String,
    pub driver: Option<String>,
}

/// The model of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    pub name: String,
    pub arch: String,
    /// Quantization mix, such as `Q4_K - Medium`.
    pub format: String,
    pub n_params: u64,
    pub weight_bytes: u64,
}

/// Size and repetitions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub n_prompt: usize,
    pub n_gen: usize,
    pub n_seqs: usize,
    /// Number of runs with and without profiling.
    pub n_profiled: usize,
    pub n_unprofiled: usize,
}

/// Peak rates of the machine, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub read_bytes_per_s: f64,
    /// Floating-point operations per second: f32 multiply-adds on a CPU; on a GPU its matrix units with f16 inputs and
    /// f32 accumulators.
    pub f32_ops_per_s: Option<f64>,
    pub i8_ops_per_s: Option<f64>,
    /// Cost of starting an operation in microseconds: waking the thread pool on a CPU, one of many queued launches on a
    /// GPU.
    pub start_us: Option<f64>,
}

/// The components of the time to the first token. `notes` tells which of them overlap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ttft {
    pub model_load: Option<f64>,
    pub tokenize: Option<f64>,
    pub embedding: Option<f64>,
    pub prefill: Option<f64>,
    pub first_token: Option<f64>,
    pub h2d: Option<f64>,
    pub d2h: Option<f64>,
    /// Wall-clock time from the request to the token, without loading.
    pub total: f64,
    pub target: f64,
    pub meets_target: bool,
    /// The longest component, without loading.
    pub dominant: String,
    pub notes: Vec<String>,
}

/// Measurements of prefill or decode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// `prefill` or `decode`.
    pub name: String,
    pub n_tokens: usize,
    pub n_steps: usize,
    /// Wall-clock time of a run with and without profiling.
    pub profiled: Summary,
    pub unprofiled: Summary,
    pub tokens_per_s: f64,
    /// Total operation time of a profiled run, and the rest of its wall-clock time.
    pub ops_ms: f64,
    pub between_ops_ms: f64,
    /// Time of the whole phase at the roofline.
    pub least_ms: Option<f64>,
    /// Largest share of time first.
    pub ops: Vec<OpRow>,
    /// Like `ops`, per kernel; empty on a CPU.
    pub kernels: Vec<OpRow>,
}

impl Phase {
    /// Returns the roofline time divided by the mean time without profiling.
    pub fn roofline_share(&self) -> Option<f64> {
        let share = self.least_ms? / self.unprofiled.mean;
        share.is_finite().then_some(share)
    }
}

/// Equal operations of one run of the phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpRow {
    /// Name such as `matmul ffn_down Q6_K [4096, 14336]`, or the kernel's name.
    pub name: String,
    /// Operation type, such as `matmul`.
    pub kind: String,
    pub calls: u64,
    pub total_ms: f64,
    /// Time of a call in microseconds.
    pub call_us: Summary,
    /// Share of the phase's `ops_ms`.
    pub share: f64,
    /// Bytes read from memory and arithmetic operations, over all calls.
    pub bytes: u64,
    pub f32_ops: u64,
    pub i8_ops: u64,
    /// Shares of the ceilings that were reached.
    pub bandwidth_share: Option<f64>,
    pub ops_share: Option<f64>,
    pub bound: Option<Bound>,
}

/// A share of a peak above this is no rounding: the data came from a cache, or the peak was measured at a worse moment.
const ABOVE_PEAK: f64 = 1.005;

impl OpRow {
    /// Whether it reads faster than memory.
    pub fn is_above_bandwidth(&self) -> bool {
        self.bandwidth_share.is_some_and(is_above_peak)
    }

    /// Whether it computes faster than the measured peak.
    pub fn is_above_ops(&self) -> bool {
        self.ops_share.is_some_and(is_above_peak)
    }
}

/// Whether a share of a peak exceeds it.
pub fn is_above_peak(share: f64) -> bool {
    share > ABOVE_PEAK
}

/// What limits the speed of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Compute,
    /// Too small: it costs as much as starting it.
    Launch,
}

/// Costs of kernel launches; absent on a CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launches {
    pub per_token: f64,
    pub graphs: bool,
    /// Host time per launch in microseconds.
    pub submit_us: Summary,
    /// Time of a step beyond its kernels in microseconds.
    pub overhead_us: f64,
    /// The first verdict that applies, and its reason.
    pub recommendation: Recommendation,
    pub reason: String,
    /// All verdicts, largest gain first.
    pub verdicts: Vec<Verdict>,
}

/// Whether a recommendation applies, with the numbers that decide it.
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

/// Operations without a fast kernel, grouped by reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowOp {
    pub reason: String,
    pub count: usize,
}

/// Memory use in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub weights: u64,
    pub kv_pool: u64,
    pub kv_per_token: u64,
    pub scratch: Option<u64>,
    /// Peak of the process on a CPU, of rocmforge's allocations on a device.
    pub peak: Option<u64>,
    /// Share of slots in used KV-cache pages that hold no token.
    pub fragmentation: f64,
}

/// Device utilization, sampled during generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Utilization {
    /// Where the samples come from.
    pub source: String,
    pub busy_percent: Summary,
    pub memory_used_bytes: Option<u64>,
    /// Whether the mean is above 80 %.
    pub meets_target: bool,
    #[serde(default)]
    pub power_watts: Option<Summary>,
    /// Degrees Celsius.
    #[serde(default)]
    pub temperature: Option<Summary>,
    /// Of a GPU's compute units.
    #[serde(default)]
    pub clock_mhz: Option<Summary>,
    /// What held the clock down in any sample: `power`, `temperature`, `current`, `hardware`, `unknown`.
    #[serde(default)]
    pub throttled_by: Vec<String>,
    /// Energy of the GPU by the tokens of the sampled runs: of `profile` those that were generated, of `bench` those of the
    /// test.
    #[serde(default)]
    pub joules_per_token: Option<f64>,
}

impl Utilization {
    /// Adds the energy per token, if the power is known.
    pub fn per_token(mut self, n_tokens: usize, elapsed: Duration) -> Utilization {
        let joules = self
            .power_watts
            .map(|watts| watts.mean * elapsed.as_secs_f64());
        self.joules_per_token = joules
            .filter(|_| n_tokens > 0)
            .map(|joules| joules / n_tokens as f64);
        self
    }

    /// Formats what is known of `301 W, 62 °C, 2300 MHz, 1.52 J per token, clock held down by power`.
    pub fn condition(&self) -> Option<String> {
        let mean = |summary: &Option<Summary>, unit| {
            summary.map(|summary| format!("{:.0} {unit}", summary.mean))
        };
        let throttled = self.throttled_by.join(" and ");
        let parts = [
            mean(&self.power_watts, "W"),
            mean(&self.temperature, "°C"),
            mean(&self.clock_mhz, "MHz"),
            self.joules_per_token
                .map(|joules| format!("{joules:.3} J per token")),
            (!throttled.is_empty()).then(|| format!("clock held down by {throttled}")),
        ];
        let known: Vec<String> = parts.into_iter().flatten().collect();
        (!known.is_empty()).then(|| known.join(", "))
    }
}

/// The cost of profiling: milliseconds of a whole run with and without it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    pub profiled_ms: f64,
    pub unprofiled_ms: f64,
    /// Cost of one timed scope in nanoseconds, measured in the same run.
    pub scope_ns: f64,
}

/// A suggestion what to speed up next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub title: String,
    /// The measurements behind it.
    pub reason: String,
    /// Saving as a share of the phase's time, if the bound is reached.
    pub gain: f64,
    /// Smallest and largest gain of the single runs, with the peaks measured before and after them. `None` if there is
    /// only one measurement.
    #[serde(default)]
    pub gain_range: Option<[f64; 2]>,
    /// `prefill`, `decode`, or `start` for loading and the first token together.
    pub phase: String,
}

impl Advice {
    /// Formats the gain: `33 % of decode, 20 to 50 % in single runs`.
    pub fn gain_text(&self) -> String {
        let percent = |share: f64| format!("{:.0}", 100.0 * share);
        let of = match self.phase.as_str() {
            "start" => "loading and first token",
            phase => phase,
        };
        let mut text = format!("{} % of {of}", percent(self.gain));
        if let Some([low, high]) = self.gain_range {
            text += &format!(", {} to {} % in single runs", percent(low), percent(high));
        }
        text
    }
}

/// A span of time on a lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub name: String,
    pub kind: String,
    pub lane: Lane,
    pub start_us: f64,
    pub duration_us: f64,
    /// Number of enclosing spans on the lane.
    pub depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    Cpu,
    Device,
}
