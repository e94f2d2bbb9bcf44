//! Step times for profiling. A backend with a [`StepObserver`] times its operations without changing how they run, and
//! reports the times at the end of the step. For values see `OpObserver`.

use std::ops::Range;
use std::time::{Duration, Instant};

use rocmforge_plan::{BatchShape, Side};

/// Receives the times of each step before its result is delivered; called on the thread of the backend.
pub trait StepObserver: Send {
    fn step(&mut self, times: StepTimes);
}

/// The times of a step. Its parts count from `started`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimes {
    /// The step's number.
    pub step: u64,
    pub shape: BatchShape,
    /// When the backend started the step.
    pub started: Instant,
    /// The parts in order. Gaps between them belong to no part.
    pub parts: Vec<PartTime>,
    /// Kernel launches of a GPU, in order; empty on a CPU.
    pub launches: Vec<LaunchTime>,
}

impl StepTimes {
    /// Returns the sum over all parts.
    pub fn duration(&self) -> Duration {
        self.parts.iter().map(|part| part.duration).sum()
    }
}

/// A part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepPart {
    /// Before the operations: memory and rotations for the batch, or its copy from the host.
    Begin,
    /// Operations that run together, by index in the compiled plan.
    Ops(Range<usize>),
    /// Sampling and scoring.
    Choose,
    /// Copy of the results to the host.
    End,
    /// Copy of buffers to the other device, counted on the destination.
    Copy,
}

/// The time of one part.
#[derive(Debug, Clone, PartialEq)]
pub struct PartTime {
    pub part: StepPart,
    /// The device it ran on.
    pub side: Side,
    /// By the device's clock.
    pub start: Duration,
    pub duration: Duration,
}

/// The times of one kernel launch.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTime {
    /// Module and name.
    pub kernel: (&'static str, &'static str),
    /// Index in [`StepTimes::parts`].
    pub part: usize,
    /// When the host queued it.
    pub queued: Duration,
    /// How long queueing took.
    pub submit: Duration,
    /// The end of the previous launch by the device's clock, so that `duration` includes waiting for the host.
    pub start: Duration,
    pub duration: Duration,
}

/// Measures consecutive parts on one clock.
#[derive(Clone)]
pub(crate) struct Stopwatch {
    started: Instant,
    last: Instant,
    parts: Vec<PartTime>,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        let now = Instant::now();
        Stopwatch {
            started: now,
            last: now,
            parts: Vec::new(),
        }
    }

    /// Records the time since the last part as `part`, on the CPU.
    pub(crate) fn lap(&mut self, part: StepPart) {
        self.lap_on(Side::Cpu, part);
    }

    /// Like [`Stopwatch::lap`], for a part on `side` that the host waited for.
    pub(crate) fn lap_on(&mut self, side: Side, part: StepPart) {
        let now = Instant::now();
        self.parts.push(PartTime {
            part,
            side,
            start: self.last - self.started,
            duration: now - self.last,
        });
        self.last = now;
    }

    /// Drops the time since the last part.
    pub(crate) fn skip(&mut self) {
        self.last = Instant::now();
    }

    /// Takes the parts so far.
    pub(crate) fn take(&mut self) -> Vec<PartTime> {
        std::mem::take(&mut self.parts)
    }

    /// Returns the times of a step with the parts so far.
    pub(crate) fn finish(self, step: u64, shape: BatchShape) -> StepTimes {
        StepTimes {
            step,
            shape,
            started: self.started,
            parts: self.parts,
            launches: Vec::new(),
        }
    }
}
