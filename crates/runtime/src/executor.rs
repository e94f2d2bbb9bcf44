//! The executor: runs a backend and exchanges plain data with it. `submit` returns at once, so the engine can schedule a
//! step while another runs: the backend has a thread of its own, or a device with its own queue of work. Steps run in
//! the order they were submitted.

mod here;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::{Backend, BackendInfo, IdleWork, OpObserver, Wait};
use crate::error::{DeviceError, RuntimeError};
use crate::shared_cache::SharedCache;
use crate::times::StepObserver;
use crate::tuning::TuneProgress;
use here::{Here, Shared};
use rocmforge_plan::{Batch, StepOutput};

/// Interval of polling for the end of a step while the engine may still submit another. Only the last step of all
/// requests is polled.
const POLL: Duration = Duration::from_micros(100);

/// Time without a step after which a device counts as idle.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Length of one piece of idle work, and so the longest that it delays a new request.
const IDLE_SLICE: Duration = Duration::from_millis(2);

enum Command {
    Step(Batch, mpsc::Sender<Result<StepOutput, RuntimeError>>),
    Observe(Option<Box<dyn OpObserver>>),
    ObserveSteps(Option<Box<dyn StepObserver>>),
    Tune(
        Duration,
        mpsc::Sender<Result<Option<TuneProgress>, RuntimeError>>,
    ),
}

/// A backend, and how it is called.
pub struct Executor {
    home: Home,
    info: BackendInfo,
    cache: SharedCache,
}

/// Where a backend is.
enum Home {
    /// On a thread of its own.
    Thread {
        commands: Option<mpsc::Sender<Command>>,
        thread: Option<JoinHandle<()>>,
    },
    /// On the threads of those who call it.
    Callers(Here),
}

/// A submitted step.
pub struct Pending {
    result: mpsc::Receiver<Result<StepOutput, RuntimeError>>,
    /// The backend, if the caller runs it.
    backend: Option<Arc<Shared>>,
}

