//! The dispatch protocol: ticket, claim, close, park.
//!
//! The ticket is one `u64`: `[epoch | SHUTDOWN | OPEN | workers inside]`. The life of a job:
//!
//! 1. The caller, holding the dispatch lock, finds the ticket closed with no worker inside, writes the job and the
//!    counter, and publishes `epoch + 1 | OPEN`.
//! 2. A worker that sees an open ticket of an epoch it has not served adds itself by compare-and-swap. From then on the
//!    job cannot change under it.
//! 3. Caller and workers claim tasks with `next.fetch_add(1)` until the counter passes `n_tasks`. Workers then remove
//!    themselves from the ticket.
//! 4. The caller clears OPEN, so that no worker joins any more, and waits for the count to reach 0.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::topology::{Topology, stay_on};

/// Maximum number of threads of a [`Pool`].
pub const MAX_THREADS: usize = 1024;

const OPEN: u64 = 1 << 16;
const SHUTDOWN: u64 = 1 << 17;
const EPOCH: u64 = 1 << 18;
const INSIDE_MASK: u64 = OPEN - 1;

/// How long an idle worker spins with `pause`, and how long it then polls with `sched_yield` before it parks. The
/// latter covers the serial stretch between two tokens.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(1);
/// With more threads than cores, a spinning thread only keeps a working one off its core.
const YIELD_OVERSUBSCRIBED: Duration = Duration::from_micros(50);
const PAUSES_PER_CLOCK_READ: u32 = 32;

type TaskFor<'a> = dyn Fn(usize) + Sync + 'a;
type Task = TaskFor<'static>;

