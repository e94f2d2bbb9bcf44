//! Timers: [`ScopedTimer`] for nested sections of the program, by the CPU's clock, and [`KernelTimer`] for work on a
//! device, by device events.
//!
//! A scope costs two clock reads and a push under a rarely contended lock; [`Collector::scope_ns`] measures that cost.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rocmforge_gpu::{Event, Gpu, GpuError};

use crate::schema::{Lane, Span};
use crate::stats::Summary;

/// Most scopes kept. Later ones are only counted, so that a long run does not fill the memory.
const MAX_SCOPES: usize = 1 << 20;

/// Collects the scopes of any number of threads. Clones share one collection.
#[derive(Debug, Clone)]
pub struct Collector {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    origin: Instant,
    scopes: Mutex<Scopes>,
}

#[derive(Debug, Default)]
struct Scopes {
    all: Vec<Scope>,
    n_dropped: usize,
}

/// A finished scope.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    pub name: Cow<'static, str>,
    /// Time since the collector was created.
    pub start: Duration,
    pub duration: Duration,
    /// Number of scopes open on its thread when it started.
    pub depth: usize,
    /// Number of its thread, in the order of first measurements.
    pub thread: usize,
}

static N_THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static THREAD: usize = N_THREADS.fetch_add(1, Ordering::Relaxed);
}

impl Default for Collector {
    fn default() -> Collector {
        Collector::new()
    }
}

impl Collector {
    pub fn new() -> Collector {
        Collector {
            inner: Arc::new(Inner {
                origin: Instant::now(),
                scopes: Mutex::default(),
            }),
        }
    }

    /// Returns the instant that times count from.
    pub fn origin(&self) -> Instant {
        self.inner.origin
    }

    /// Starts a scope that ends when the returned timer is dropped.
    pub fn scope(&self, name: impl Into<Cow<'static, str>>) -> ScopedTimer<'_> {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        ScopedTimer {
            collector: self,
            name: name.into(),
            depth,
            started: Instant::now(),
        }
    }

    /// Takes the finished scopes, sorted by start, outer scopes first; and the number of scopes dropped because of
    /// `MAX_SCOPES`.
    pub fn take(&self) -> (Vec<Scope>, usize) {
        let Scopes { mut all, n_dropped } = std::mem::take(&mut *self.lock());
        all.sort_by_key(|scope| (scope.start, scope.depth));
        (all, n_dropped)
    }

    fn lock(&self) -> MutexGuard<'_, Scopes> {
        let scopes = &self.inner.scopes;
        scopes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Measures the cost of a scope on this machine in nanoseconds, with a separate collector.
    pub fn scope_ns() -> f64 {
        const N_BATCHES: usize = 20;
        const N_SCOPES: usize = 1000;
        let collector = Collector::new();
        let batch = |_| {
            let started = Instant::now();
            for _ in 0..N_SCOPES {
                drop(collector.scope("empty"));
            }
            let taken = started.elapsed();
            collector.lock().all.clear();
            taken.as_nanos() as f64 / N_SCOPES as f64
        };
        let costs: Vec<f64> = (0..N_BATCHES).map(batch).collect();
        Summary::of(&costs).map_or(0.0, |costs| costs.p50)
    }
}

/// An open scope; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the scope lasts until this is dropped"]
pub struct ScopedTimer<'a> {
    collector: &'a Collector,
    name: Cow<'static, str>,
    depth: usize,
    started: Instant,
}

impl Drop for ScopedTimer<'_> {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        DEPTH.set(self.depth);
        let scope = Scope {
            name: std::mem::take(&mut self.name),
            start: self.started.duration_since(self.collector.inner.origin),
            duration,
            depth: self.depth,
            thread: THREAD.with(|thread| *thread),
        };
        let mut scopes = self.collector.lock();
        if scopes.all.len() < MAX_SCOPES {
            scopes.all.push(scope);
        } else {
            scopes.n_dropped += 1;
        }
    }
}

impl Scope {
    /// Converts the scope to a span on the CPU lane.
    pub fn span(&self) -> Span {
        Span {
            name: self.name.to_string(),
            kind: "scope".to_string(),
            lane: Lane::Cpu,
            start_us: self.start.as_secs_f64() * 1e6,
            duration_us: self.duration.as_secs_f64() * 1e6,
            depth: self.depth,
        }
    }
}