impl Executor {
    /// Starts the device's thread. `make` runs on it and returns the backend and a value for the caller. The thread
    /// waits for a step only when `steps_in_flight` of them have no reply.
    pub fn start<B: Backend + 'static, T: Send + 'static>(
        steps_in_flight: usize,
        make: impl FnOnce() -> Result<(B, T), RuntimeError> + Send + 'static,
    ) -> Result<(Executor, T), RuntimeError> {
        let (commands, inbox) = mpsc::channel::<Command>();
        let (ready, made) = mpsc::channel();
        let work = move || {
            let (mut backend, found) = match make() {
                Ok(made) => made,
                Err(error) => return drop(ready.send(Err(error))),
            };
            if ready.send(Ok((backend.info(), found))).is_err() {
                return;
            }
            while let Some(command) = next(&inbox, &mut backend, steps_in_flight) {
                match command {
                    // The engine may be gone; sending then fails, which is fine.
                    Command::Step(batch, to) => {
                        backend.submit(batch, Box::new(move |result| drop(to.send(result))))
                    }
                    Command::Observe(observer) => backend.observe(observer),
                    Command::ObserveSteps(observer) => backend.observe_steps(observer),
                    Command::Tune(budget, to) => drop(to.send(backend.tune(budget))),
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("rocmforge-device".into())
            .spawn(work)
            .map_err(DeviceError::Threads)?;
        match made.recv() {
            Ok(Ok((info, found))) => {
                let home = Home::Thread {
                    commands: Some(commands),
                    thread: Some(thread),
                };
                let cache = SharedCache::default();
                Ok((Executor { home, info, cache }, found))
            }
            Ok(Err(error)) => {
                // The thread has returned or is about to: it sends the error last.
                drop(thread.join());
                Err(error)
            }
            Err(mpsc::RecvError) => Err(gone(thread)),
        }
    }

    /// Runs a backend with its own queue of work on the threads that call it. So no step waits until a thread is woken,
    /// which takes milliseconds where all cores are busy.
    ///
    /// # Errors
    /// [`DeviceError::Threads`] if the system starts no thread for background work.
    pub fn here(backend: Box<dyn Backend>) -> Result<Executor, RuntimeError> {
        let info = backend.info();
        let home = Home::Callers(Here::new(backend)?);
        let cache = SharedCache::default();
        Ok(Executor { home, info, cache })
    }

    /// Says where the backend's cache is.
    pub(crate) fn set_cache(&mut self, cache: SharedCache) {
        self.cache = cache;
    }

    /// Returns where the backend's cache is, for a drafter that reads it; nowhere, unless [`start`](crate::start) made it.
    pub fn cache(&self) -> &SharedCache {
        &self.cache
    }

    /// Adds messages for the user to the backend's own.
    pub fn add_notices(&mut self, notices: impl IntoIterator<Item = String>) {
        self.info.notices.extend(notices);
    }

    pub fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// Queues a step.
    pub fn submit(&self, batch: Batch) -> Pending {
        let (to, result) = mpsc::channel();
        let backend = match &self.home {
            // A dead thread drops `to`, which `Pending::wait` reports.
            Home::Thread { .. } => {
                self.send(Command::Step(batch, to));
                None
            }
            Home::Callers(here) => {
                here.begin_step();
                let reply = Box::new(move |result| drop(to.send(result)));
                here.shared.call(|backend| backend.submit(batch, reply));
                Some(Arc::clone(&here.shared))
            }
        };
        Pending { result, backend }
    }

    /// Sets the observer of the steps submitted from here on.
    pub fn observe(&self, observer: Option<Box<dyn OpObserver>>) {
        match &self.home {
            Home::Thread { .. } => self.send(Command::Observe(observer)),
            Home::Callers(here) => {
                here.shared.call(|backend| backend.observe(observer));
            }
        }
    }

    /// Sets the step observer of the steps submitted from here on.
    pub fn observe_steps(&self, observer: Option<Box<dyn StepObserver>>) {
        match &self.home {
            Home::Thread { .. } => self.send(Command::ObserveSteps(observer)),
            Home::Callers(here) => {
                here.shared.call(|backend| backend.observe_steps(observer));
            }
        }
    }

    /// Autotunes the device's launches for about `budget`, and waits for the result.
    pub fn tune(&self, budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        match &self.home {
            Home::Thread { .. } => {
                let (to, result) = mpsc::channel();
                self.send(Command::Tune(budget, to));
                result.recv().unwrap_or_else(|_| Err(no_answer()))
            }
            Home::Callers(here) => {
                let result = here.shared.call(|backend| backend.tune(budget));
                result.unwrap_or_else(|| Err(no_answer()))
            }
        }
    }

    fn send(&self, command: Command) {
        if let Home::Thread {
            commands: Some(commands),
            ..
        } = &self.home
        {
            drop(commands.send(command));
        }
    }
}

impl Executor {
    /// Ends the backend and frees its memory. Steps submitted later fail. Returns the message of the panic that ended it
    /// before, if one did.
    pub fn close(&mut self) -> Option<String> {
        match &mut self.home {
            Home::Thread { commands, thread } => {
                *commands = None;
                let ended = thread.take()?.join();
                ended.err().map(|panic| panic_text(&*panic))
            }
            Home::Callers(here) => here.close(),
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.close();
    }
}

impl Pending {
    /// Waits for the step's result.
    pub fn wait(self) -> Result<StepOutput, RuntimeError> {
        if let Some(backend) = &self.backend {
            loop {
                match self.result.try_recv() {
                    Ok(result) => {
                        backend.end_step();
                        return result;
                    }
                    Err(mpsc::TryRecvError::Disconnected) => return Err(no_answer()),
                    Err(mpsc::TryRecvError::Empty) => {
                        backend.call(|backend| backend.finish(Wait::Oldest))
                    }
                };
            }
        }
        self.result.recv().unwrap_or_else(|_| Err(no_answer()))
    }
}

fn no_answer() -> RuntimeError {
    DeviceError::WorkerGone {
        reason: "it did not reply".into(),
    }
    .into()
}

/// Returns the next command; `None` when the engine is gone.
///
/// An idle device does background work in small pieces while it waits. With steps in flight, replies to finished ones,
/// and waits for one when the limit of steps in flight is reached or the engine is gone.
fn next(
    inbox: &mpsc::Receiver<Command>,
    backend: &mut dyn Backend,
    steps_in_flight: usize,
) -> Option<Command> {
    let (mut idle_work, mut patience) = (IdleWork::Later, IDLE_AFTER);
    loop {
        let n_in_flight = backend.n_in_flight();
        if n_in_flight == 0 && idle_work == IdleWork::Done {
            return inbox.recv().ok();
        }
        if n_in_flight == 0 {
            match inbox.recv_timeout(patience) {
                Ok(command) => return Some(command),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => idle_work = backend.idle(IDLE_SLICE),
            }
            patience = match idle_work {
                IdleWork::Later => IDLE_AFTER,
                IdleWork::Now | IdleWork::Done => Duration::ZERO,
            };
            continue;
        }
        if n_in_flight >= steps_in_flight {
            backend.finish(Wait::Oldest);
            continue;
        }
        match inbox.recv_timeout(POLL) {
            Ok(command) => return Some(command),
            Err(mpsc::RecvTimeoutError::Timeout) => backend.finish(Wait::No),
            Err(mpsc::RecvTimeoutError::Disconnected) => backend.finish(Wait::All),
        }
    }
}

fn gone(thread: JoinHandle<()>) -> RuntimeError {
    let reason = match thread.join() {
        Ok(()) => "it exited while starting".to_string(),
        Err(panic) => panic_text(&*panic),
    };
    DeviceError::WorkerGone { reason }.into()
}

/// Calls a backend or what makes one. A panic becomes an error.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, RuntimeError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let reason = panic_text(&*panic);
        DeviceError::WorkerGone { reason }.into()
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panic").to_string()
}
