//! What steps take, for whoever profiles: a backend that has a [`StepObserver`] takes the times of the operations as it
//! runs them otherwise, and hands them over when the step is over. Values are not looked at (that is `OpObserver`'s).

use std::ops::Range;
use std::time::{Duration, Instant};

use rocmforge_plan::{BatchShape, Side};

/// Told what each step took, before its result is known to anybody; runs on the device's thread.
pub trait StepObserver: Send {
    fn step(&mut self, times: StepTimes);
}

/// What a step took. Times of its parts count from `started`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimes {
    /// Number of the step.
    pub step: u64,
    pub shape: BatchShape,
    /// When the device's thread began it.
    pub started: Instant,
    /// In order; what is between them belongs to none.
    pub parts: Vec<PartTime>,
    /// The launches of a GPU, in order; on a CPU there are none.
    pub launches: Vec<LaunchTime>,
}

impl StepTimes {
    /// The sum over all parts.
    pub fn duration(&self) -> Duration {
        self.parts.iter().map(|part| part.duration).sum()
    }
}

/// A part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepPart {
    /// What comes before the operations: memory for the batch and its rotations, or taking the batch over from the host.
    Begin,
    /// Operations that run as one, by their places in the compiled plan.
    Ops(Range<usize>),
    /// Tokens are chosen, or scored.
    Choose,
    /// What was chosen is given to the host.
    End,
    /// Buffers go to the other device; it counts there.
    Copy,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PartTime {
    pub part: StepPart,
    /// Which device it ran on.
    pub side: Side,
    /// By the clock of the device.
    pub start: Duration,
    pub duration: Duration,
}

/// One kernel that was launched.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTime {
    /// Module and name.
    pub kernel: (&'static str, &'static str),
    /// Index in [`StepTimes::parts`].
    pub part: usize,
    /// When the host queued it, and how long that took.
    pub queued: Duration,
    pub submit: Duration,
    /// By the clock of the device. From the end of the launch before: a device that waits for the host waits here.
    pub start: Duration,
    pub duration: Duration,
}

/// Takes the times of parts that follow each other on one clock.
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

    /// `part`, on the CPU, took the time since the last one.
    pub(crate) fn lap(&mut self, part: StepPart) {
        self.lap_on(Side::Cpu, part);
    }

    /// As [`Stopwatch::lap`], of what the host waited for.
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

    /// The time since the last part belongs to none.
    pub(crate) fn skip(&mut self) {
        self.last = Instant::now();
    }

    /// The parts so far.
    pub(crate) fn take(&mut self) -> Vec<PartTime> {
        std::mem::take(&mut self.parts)
    }

    /// The times of a step with the parts so far.
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
