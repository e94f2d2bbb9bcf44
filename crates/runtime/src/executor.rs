//! One thread per device, between the engine and the backend: plain data in and out.
//!
//! The device's objects never leave their thread. `submit` returns at once, so the engine can schedule a
//! step while another runs; steps run in the order they were submitted.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::{Backend, BackendInfo, OpObserver, Rest, Wait};
use crate::error::{DeviceError, RuntimeError};
use crate::times::StepObserver;
use crate::tuning::TuneProgress;
use rocmforge_plan::{Batch, StepOutput};

/// How often a device is asked whether a step is over while the engine may still submit another: only the last step of
/// all requests is waited for so.
const POLL: Duration = Duration::from_micros(100);

/// A device that has had no step for so long is idle: nobody waits for an answer that comes in between.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// How long a request may wait for an idle device to leave what it does.
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

/// A running device.
pub struct Executor {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    info: BackendInfo,
}

/// A step that was submitted.
pub struct Pending {
    result: mpsc::Receiver<Result<StepOutput, RuntimeError>>,
}

impl Executor {
    /// Starts the device's thread; `make` runs on it and builds the backend there, and what else it finds out.
    /// A step is waited for only when `steps_in_flight` have no reply.
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
                    // The engine may be gone; then nobody wants the result.
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

    /// Adds what the backend does not know of how it came about.
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

    /// Sets who is told what the steps take that are submitted from here on.
    pub fn observe_steps(&self, observer: Option<Box<dyn StepObserver>>) {
        self.send(Command::ObserveSteps(observer));
    }

    /// Lets the device measure launches for about `budget`, and waits for it.
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

impl Drop for Executor {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
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
        reason: "it did not answer".into(),
    }
    .into()
}

/// The next command. A device that has waited a while for one does what it can do meanwhile, piece by piece. While steps
/// are in flight it replies to those that are over, and waits for one if the engine does: when there is no room for more,
/// or nobody to send more.
fn next(
    inbox: &mpsc::Receiver<Command>,
    backend: &mut dyn Backend,
    steps_in_flight: usize,
) -> Option<Command> {
    let (mut rest, mut patience) = (Rest::Later, IDLE_AFTER);
    loop {
        let n_in_flight = backend.n_in_flight();
        if n_in_flight == 0 && rest == Rest::Nothing {
            return inbox.recv().ok();
        }
        if n_in_flight == 0 {
            match inbox.recv_timeout(patience) {
                Ok(command) => return Some(command),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => rest = backend.idle(IDLE_SLICE),
            }
            patience = match rest {
                Rest::Later => IDLE_AFTER,
                Rest::Now | Rest::Nothing => Duration::ZERO,
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
        Ok(()) => "it ended while starting".to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("panic")
                .to_string()
        }
    };
    DeviceError::WorkerGone { reason }.into()
}
