//! Groups equal operations of a run: their times next to the bytes they move and the arithmetic they do.
//!
//! Times come from the engine ([`StepTimes`]), bytes and arithmetic from the plan ([`PlanCost`]), ceilings from
//! measurements in the same run ([`Ceilings`]).

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use rocmforge_plan::Roofline;
use rocmforge_plan::{BatchShape, OpCost, PlanCost, names};
use rocmforge_runtime::times::{StepPart, StepTimes};

use crate::schema::{Bound, Ceilings, OpRow};
use crate::stats::Summary;

/// Arithmetic intensity (operations per byte) below which any device is memory-bound. Used where the peak arithmetic
/// rate was not measured. GPUs do at least 14 f32 operations per byte read.
const MEMORY_BOUND_BELOW: f64 = 8.0;

/// Groups of equal operations, in the order they were first seen.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    rows: Vec<Group>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Group {
    name: String,
    kind: String,
    total: Duration,
    calls_us: Vec<f64>,
    cost: Cost,
}

/// Bytes that must be read from memory, and arithmetic operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub bytes: u64,
    pub f32_ops: u64,
    pub i8_ops: u64,
}

impl From<OpCost> for Cost {
    fn from(cost: OpCost) -> Cost {
        Cost {
            bytes: cost.weight_bytes + cost.kv_bytes,
            f32_ops: cost.f32_ops,
            i8_ops: cost.i8_ops,
        }
    }
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.bytes += other.bytes;
        self.f32_ops += other.f32_ops;
        self.i8_ops += other.i8_ops;
    }

    /// Returns the seconds of memory traffic and of arithmetic at the ceilings; `None` for arithmetic if its peaks are
    /// unknown.
    fn seconds(&self, ceilings: &Ceilings) -> (f64, Option<f64>) {
        let memory = self.bytes as f64 / ceilings.read_bytes_per_s;
        let arithmetic = ceilings.f32_ops_per_s.zip(ceilings.i8_ops_per_s);
        let arithmetic =
            arithmetic.map(|(f32, i8)| self.f32_ops as f64 / f32 + self.i8_ops as f64 / i8);
        (memory, arithmetic)
    }

    /// Returns the roofline time in seconds, if it is known.
    pub fn least_seconds(&self, ceilings: &Ceilings) -> Option<f64> {
        match self.seconds(ceilings) {
            (memory, Some(arithmetic)) => Some(memory.max(arithmetic)),
            (memory, None) if self.waits_for_memory() => Some(memory),
            _ => None,
        }
    }

    /// Whether it is memory-bound on any device.
    fn waits_for_memory(&self) -> bool {
        let n_ops = (self.f32_ops + self.i8_ops) as f64;
        self.bytes > 0 && n_ops <= MEMORY_BOUND_BELOW * self.bytes as f64
    }
}

/// Returns what limits `calls` calls with this total cost; `None` if unknown.
pub fn bound(cost: &Cost, calls: u64, ceilings: &Ceilings) -> Option<Bound> {
    if *cost == Cost::default() || calls == 0 {
        return None;
    }
    let (memory, arithmetic) = cost.seconds(ceilings);
    let least = memory.max(arithmetic.unwrap_or(0.0));
    if let Some(start_us) = ceilings.start_us
        && (arithmetic.is_some() || cost.waits_for_memory())
        && least * 1e6 <= start_us * calls as f64
    {
        return Some(Bound::Launch);
    }
    match arithmetic {
        Some(arithmetic) if arithmetic > memory => Some(Bound::Compute),
        Some(_) => Some(Bound::Memory),
        None => cost.waits_for_memory().then_some(Bound::Memory),
    }
}

impl Groups {
    /// Adds one call.
    pub fn add(&mut self, kind: &str, name: &str, time: Duration, cost: Cost) {
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => {
                self.rows.push(Group {
                    name: name.to_string(),
                    kind: kind.to_string(),
                    total: Duration::ZERO,
                    calls_us: Vec::new(),
                    cost: Cost::default(),
                });
                self.by_name.insert(name.to_string(), self.rows.len() - 1);
                self.rows.len() - 1
            }
        };
        let group = &mut self.rows[index];
        group.total += time;
        group.calls_us.push(time.as_secs_f64() * 1e6);
        group.cost.add(cost);
    }

    /// Returns the total time of all calls.
    pub fn total(&self) -> Duration {
        self.rows.iter().map(|group| group.total).sum()
    }

    /// Returns the rows of one run, averaged over `n_runs` equal runs, sorted by share of time.
    pub fn rows(&self, n_runs: usize, ceilings: Option<&Ceilings>) -> Vec<OpRow> {
        let all = self.total().as_secs_f64();
        let n = n_runs.max(1) as u64;
        let mut rows: Vec<OpRow> = Vec::with_capacity(self.rows.len());
        for group in &self.rows {
            let Some(call_us) = Summary::of(&group.calls_us) else {
                continue;
            };
            let seconds = group.total.as_secs_f64();
            let shares = ceilings.map(|ceilings| group.cost.seconds(ceilings));
            let of_time = |least: f64| (seconds > 0.0).then(|| least / seconds);
            rows.push(OpRow {
                name: group.name.clone(),
                kind: group.kind.clone(),
                calls: group.calls_us.len() as u64 / n,
                total_ms: seconds * 1e3 / n as f64,
                call_us,
                share: if all > 0.0 { seconds / all } else { 0.0 },
                bytes: group.cost.bytes / n,
                f32_ops: group.cost.f32_ops / n,
                i8_ops: group.cost.i8_ops / n,
                bandwidth_share: shares.and_then(|(memory, _)| of_time(memory)),
                ops_share: shares.and_then(|(_, arithmetic)| of_time(arithmetic?)),
                bound: ceilings.and_then(|c| bound(&group.cost, group.calls_us.len() as u64, c)),
            });
        }
        rows.sort_by(|a, b| b.share.total_cmp(&a.share));
        rows
    }
}

