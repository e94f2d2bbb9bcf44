//! Times of launches, by events between them. Tracing never waits for the device and changes nothing else about a
//! launch.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;

/// Times of the launches of one thread on one device, with an event before the first launch and one after each.
pub struct Trace {
    gpu: Gpu,
    /// The first `1 + launches.len()` events are recorded. The others are kept for the next use.
    events: Vec<Event>,
    launches: Vec<Queued>,
}

struct Queued {
    module: &'static str,
    kernel: &'static str,
    at: Instant,
    submit: Duration,
}

/// Times of one launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelTime {
    pub module: &'static str,
    pub kernel: &'static str,
    /// When the host queued it, and how long queueing took.
    pub queued: Instant,
    pub submit: Duration,
    /// Start on the device, counted from the origin event.
    pub start: Duration,
    /// From the end of the previous launch to the end of this one. Includes the time the device was idle until the
    /// launch was queued.
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

    /// Records the times of what `work` launches on this thread, replacing earlier ones. Traces do not nest.
    ///
    /// # Errors
    /// Those of `work` and of the device. The trace is then empty.
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

    /// Number of recorded launches.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// Returns the launches in order, with times counted from `origin`. The launches and `origin` must be done.
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

/// Returns how many launches the trace of this thread has so far; 0 without a trace.
pub fn n_traced() -> usize {
    CURRENT.with_borrow(|trace| trace.as_ref().map_or(0, Trace::len))
}

/// Whether launches of `gpu` on this thread are traced.
pub(crate) fn is_tracing(gpu: &Gpu) -> bool {
    CURRENT.with_borrow(|trace| {
        let traced = trace.as_ref().map(|trace| &trace.gpu.inner);
        traced.is_some_and(|traced| Arc::ptr_eq(traced, &gpu.inner))
    })
}

/// Records a launch that the host began to queue at `at`.
pub(crate) fn record_launch(
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

/// Drivers report times of low resolution, which may come out below 0.
fn milliseconds(ms: f32) -> Duration {
    Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3)
}
