//! The times of launches, by events between them: nothing waits for the device while it works, and nothing else of a
//! launch changes.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;

/// Launches of one thread on one device, with an event before the first and one after each.
pub struct Trace {
    gpu: Gpu,
    /// `1 + launches.len()` of them are recorded; the others are there for the next use.
    events: Vec<Event>,
    launches: Vec<Queued>,
}

struct Queued {
    module: &'static str,
    kernel: &'static str,
    at: Instant,
    submit: Duration,
}

/// What one launch took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelTime {
    pub module: &'static str,
    pub kernel: &'static str,
    /// When the host queued it, and how long that took the host.
    pub queued: Instant,
    pub submit: Duration,
    /// On the device, from the event that times are counted from.
    pub start: Duration,
    /// From the end of the launch before to the end of this one: a device that has nothing to do until the launch is
    /// queued waits within it.
    pub duration: Duration,
}

thread_local! {
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

impl Trace {
    pub fn new(gpu: &Gpu) -> Trace {
        Trace {
            gpu: gpu.clone(),
            events: Vec::new(),
            launches: Vec::new(),
        }
    }

    /// Takes the times of what `work` launches on this thread, instead of what was taken before. Traces do not nest.
    ///
    /// # Errors
    /// Those of `work` and of the device; the trace is then empty.
    pub fn record(&mut self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<(), GpuError> {
        self.launches.clear();
        self.mark()?;
        let empty = Trace::new(&self.gpu);
        CURRENT.set(Some(std::mem::replace(self, empty)));
        let worked = work();
        if let Some(trace) = CURRENT.take() {
            *self = trace;
        }
        if worked.is_err() {
            self.launches.clear();
        }
        worked
    }

    /// How many launches were recorded.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// The launches in order, counted from `origin`. Both must be done.
    pub fn times(&self, origin: &Event) -> Result<Vec<KernelTime>, GpuError> {
        let Some(first) = self.events.first() else {
            return Ok(Vec::new());
        };
        let mut start = milliseconds(first.elapsed_ms(origin)?);
        let between = self.launches.iter().zip(self.events.windows(2));
        between
            .map(|(queued, events)| {
                let duration = milliseconds(events[1].elapsed_ms(&events[0])?);
                let time = KernelTime {
                    module: queued.module,
                    kernel: queued.kernel,
                    queued: queued.at,
                    submit: queued.submit,
                    start,
                    duration,
                };
                start += duration;
                Ok(time)
            })
            .collect()
    }

    /// Records the next event.
    fn mark(&mut self) -> Result<(), GpuError> {
        let next = self.launches.len();
        if next == self.events.len() {
            self.events.push(Event::new(&self.gpu)?);
        }
        self.events[next].record()
    }
}

/// How many launches the trace of this thread has so far; 0 without one.
pub fn n_traced() -> usize {
    CURRENT.with_borrow(|trace| trace.as_ref().map_or(0, Trace::len))
}

/// Whether the launches of `gpu` on this thread are traced.
pub(crate) fn is_on(gpu: &Gpu) -> bool {
    CURRENT.with_borrow(|trace| {
        let traced = trace.as_ref().map(|trace| &trace.gpu.inner);
        traced.is_some_and(|traced| Arc::ptr_eq(traced, &gpu.inner))
    })
}

/// A launch that began at `at` is queued.
pub(crate) fn launched(
    (module, kernel): (&'static str, &'static str),
    at: Instant,
) -> Result<(), GpuError> {
    let submit = at.elapsed();
    CURRENT.with_borrow_mut(|trace| match trace {
        Some(trace) => {
            trace.launches.push(Queued {
                module,
                kernel,
                at,
                submit,
            });
            trace.mark()
        }
        None => Ok(()),
    })
}

/// Drivers give times of little resolution, which may come out below 0.
fn milliseconds(ms: f32) -> Duration {
    Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3)
}