thread_local! {
    /// Set while this thread runs tasks of any pool; nested dispatches then run inline.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads that run loops together, including the calling thread.
///
/// Shared by reference. Concurrent calls are served one after the other.
pub struct Pool {
    shared: Arc<Shared>,
    dispatch: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

/// Spinning workers only read `ticket`, so the counter that all threads write is kept off its cache line.
struct Shared {
    ticket: Line<AtomicU64>,
    next: Line<AtomicUsize>,
    job: Line<Job>,
    /// Workers that are parked or about to park; 0 lets a hot dispatch skip the list.
    n_parked: AtomicUsize,
    parkers: Box<[Parker]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    oversubscribed: bool,
}

struct Job {
    n_tasks: AtomicUsize,
    /// Written only while the ticket is closed with no worker inside, read only by those inside.
    task: UnsafeCell<Option<NonNull<Task>>>,
}

struct Parker {
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

/// Two 64-byte cache lines, because Intel processors prefetch them in pairs.
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: `Job::task` is the only field that is not Sync by itself. The caller writes it while the
// ticket is closed and empty (it holds the dispatch lock, so it is the only writer) and publishes
// it with a SeqCst store of the ticket; a reader has joined that ticket by an acquiring
// compare-and-swap and leaves by a releasing subtraction that the caller acquires before the next
// write. `Task` is Sync, so it may be called from any thread.
unsafe impl Sync for Shared {}
// SAFETY: as above; dropping the pointer does nothing.
unsafe impl Send for Shared {}

impl Pool {
    /// Creates a pool of `n_threads` threads including the caller, clamped to 1..=[`MAX_THREADS`];
    /// [`super::default_threads`] is a good number. On a machine with several NUMA nodes, the workers stay on as few
    /// nodes as have enough cores. If the system refuses to create a thread, the pool has fewer; see
    /// [`Pool::n_threads`].
    pub fn new(n_threads: usize) -> Pool {
        let n_workers = n_threads.clamp(1, MAX_THREADS) - 1;
        let n_cores = thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            ticket: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: Line(Job {
                n_tasks: AtomicUsize::new(0),
                task: UnsafeCell::new(None),
            }),
            n_parked: AtomicUsize::new(0),
            parkers: (0..n_workers)
                .map(|_| Parker {
                    parked: AtomicBool::new(false),
                    thread: OnceLock::new(),
                })
                .collect(),
            panic: Mutex::new(None),
            oversubscribed: n_workers + 1 > n_cores,
        });
        let topology = Topology::detect();
        let places = topology.as_ref().and_then(|t| t.place(n_workers + 1));
        let workers = (0..n_workers)
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                let cpus = places.as_ref().map(|places| places[i + 1].to_vec());
                let work = move || {
                    if let Some(cpus) = cpus {
                        stay_on(&cpus);
                    }
                    shared.work(i);
                };
                let name = format!("cpu-{}", i + 1);
                thread::Builder::new().name(name).spawn(work).ok()
            })
            .collect();
        Pool {
            shared,
            dispatch: Mutex::new(()),
            workers,
        }
    }

    /// Number of threads that run tasks, including the caller.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(task)` for every `task` in `0..n_tasks` and returns when all are done. Free threads claim tasks in
    /// ascending order.
    ///
    /// A call from inside a task runs inline. If a task panics, tasks that have not started are dropped, the panic
    /// propagates to the caller, and the pool stays usable.
    pub fn run(&self, n_tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        if n_tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            (0..n_tasks).for_each(f);
            return;
        }
        let guard = lock(&self.dispatch);
        // SAFETY: `close` follows, and nothing before it can unwind: `serve` catches the panics
        // of tasks. The dispatch lock is held.
        unsafe { self.shared.open(n_tasks, f, self.workers.len()) };
        self.shared.serve(n_tasks, f);
        self.shared.close();
        let panic = lock(&self.shared.panic).take();
        drop(guard);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ticket.0.fetch_or(SHUTDOWN, Ordering::SeqCst);
        self.shared.wake(usize::MAX);
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks and have nothing else to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a job to `n_workers` workers.
    ///
    /// # Safety
    /// The caller holds the dispatch lock and calls `close` before `task` ends: workers call it
    /// until `close` has returned.
    unsafe fn open(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync), n_workers: usize) {
        // SAFETY: only the lifetime is changed, and the pointer is followed only by workers that
        // joined this job, which `close` waits for.
        let task =
            unsafe { std::mem::transmute::<NonNull<TaskFor<'_>>, NonNull<Task>>(task.into()) };
        let ticket = self.ticket.0.load(Ordering::Relaxed);
        debug_assert_eq!(ticket & (OPEN | INSIDE_MASK), 0, "one job at a time");
        self.job.0.n_tasks.store(n_tasks, Ordering::Relaxed);
        self.next.0.store(0, Ordering::Relaxed);
        // SAFETY: the dispatch lock makes this the only writer, and the ticket is closed with
        // no worker inside (`close` of the previous job acquired the last leave), so there are no readers.
        unsafe { *self.job.0.task.get() = Some(task) };
        self.ticket
            .0
            .store(ticket.wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        let n_parked = self.n_parked.load(Ordering::SeqCst);
        if n_parked > 0 {
            let n_hot = n_workers.saturating_sub(n_parked);
            self.wake((n_tasks - 1).saturating_sub(n_hot));
        }
    }

    /// Claims and runs tasks until none is left. The thread must then leave or close the ticket.
    fn serve(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _in_task = InTask::enter();
            loop {
                // The value only decides which thread runs what; data is ordered by the ticket.
                let i = self.next.0.fetch_add(1, Ordering::Relaxed);
                if i >= n_tasks {
                    break;
                }
                task(i);
            }
        }));
        if let Err(panic) = result {
            self.next.0.store(n_tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(panic);
        }
    }

    fn close(&self) {
        let mut ticket = self.ticket.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut backoff = Backoff::new(self.oversubscribed);
        while ticket & INSIDE_MASK != 0 {
            backoff.wait();
            ticket = self.ticket.0.load(Ordering::Acquire);
        }
    }

    /// Main loop of worker `index`.
    fn work(&self, index: usize) {
        self.parkers[index].thread.get_or_init(thread::current);
        let mut served = 0;
        while let Some(epoch) = self.await_job(index, served) {
            served = epoch;
            let Some(n_tasks) = self.join(epoch) else {
                continue;
            };
            // SAFETY: this worker is counted on the ticket, so no thread writes the job, and `close`
            // has not returned, so the task is still borrowed by the caller of `run`.
            unsafe {
                let task = (*self.job.0.task.get()).expect("an open ticket has a job");
                self.serve(n_tasks, task.as_ref());
            }
            self.ticket.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open ticket whose epoch is not `served`. `None` means that the pool shuts down.
    fn await_job(&self, index: usize, served: u64) -> Option<u64> {
        let mut backoff = Backoff::new(self.oversubscribed);
        loop {
            let ticket = self.ticket.0.load(Ordering::SeqCst);
            if ticket & SHUTDOWN != 0 {
                return None;
            }
            if ticket & OPEN != 0 && ticket / EPOCH != served {
                return Some(ticket / EPOCH);
            }
            if backoff.is_idle() {
                self.park(index, ticket);
                backoff = Backoff::new(self.oversubscribed);
            } else {
                backoff.wait();
            }
        }
    }

    /// Parks unless the ticket has changed from `seen`. May return early.
    ///
    /// No wake-up is lost: this thread sets `parked` and then reads the ticket; a publisher writes the ticket and then
    /// reads `n_parked` and `parked`. All are SeqCst, so at least one of them sees the other's write. `unpark` before
    /// `park` makes `park` return at once.
    fn park(&self, index: usize, seen: u64) {
        let parker = &self.parkers[index];
        self.n_parked.fetch_add(1, Ordering::SeqCst);
        parker.parked.store(true, Ordering::SeqCst);
        if self.ticket.0.load(Ordering::SeqCst) == seen {
            thread::park();
        }
        parker.parked.store(false, Ordering::SeqCst);
        self.n_parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes up to `n` parked workers.
    fn wake(&self, n: usize) {
        let parked = self
            .parkers
            .iter()
            .filter(|p| p.parked.swap(false, Ordering::SeqCst));
        for parker in parked.take(n) {
            if let Some(thread) = parker.thread.get() {
                thread.unpark();
            }
        }
    }

    /// Joins the job of `epoch` and returns its number of tasks; `None` if it has closed or has as many threads as
    /// tasks.
    fn join(&self, epoch: u64) -> Option<usize> {
        let mut ticket = self.ticket.0.load(Ordering::Relaxed);
        loop {
            // A stale `n_tasks` is possible here, but only if the ticket has changed, and then the compare-and-swap
            // fails.
            let n_tasks = self.job.0.n_tasks.load(Ordering::Relaxed);
            let n_inside = (ticket & INSIDE_MASK) as usize;
            if ticket & OPEN == 0 || ticket / EPOCH != epoch || n_inside + 1 >= n_tasks {
                return None;
            }
            match self.ticket.0.compare_exchange_weak(
                ticket,
                ticket + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(self.job.0.n_tasks.load(Ordering::Relaxed)),
                Err(now) => ticket = now,
            }
        }
    }
}

/// Marks this thread as running tasks, even while it unwinds.
struct InTask;

impl InTask {
    fn enter() -> InTask {
        IN_TASK.set(true);
        InTask
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        IN_TASK.set(false);
    }
}

/// Waits with increasing restraint: `pause`, then `sched_yield`, then idle.
struct Backoff {
    oversubscribed: bool,
    start: Option<Instant>,
    pauses: u32,
    waited: Duration,
}

impl Backoff {
    fn new(oversubscribed: bool) -> Backoff {
        Backoff {
            oversubscribed,
            start: None,
            pauses: 0,
            waited: Duration::ZERO,
        }
    }

    fn wait(&mut self) {
        self.pauses += 1;
        if !self.pauses.is_multiple_of(PAUSES_PER_CLOCK_READ) {
            std::hint::spin_loop();
            return;
        }
        self.waited = self.start.get_or_insert_with(Instant::now).elapsed();
        if self.oversubscribed || self.waited > SPIN {
            thread::yield_now();
        }
    }

    fn is_idle(&self) -> bool {
        self.waited
            > if self.oversubscribed {
                YIELD_OVERSUBSCRIBED
            } else {
                YIELD
            }
    }
}

/// Locks a mutex whose data stays valid if a holder panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
