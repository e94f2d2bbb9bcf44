//! Summarises prefill and decode over several runs: operations by type, next to the wall-clock time.

use rocmforge_runtime::times::StepTimes;

use crate::ops::{Groups, PlanOps};
use crate::schema::{Ceilings, Phase};
use crate::stats::Summary;

/// The steps of a phase over all profiled runs.
#[derive(Debug, Clone, Default)]
pub struct PhaseTimes {
    ops: Groups,
    kernels: Groups,
    n_steps: usize,
    /// Sum over all steps; `None` if it is unknown for any of them.
    least_seconds: Option<f64>,
}

/// Wall-clock time of a phase in each run, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Walls {
    pub profiled: Vec<f64>,
    pub unprofiled: Vec<f64>,
}

impl PhaseTimes {
    /// Adds a step of a profiled run.
    pub fn add_step(&mut self, ops: &PlanOps<'_>, times: &StepTimes, ceilings: Option<&Ceilings>) {
        ops.add_step(times, &mut self.ops, &mut self.kernels);
        let least = ceilings.and_then(|ceilings| ops.least_seconds(&times.shape, ceilings));
        self.least_seconds = match (self.n_steps, self.least_seconds) {
            (0, _) => least,
            (_, sum) => sum.zip(least).map(|(sum, least)| sum + least),
        };
        self.n_steps += 1;
    }

    /// Returns the averages of one run that processed `n_tokens` tokens, or `None` unless there are runs of both kinds.
    pub fn phase(
        &self,
        name: &str,
        n_tokens: usize,
        walls: &Walls,
        ceilings: Option<&Ceilings>,
    ) -> Option<Phase> {
        let profiled = Summary::of(&walls.profiled)?;
        let unprofiled = Summary::of(&walls.unprofiled)?;
        let n_runs = walls.profiled.len();
        let ops_ms = self.ops.total().as_secs_f64() * 1e3 / n_runs as f64;
        Some(Phase {
            name: name.to_string(),
            n_tokens,
            n_steps: self.n_steps / n_runs,
            tokens_per_s: n_tokens as f64 * 1e3 / unprofiled.mean,
            ops_ms,
            between_ops_ms: profiled.mean - ops_ms,
            least_ms: self
                .least_seconds
                .map(|seconds| seconds * 1e3 / n_runs as f64),
            ops: self.ops.rows(n_runs, ceilings),
            kernels: self.kernels.rows(n_runs, ceilings),
            profiled,
            unprofiled,
        })
    }
}