/// The operations of a plan with their names and costs.
pub struct PlanOps<'a> {
    cost: PlanCost<'a>,
    names: Vec<String>,
}

impl<'a> PlanOps<'a> {
    /// `cost.plan` must be the plan as the backend runs it.
    pub fn new(cost: PlanCost<'a>) -> PlanOps<'a> {
        let ops = cost.plan.ops.iter();
        let names = ops
            .map(|op| names::of_op(cost.plan, cost.weights, op))
            .collect();
        PlanOps { cost, names }
    }

    /// Returns the type and the name of a part of a step.
    pub fn describe(&self, part: &StepPart) -> (&str, &str) {
        match part {
            StepPart::Begin => ("begin", "begin step"),
            StepPart::Choose => ("choose", "choose tokens"),
            StepPart::End => ("end", "end step"),
            StepPart::Copy => ("copy", "copy between devices"),
            StepPart::Ops(range) => {
                let ops = &self.cost.plan.ops[range.clone()];
                match names::of_merged(ops) {
                    Some(name) => (name, name),
                    None => (ops[0].name(), &self.names[range.start]),
                }
            }
        }
    }

    /// Whether a part works only on rows whose logits are needed.
    pub fn is_for_logits(&self, part: &StepPart) -> bool {
        match part {
            StepPart::Ops(ops) => self.cost.plan.is_for_logits(&self.cost.plan.ops[ops.start]),
            StepPart::Choose => true,
            StepPart::Begin | StepPart::End | StepPart::Copy => false,
        }
    }

    /// Whether a part is an embedding lookup of tokens or positions.
    pub fn is_embedding(&self, part: &StepPart) -> bool {
        match part {
            StepPart::Ops(ops) => self.cost.plan.ops[ops.start].table().is_some(),
            _ => false,
        }
    }

    /// Returns the cost of a part of a step.
    pub fn cost(&self, part: &StepPart, shape: &BatchShape) -> Cost {
        match part {
            StepPart::Ops(ops) => self.cost_of(ops, shape),
            _ => Cost::default(),
        }
    }

    fn cost_of(&self, ops: &Range<usize>, shape: &BatchShape) -> Cost {
        let ops = self.cost.plan.ops[ops.clone()].iter();
        let sum: OpCost = ops.map(|op| self.cost.op(op, shape)).sum();
        sum.into()
    }

    /// Returns the seconds of a step with every operation at the roofline. `None` if that depends on an unknown peak.
    pub fn least_seconds(&self, shape: &BatchShape, ceilings: &Ceilings) -> Option<f64> {
        let ops = self.cost.plan.ops.iter();
        let all: OpCost = ops.map(|op| self.cost.op(op, shape)).sum();
        let of_memory = || {
            let waits = Cost::from(all).waits_for_memory();
            waits.then_some(Roofline {
                read_bytes_per_s: ceilings.read_bytes_per_s,
                f32_ops_per_s: f64::INFINITY,
                i8_ops_per_s: f64::INFINITY,
            })
        };
        let roofline = ceilings.roofline().or_else(of_memory)?;
        Some(self.cost.step_seconds(shape, &roofline))
    }

    /// Adds the parts of a step to `ops` and its launches to `kernels`.
    pub fn add_step(&self, times: &StepTimes, ops: &mut Groups, kernels: &mut Groups) {
        for (index, part) in times.parts.iter().enumerate() {
            let (kind, name) = self.describe(&part.part);
            let cost = self.cost(&part.part, &times.shape);
            ops.add(kind, name, part.duration, cost);
            self.add_launches(times, index, cost, kernels);
        }
    }

    /// Attributes the cost of a part to the kernel that takes most of its time; its other kernels prepare inputs or
    /// combine results.
    fn add_launches(&self, times: &StepTimes, part: usize, cost: Cost, kernels: &mut Groups) {
        let own = || times.launches.iter().filter(|launch| launch.part == part);
        let total = |kernel| -> Duration {
            let alike = own().filter(|launch| launch.kernel == kernel);
            alike.map(|launch| launch.duration).sum()
        };
        let main = own().map(|launch| launch.kernel).max_by_key(|k| total(*k));
        let mut cost = Some(cost);
        for launch in own() {
            let (module, kernel) = launch.kernel;
            // All launches of this kernel together do the work of the part.
            let share = match Some(launch.kernel) == main {
                true => cost.take().unwrap_or_default(),
                false => Cost::default(),
            };
            let name = format!("{module}::{kernel}");
            kernels.add(module, &name, launch.duration, share);
        }
    }
}

#[cfg(test)]
mod tests;