/// Times one or more kernels, on a device or on the CPU.
pub struct KernelTimer {
    name: String,
    state: State,
}

enum State {
    Idle,
    OnDevice { start: Event, end: Option<Event> },
    OnCpu(Instant),
    Over(Duration),
    Failed(GpuError),
}

impl KernelTimer {
    pub fn for_kernel(name: impl Into<String>) -> KernelTimer {
        KernelTimer {
            name: name.into(),
            state: State::Idle,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts the timer after the work queued on the stream of `gpu` so far.
    pub fn start(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let start = Event::new(gpu)?;
        start.record()?;
        self.state = State::OnDevice { start, end: None };
        Ok(())
    }

    /// Stops the timer after the work queued on the stream of `gpu` so far, without waiting for it. Does nothing unless
    /// [`start`] was called before.
    ///
    /// [`start`]: KernelTimer::start
    pub fn stop(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if let State::OnDevice { end, .. } = &mut self.state {
            let event = Event::new(gpu)?;
            event.record()?;
            *end = Some(event);
        }
        Ok(())
    }

    /// Starts the timer as [`start`] does. It stops when the returned scope is dropped.
    ///
    /// [`start`]: KernelTimer::start
    pub fn scope<'a>(&'a mut self, gpu: &'a Gpu) -> Result<ScopedKernelTimer<'a>, GpuError> {
        self.start(gpu)?;
        Ok(ScopedKernelTimer { timer: self, gpu })
    }

    /// Starts the timer on the CPU's clock.
    pub fn start_cpu(&mut self) {
        self.state = State::OnCpu(Instant::now());
    }

    /// Stops the timer on the CPU's clock. Does nothing unless [`KernelTimer::start_cpu`] was called before.
    pub fn stop_cpu(&mut self) {
        if let State::OnCpu(started) = self.state {
            self.state = State::Over(started.elapsed());
        }
    }

    /// Returns the milliseconds from start to stop, or `None` if either is missing. Waits for the device.
    ///
    /// An error of the device is also one of the end of a scope.
    pub fn elapsed(&self) -> Result<Option<f64>, GpuError> {
        match &self.state {
            State::Over(time) => Ok(Some(time.as_secs_f64() * 1e3)),
            State::Failed(error) => Err(error.clone()),
            State::OnDevice {
                start,
                end: Some(end),
            } => {
                end.wait()?;
                Ok(Some(f64::from(end.elapsed_ms(start)?)))
            }
            State::Idle | State::OnCpu(_) | State::OnDevice { end: None, .. } => Ok(None),
        }
    }
}

/// A running [`KernelTimer`] of a device; it stops when this is dropped.
#[must_use = "the timer runs until this is dropped"]
pub struct ScopedKernelTimer<'a> {
    timer: &'a mut KernelTimer,
    gpu: &'a Gpu,
}

impl Drop for ScopedKernelTimer<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.timer.stop(self.gpu) {
            self.timer.state = State::Failed(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nests_scopes_as_in_the_code() {
        let collector = Collector::new();
        {
            let _run = collector.scope("run");
            for name in ["a", "b"] {
                let _part = collector.scope(name);
                let _inner = collector.scope(format!("in {name}"));
            }
        }
        let of_thread = collector.clone();
        let thread = std::thread::spawn(move || drop(of_thread.scope("thread")));
        thread.join().unwrap();
        let (scopes, n_dropped) = collector.take();
        let shape: Vec<(&str, usize)> = scopes.iter().map(|s| (&*s.name, s.depth)).collect();
        let nested = [("run", 0), ("a", 1), ("in a", 2), ("b", 1), ("in b", 2)];
        assert_eq!(shape[..5], nested);
        // Depths are per thread.
        assert_eq!(shape[5], ("thread", 0));
        assert_ne!(scopes[5].thread, scopes[0].thread);
        assert_eq!(n_dropped, 0);
        let end = |s: &Scope| s.start + s.duration;
        let run = &scopes[0];
        for part in &scopes[1..5] {
            assert!(part.start >= run.start && end(part) <= end(run), "{part:?}");
        }
        assert_eq!(collector.take(), (Vec::new(), 0));
    }

    #[test]
    fn counts_dropped_scopes() {
        let collector = Collector::new();
        for _ in 0..MAX_SCOPES + 3 {
            drop(collector.scope(""));
        }
        let (scopes, n_dropped) = collector.take();
        assert_eq!((scopes.len(), n_dropped), (MAX_SCOPES, 3));
    }

    #[test]
    fn measures_the_cost_of_a_scope() {
        let ns = Collector::scope_ns();
        assert!(ns.is_finite() && ns > 0.0, "{ns}");
    }

    #[test]
    fn times_kernels_on_the_cpu() {
        let mut timer = KernelTimer::for_kernel("dot");
        assert_eq!(timer.name(), "dot");
        assert_eq!(timer.elapsed(), Ok(None));
        timer.stop_cpu();
        assert_eq!(timer.elapsed(), Ok(None));
        let outer = Instant::now();
        timer.start_cpu();
        assert_eq!(timer.elapsed(), Ok(None));
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_micros(50) {}
        let least = inner.elapsed().as_secs_f64() * 1e3;
        timer.stop_cpu();
        let most = outer.elapsed().as_secs_f64() * 1e3;
        let ms = timer.elapsed().unwrap().unwrap();
        assert!(least <= ms && ms <= most, "{least} <= {ms} <= {most}");
    }

    /// The device's time lies between two host measurements, inside and around the launch.
    #[test]
    fn times_kernels_on_a_device() {
        let images = rocmforge_gpu::image_targets();
        let mut targets = images
            .iter()
            .filter_map(|target| target.strip_prefix("host-"));
        let Some(persona) = targets.next() else {
            println!("skipped: built without the target host");
            return;
        };
        let gpu = Gpu::host(persona).unwrap();
        let x = gpu.upload(&vec![1f32; 4096]).unwrap();
        let mut timer = KernelTimer::for_kernel("add");
        timer.stop(&gpu).unwrap();
        assert_eq!(timer.elapsed(), Ok(None));
        let outer = Instant::now();
        let scope = timer.scope(&gpu).unwrap();
        let inner = Instant::now();
        rocmforge_gpu::ops::add(&gpu, x.as_slice(), x.as_slice()).unwrap();
        // An emulated GPU computes while a launch is queued.
        let least = inner.elapsed().as_secs_f64() * 1e3;
        drop(scope);
        let most = outer.elapsed().as_secs_f64() * 1e3;
        let ms = timer.elapsed().unwrap().unwrap();
        // Event times are f32.
        let slack = 1e-3 * most;
        assert!(
            least - slack <= ms && ms <= most + slack,
            "{least} <= {ms} <= {most}"
        );
    }

    /// A device that is lost within a scope: its error comes in place of the time.
    #[test]
    fn the_error_at_the_end_of_a_scope_is_kept() {
        let Some(image) = rocmforge_gpu::image_targets().first().copied() else {
            return println!("skipped: built without any kernels");
        };
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("stub.so");
        let mut cc = std::process::Command::new("cc");
        cc.args([
            "-shared",
            "-fPIC",
            "-w",
            "-DHIP",
            "-DSYNC_CODE=719",
            "-DGOOD_SYNCS=0",
        ]);
        cc.arg("-o").arg(&library);
        cc.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../gpu/tests/it/stub/driver.c"
        ));
        let Ok(status) = cc.status() else {
            return println!("skipped: no C compiler");
        };
        assert!(status.success());
        let options = rocmforge_gpu::OpenOptions {
            hip_library: Some(library),
            image: Some(image.to_string()),
            ..rocmforge_gpu::OpenOptions::default()
        };
        let gpu = Gpu::open_with("hip:0".parse().unwrap(), &options).unwrap();
        let mut timer = KernelTimer::for_kernel("add");
        let scope = timer.scope(&gpu).unwrap();
        gpu.synchronize().unwrap_err();
        drop(scope);
        let error = timer.elapsed().unwrap_err();
        assert!(matches!(error, GpuError::Lost { .. }), "{error}");
    }
}
