//! One thread per device, between the engine and the backend: plain data in and out.
//!
//! The device's objects never leave their thread. `submit` returns at once, so the engine can schedule a
//! step while another runs; steps run in the order they were submitted.

use std::sync::mpsc;
use std::thread::JoinHandle;

use crate::backend::{Backend, BackendInfo, OpObserver};
use crate::batch::{Batch, StepOutput};
use crate::error::EngineError;

enum Command {
    Step(Batch, mpsc::Sender<Result<StepOutput, EngineError>>),
    Observe(Option<Box<dyn OpObserver>>),
}

/// A running device.
pub(crate) struct Executor {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    info: BackendInfo,
}

/// A step that was submitted.
pub(crate) struct Pending {
    result: mpsc::Receiver<Result<StepOutput, EngineError>>,
}

impl Executor {
    /// Starts the device's thread; `make` runs on it and builds the backend there.
    pub(crate) fn start<B: Backend + 'static>(
        make: impl FnOnce() -> Result<B, EngineError> + Send + 'static,
    ) -> Result<Executor, EngineError> {
        let (commands, inbox) = mpsc::channel::<Command>();
        let (ready, made) = mpsc::channel();
        let work = move || {
            let mut backend = match make() {
                Ok(backend) => backend,
                Err(error) => return drop(ready.send(Err(error))),
            };
            if ready.send(Ok(backend.info())).is_err() {
                return;
            }
            for command in inbox {
                match command {
                    // The engine may be gone; then nobody wants the result.
                    Command::Step(batch, to) => {
                        backend.submit(batch, Box::new(move |result| drop(to.send(result))))
                    }
                    Command::Observe(observer) => backend.observe(observer),
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("rocmforge-device".into())
            .spawn(work)
            .map_err(EngineError::Threads)?;
        match made.recv() {
            Ok(Ok(info)) => Ok(Executor {
                commands: Some(commands),
                thread: Some(thread),
                info,
            }),
            Ok(Err(error)) => {
                // The thread has returned or is about to: it sends the error last.
                drop(thread.join());
                Err(error)
            }
            Err(mpsc::RecvError) => Err(gone(thread)),
        }
    }

    pub(crate) fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// Queues a step.
    pub(crate) fn submit(&self, batch: Batch) -> Pending {
        let (to, result) = mpsc::channel();
        // A dead thread drops `to`, which `Pending::wait` reports.
        self.send(Command::Step(batch, to));
        Pending { result }
    }

    /// Sets the observer of the steps submitted from here on.
    pub(crate) fn observe(&self, observer: Option<Box<dyn OpObserver>>) {
        self.send(Command::Observe(observer));
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
    pub(crate) fn wait(self) -> Result<StepOutput, EngineError> {
        self.result.recv().unwrap_or_else(|_| {
            Err(EngineError::WorkerGone {
                reason: "it did not answer a step".into(),
            })
        })
    }
}

fn gone(thread: JoinHandle<()>) -> EngineError {
    let reason = match thread.join() {
        Ok(()) => "it ended while starting".to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("panic")
                .to_string()
        }
    };
    EngineError::WorkerGone { reason }
}
