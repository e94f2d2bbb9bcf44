//! The executor: runs a backend on its own thread and exchanges plain data with it.
//!
//! The backend's objects never leave that thread. `submit` returns at once, so the engine can schedule a step while
//! another runs. Steps run in the order they were submitted.

use std::any::Any;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::{Backend, BackendInfo, IdleWork, OpObserver, Wait};
use crate::error::{DeviceError, RuntimeError};
use crate::times::StepObserver;
use crate::tuning::TuneProgress;
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

/// A backend on its own thread.
pub struct Executor {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    info: BackendInfo,
}

/// A submitted step.
pub struct Pending {
    result: mpsc::Receiver<Result<StepOutput, RuntimeError>>,
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
                let executor = Executor {
                    commands: Some(commands),
                    thread: Some(thread),
                    info,
                };
                Ok((executor, found))
            }
            Ok(Err(error)) => {
                // The thread has returned or is about to: it sends the error last.
                drop(thread.join());
                Err(error)
            }
            Err(mpsc::RecvError) => Err(gone(thread)),
        }
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
        // A dead thread drops `to`, which `Pending::wait` reports.
        self.send(Command::Step(batch, to));
        Pending { result }
    }

    /// Sets the observer of the steps submitted from here on.
    pub fn observe(&self, observer: Option<Box<dyn OpObserver>>) {
        self.send(Command::Observe(observer));
    }

    /// Sets the step observer of the steps submitted from here on.
    pub fn observe_steps(&self, observer: Option<Box<dyn StepObserver>>) {
        self.send(Command::ObserveSteps(observer));
    }

    /// Autotunes the device's launches for about `budget`, and waits for the result.
    pub fn tune(&self, budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        let (to, result) = mpsc::channel();
        self.send(Command::Tune(budget, to));
        result.recv().unwrap_or_else(|_| Err(no_answer()))
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            drop(commands.send(command));
        }
    }
}

impl Executor {
    /// Ends the device's thread and frees the backend's memory. Steps submitted later fail. Returns the message of the
    /// panic that ended the thread before, if one did.
    pub fn close(&mut self) -> Option<String> {
        self.commands = None;
        let ended = self.thread.take()?.join();
        ended.err().map(|panic| panic_text(&*panic))
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

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panic").to_string()
}
