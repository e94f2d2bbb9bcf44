//! Collects spans of time on two lanes. The CPU lane has the program's scopes, steps, launches and the operations the
//! CPU computes; the device lane has the GPU's operations and kernels.

use std::time::{Duration, Instant};

use rocmforge_plan::Side;
use rocmforge_runtime::times::StepTimes;

use crate::ops::PlanOps;
use crate::schema::{Lane, Span};
use crate::timer::Scope;

/// Collects spans.
#[derive(Debug, Clone)]
pub struct Timeline {
    origin: Instant,
    spans: Vec<Span>,
}

impl Timeline {
    /// Creates an empty timeline whose times count from `origin`.
    pub fn new(origin: Instant) -> Timeline {
        Timeline {
            origin,
            spans: Vec::new(),
        }
    }

    /// Adds the scopes of a collector with the same origin.
    pub fn add_scopes(&mut self, scopes: &[Scope]) {
        self.spans.extend(scopes.iter().map(Scope::span));
    }

    /// Adds a step unless it would take the timeline beyond `max` spans. Returns whether it did.
    pub fn add_step_within(&mut self, ops: &PlanOps<'_>, times: &StepTimes, max: usize) -> bool {
        let n = 1 + times.parts.len() + 2 * times.launches.len();
        let fits = self.spans.len().saturating_add(n) <= max;
        if fits {
            self.add_step(ops, times);
        }
        fits
    }

    pub fn add_step(&mut self, ops: &PlanOps<'_>, times: &StepTimes) {
        let begin = times.started.saturating_duration_since(self.origin);
        let n_tokens = times.shape.n_tokens();
        let name = match n_tokens {
            1 => "step of 1 token".to_string(),
            n => format!("step of {n} tokens"),
        };
        // The step lasts on the CPU lane until the last CPU operation or launch ends.
        let own = times.parts.iter().filter(|part| part.side == Side::Cpu);
        let ends = own.map(|part| part.start + part.duration);
        let launched = times.launches.iter().map(|l| l.queued + l.submit);
        let last = ends.chain(launched).max();
        self.push(Lane::Cpu, ("step", &name), begin, last.unwrap_or_default());
        for part in &times.parts {
            let lane = match part.side {
                Side::Cpu => Lane::Cpu,
                Side::Gpu => Lane::Device,
            };
            let described = ops.describe(&part.part);
            self.push(lane, described, begin + part.start, part.duration);
        }
        for launch in &times.launches {
            let kernel = launch.kernel.1;
            self.push(
                Lane::Cpu,
                ("launch", kernel),
                begin + launch.queued,
                launch.submit,
            );
            self.push(
                Lane::Device,
                ("kernel", kernel),
                begin + launch.start,
                launch.duration,
            );
        }
    }

    fn push(&mut self, lane: Lane, (kind, name): (&str, &str), start: Duration, time: Duration) {
        self.spans.push(Span {
            name: name.to_string(),
            kind: kind.to_string(),
            lane,
            start_us: start.as_secs_f64() * 1e6,
            duration_us: time.as_secs_f64() * 1e6,
            depth: 0,
        });
    }

    /// Returns the spans sorted by start, each with its nesting depth on its lane.
    pub fn finish(self) -> Vec<Span> {
        let mut spans = self.spans;
        // Of spans that start together the longer one is outside; a part with one launch is outside its kernel.
        spans.sort_by(|a, b| {
            let starts = a.start_us.total_cmp(&b.start_us);
            let longer = b.duration_us.total_cmp(&a.duration_us);
            starts
                .then(longer)
                .then((a.kind == "kernel").cmp(&(b.kind == "kernel")))
        });
        let mut open: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for span in &mut spans {
            let around = &mut open[span.lane as usize];
            let end = span.start_us + span.duration_us;
            // End times carry rounding errors.
            while around
                .last()
                .is_some_and(|last| *last <= span.start_us + 1e-3)
            {
                around.pop();
            }
            span.depth = around.len();
            around.push(end);
        }
        spans
    }
}
