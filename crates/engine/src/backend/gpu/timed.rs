//! Steps of the GPU backend whose times are taken: the launches of every other step, with events between them. Steps of
//! generation are queued launch by launch then, since there is nothing between the launches of a graph.

use std::time::{Duration, Instant};

use rocmforge_gpu::{Event, GpuError, KernelTime, Trace, n_traced};

use super::GpuBackend;
use super::step::StepShape;
use crate::backend::times::{LaunchTime, PartTime, StepObserver, StepPart, StepTimes};
use crate::batch::Batch;
use crate::plan::BatchShape;

/// Who is told of times, and what they are taken with.
#[derive(Default)]
pub(super) struct Timing {
    observer: Option<Box<dyn StepObserver>>,
    clock: Option<Clock>,
    /// Traces of steps that are over.
    spare: Vec<Trace>,
}

/// A point that both the device and the host know.
struct Clock {
    origin: Event,
    at: Instant,
}

/// A step that runs.
pub(super) struct TimedStep {
    started: Instant,
    trace: Trace,
    /// Each part, and how many launches there were at its end.
    parts: Vec<(StepPart, usize)>,
}

impl Timing {
    pub(super) fn is_on(&self) -> bool {
        self.observer.is_some()
    }

    pub(super) fn set(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.observer = observer;
    }
}

impl GpuBackend {
    /// Queues a step whose times are to be taken.
    pub(super) fn launch_timed(&mut self, shape: &StepShape) -> Result<TimedStep, GpuError> {
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
        trace.record(|| self.launch_marked(shape, &mut |part| parts.push((part, n_traced()))))?;
        Ok(TimedStep {
            started,
            trace,
            parts,
        })
    }

    /// Tells what a step took that is over.
    pub(super) fn tell_times(&mut self, batch: &Batch, step: TimedStep) -> Result<(), GpuError> {
        let Timing {
            observer: Some(observer),
            clock: Some(clock),
            spare,
        } = &mut self.timing
        else {
            return Ok(());
        };
        let kernels = step.trace.times(&clock.origin)?;
        observer.step(step_times(&step, clock.at, batch, &kernels));
        spare.push(step.trace);
        Ok(())
    }
}

/// `kernels` count from `origin`.
fn step_times(
    step: &TimedStep,
    origin: Instant,
    batch: &Batch,
    kernels: &[KernelTime],
) -> StepTimes {
    // A device's clock may be a little before the host's.
    let since_started = |time: Duration| (origin + time).saturating_duration_since(step.started);
    let mut times = StepTimes {
        step: batch.step,
        shape: BatchShape::of(batch),
        started: step.started,
        parts: Vec::with_capacity(step.parts.len()),
        launches: Vec::with_capacity(kernels.len()),
    };
    let mut first = 0;
    for (part, end) in &step.parts {
        // A part may have had nothing to launch.
        let of_part = &kernels[first..*end];
        let Some(begin) = of_part.first() else {
            continue;
        };
        let index = times.parts.len();
        times.parts.push(PartTime {
            part: part.clone(),
            start: since_started(begin.start),
            duration: of_part.iter().map(|kernel| kernel.duration).sum(),
        });
        times
            .launches
            .extend(of_part.iter().map(|kernel| LaunchTime {
                kernel: (kernel.module, kernel.kernel),
                part: index,
                queued: kernel.queued.saturating_duration_since(step.started),
                submit: kernel.submit,
                start: since_started(kernel.start),
                duration: kernel.duration,
            }));
        first = *end;
    }
    times
}
