//! Timed steps of the GPU backend: the launches of an ordinary step, with events between them. Decode steps are then
//! queued launch by launch, because no events can be placed between the launches of a graph.

use std::time::{Duration, Instant};

use rocmforge_gpu::{Event, GpuError, KernelTime, Trace, n_traced};

use super::GpuBackend;
use super::step::StepShape;
use crate::times::{LaunchTime, PartTime, StepObserver, StepPart, StepTimes};
use rocmforge_plan::Batch;
use rocmforge_plan::{BatchShape, Side};

/// The step observer, and the clock and traces that time steps for it.
#[derive(Default)]
pub(crate) struct Timing {
    observer: Option<Box<dyn StepObserver>>,
    clock: Option<Clock>,
    /// Traces of completed steps, for reuse.
    spare: Vec<Trace>,
}

/// A point in time on the clocks of both device and host.
struct Clock {
    origin: Event,
    at: Instant,
}

/// A timed step, or a segment of one, that is queued.
pub(crate) struct TimedStep {
    started: Instant,
    trace: Trace,
    /// Each part, and the number of launches up to its end.
    parts: Vec<(StepPart, usize)>,
}

impl Timing {
    pub(crate) fn is_on(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn set(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.observer = observer;
    }
}

impl GpuBackend {
    /// Queues a segment and times its launches.
    pub(crate) fn launch_timed(
        &mut self,
        segment: usize,
        shape: &StepShape,
    ) -> Result<TimedStep, GpuError> {
        if self.timing.clock.is_none() {
            let origin = Event::new(&self.gpu)?;
            origin.record()?;
            origin.wait()?;
            let at = Instant::now();
            self.timing.clock = Some(Clock { origin, at });
        }
        let spare = self.timing.spare.pop();
        let mut trace = spare.unwrap_or_else(|| Trace::new(&self.gpu));
        let mut parts = Vec::new();
        let started = Instant::now();
        trace.record(|| {
            let mut mark = |part| parts.push((part, n_traced()));
            self.launch_marked(segment, shape, &mut mark)
        })?;
        Ok(TimedStep {
            started,
            trace,
            parts,
        })
    }

    /// Passes the times of a completed step to the observer.
    pub(crate) fn report_times(&mut self, batch: &Batch, step: TimedStep) -> Result<(), GpuError> {
        let mut times = StepTimes {
            step: batch.step,
            shape: BatchShape::of(batch),
            started: step.started,
            parts: Vec::new(),
            launches: Vec::new(),
        };
        self.add_times(step, 0, &mut times)?;
        if let Some(observer) = &mut self.timing.observer {
            observer.step(times);
        }
        Ok(())
    }

    /// Adds the times of a completed segment. An operation's index in the whole plan is its index here plus `shift`.
    pub(crate) fn add_times(
        &mut self,
        step: TimedStep,
        shift: usize,
        times: &mut StepTimes,
    ) -> Result<(), GpuError> {
        if let Some(clock) = &self.timing.clock {
            let kernels = step.trace.times(&clock.origin)?;
            add_kernels(&step.parts, (clock.at, shift), &kernels, times);
        }
        self.timing.spare.push(step.trace);
        Ok(())
    }
}

/// Adds the parts and launches of a segment to `times`. The times of `kernels` count from `origin`.
fn add_kernels(
    parts: &[(StepPart, usize)],
    (origin, shift): (Instant, usize),
    kernels: &[KernelTime],
    times: &mut StepTimes,
) {
    let started = times.started;
    // A device's clock may be slightly behind the host's.
    let since_started = |time: Duration| (origin + time).saturating_duration_since(started);
    let mut first = 0;
    for (part, end) in parts {
        // A part may have no launches.
        let of_part = &kernels[first..*end];
        let Some(begin) = of_part.first() else {
            continue;
        };
        let index = times.parts.len();
        times.parts.push(PartTime {
            part: match part {
                StepPart::Ops(ops) => StepPart::Ops(ops.start + shift..ops.end + shift),
                other => other.clone(),
            },
            side: Side::Gpu,
            start: since_started(begin.start),
            duration: of_part.iter().map(|kernel| kernel.duration).sum(),
        });
        times
            .launches
            .extend(of_part.iter().map(|kernel| LaunchTime {
                kernel: (kernel.module, kernel.kernel),
                part: index,
                queued: kernel.queued.saturating_duration_since(started),
                submit: kernel.submit,
                start: since_started(kernel.start),
                duration: kernel.duration,
            }));
        first = *end;
    }
}
