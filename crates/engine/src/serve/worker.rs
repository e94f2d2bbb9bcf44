//! The engine's thread.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::Restart;
use super::failure::PanicGuard;
use super::handle::{Command, Shared};
use super::mailbox::Outbox;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::event::{Event, Failure};
use crate::request::RequestId;

/// Restarts of the backend without a computed step between them, besides those that find out which request is at fault.
const MAX_RESTARTS: u32 = 3;
/// Time after a restart that failed; twice as long after a second one.
const RESTART_AFTER: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    /// The first field is dropped first, before streams end: who reads that finds the failure.
    _panics: PanicGuard,
    engine: Engine,
    commands: mpsc::Receiver<Command>,
    outboxes: HashMap<RequestId, Outbox>,
    shared: Arc<Shared>,
    restart: Option<Restart>,
    /// Restarts since the last computed step.
    n_restarts: u32,
    /// Steps that had been computed at the last restart.
    n_computed_then: u64,
}

impl Worker {
    pub(super) fn new(
        engine: Engine,
        commands: mpsc::Receiver<Command>,
        shared: Arc<Shared>,
        restart: Option<Restart>,
    ) -> Worker {
        Worker {
            _panics: PanicGuard(Arc::clone(&shared.failure)),
            engine,
            commands,
            outboxes: HashMap::new(),
            shared,
            restart,
            n_restarts: 0,
            n_computed_then: 0,
        }
    }

    /// Serves until it is told to stop, until there are no clients, or until the device is lost. Returns the engine
    /// without requests.
    pub(super) fn run(mut self) -> Engine {
        while self.take_commands() == ControlFlow::Continue(()) {
            let step = self.shared.step_clock.time(|| self.engine.step());
            match step {
                Ok(events) => self.send(events),
                Err(error) => {
                    if let Err(failure) = self.recover(error) {
                        self.shared.failure.set(failure.clone());
                        self.fail_all(&failure);
                        break;
                    }
                }
            }
        }
        for id in self.outboxes.keys().copied().collect::<Vec<_>>() {
            self.abort(id);
        }
        self.shared.publish(&self.engine);
        self.engine
    }

    /// Takes all commands, and waits for one if there is nothing else to do.
    fn take_commands(&mut self) -> ControlFlow<()> {
        if self.engine.is_idle() {
            match self.commands.recv() {
                Ok(command) => self.obey(command)?,
                Err(mpsc::RecvError) => return ControlFlow::Break(()),
            }
        }
        // Without clients, all requests have been aborted, and the engine is idle soon.
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command)?;
        }
        self.shared.publish(&self.engine);
        ControlFlow::Continue(())
    }

    fn obey(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Submit(sequences) => {
                for (sequence, outbox) in sequences {
                    let id = sequence.id;
                    match self.engine.add(sequence) {
                        Ok(()) => drop(self.outboxes.insert(id, outbox)),
                        Err(failure) => outbox.fail(failure),
                    }
                }
            }
            Command::Abort(id) => self.abort(id),
            Command::Call(work) => work(&mut self.engine),
            Command::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn abort(&mut self, id: RequestId) {
        let event = self.engine.abort(id);
        self.send(event);
    }

    /// Sends events to the streams of their requests, after the state that they led to.
    fn send(&mut self, events: impl IntoIterator<Item = Event>) {
        self.shared.publish(&self.engine);
        let at = Instant::now();
        for event in events {
            let id = event.request();
            let is_last = matches!(event, Event::Finished { .. } | Event::Failed { .. });
            if let Some(outbox) = self.outboxes.get(&id) {
                outbox.send(event, at);
            }
            if is_last {
                self.outboxes.remove(&id);
            }
        }
    }

    /// Decides what to do after the engine's step failed. The engine keeps its requests.
    ///
    /// # Errors
    /// The failure of all requests, if there is no device to continue on.
    fn recover(&mut self, mut error: EngineError) -> Result<(), Failure> {
        let Some(restart) = &mut self.restart else {
            return match error {
                EngineError::Device(error) if error.is_loss() => {
                    Err(Failure::Device(Arc::new(error.into())))
                }
                // The next step tells whether the request is at fault.
                _ => Ok(()),
            };
        };
        let n_computed = self.engine.n_computed_steps();
        if n_computed != self.n_computed_then {
            self.n_computed_then = n_computed;
            self.n_restarts = 0;
        }
        self.engine.close_backend();
        // Each loss that a request causes halves the requests that may have caused it.
        let n_to_find = self.outboxes.len().max(1).ilog2();
        let mut n_failed = 0;
        while self.n_restarts < MAX_RESTARTS + n_to_find {
            std::thread::sleep(RESTART_AFTER * n_failed);
            self.n_restarts += 1;
            match restart() {
                Ok(executor) => {
                    self.engine.restart(executor);
                    return Ok(());
                }
                Err(again) => error = again,
            }
            n_failed += 1;
        }
        Err(match error {
            EngineError::Device(error) => Failure::Device(Arc::new(error.into())),
            EngineError::Config(error) => Failure::Device(Arc::new(error.into())),
            EngineError::Request(_) | EngineError::Failed(_) => Failure::EngineStopped,
        })
    }

    fn fail_all(&mut self, failure: &Failure) {
        for (id, outbox) in self.outboxes.drain() {
            self.engine.abort(id);
            self.shared.publish(&self.engine);
            outbox.fail(failure.clone());
        }
        // Those that the thread has not taken yet.
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(sequences) = command {
                for (_, outbox) in sequences {
                    outbox.fail(failure.clone());
                }
            }
        }
    }
}
