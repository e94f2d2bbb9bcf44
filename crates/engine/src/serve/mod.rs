//! Serves any number of clients from one engine.
//!
//! One thread owns the [`Engine`] and steps it while there is work. Clients hold a [`Handle`]: they submit requests and
//! get the events of each as an [`EventStream`]. The thread takes all commands before each step, so an aborted request
//! is not in the next one. It never waits for a client: what a slow one has not read is merged.

mod failure;
mod handle;
mod mailbox;
mod step_clock;
mod stream;
mod worker;

use std::ops::Deref;
use std::thread::JoinHandle;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::stats::Queued;
pub use handle::{Handle, SubmitError};
use rocmforge_runtime::Executor;
pub use stream::{EventStream, PromptScore, StreamEvent, Token, Waited, Watch};
use worker::Worker;

/// Starts a backend again after the device failed.
pub type Restart = Box<dyn FnMut() -> Result<Executor, EngineError> + Send>;

/// How an engine is served.
pub struct ServeOptions {
    /// Requests that may wait for their first admission. More are refused, unless they come together and nothing waits.
    pub max_waiting: usize,
    /// Tokens that their prompts may have, likewise.
    pub max_waiting_tokens: usize,
    /// Replaces a backend that failed. Without it, failed steps are tried again on the same one.
    pub restart: Option<Restart>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            max_waiting: 1024,
            max_waiting_tokens: 4 << 20,
            restart: None,
        }
    }
}

/// An engine on its own thread. Dropping it aborts all requests and waits for the thread.
pub struct Server {
    handle: Handle,
    thread: Option<JoinHandle<Engine>>,
}

/// Moves `engine` to a thread of its own.
///
/// # Errors
/// [`EngineError::Device`] if the system starts no thread.
pub fn serve(engine: Engine, options: ServeOptions) -> Result<Server, EngineError> {
    let ServeOptions {
        max_waiting,
        max_waiting_tokens,
        restart,
    } = options;
    let most = Queued {
        requests: max_waiting,
        tokens: max_waiting_tokens,
    };
    let (handle, commands) = Handle::new(&engine, most);
    let worker = Worker::new(engine, commands, handle.shared(), restart);
    let thread = std::thread::Builder::new()
        .name("rocmforge-engine".into())
        .spawn(move || worker.run())
        .map_err(rocmforge_runtime::DeviceError::Threads)?;
    Ok(Server {
        handle,
        thread: Some(thread),
    })
}

/// What clients use. It can be cloned and sent to other threads.
impl Deref for Server {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Server {
    /// Aborts all requests, ends the thread and returns the engine; `None` if the thread has panicked.
    pub fn stop(mut self) -> Option<Engine> {
        self.end()
    }

    fn end(&mut self) -> Option<Engine> {
        self.handle.stop();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
