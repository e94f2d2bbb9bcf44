//! Renders templates in a separate process.
//!
//! A template is a program from an unknown source. The interpreter can limit steps and output, but not memory, the time
//! of one step or stack depth: `x = x ~ x` doubles a string per step, `'a' * 100000000` is computed by the compiler,
//! `x == x` of a list that shares its parts takes 2^n time in one step, and a list nested a million deep overflows the
//! stack when it is freed. A trial at load is not enough either: a template can behave until the conversation has ten
//! messages or the year is 2027. So every rendering of a file's template runs in a child process with limits on address
//! space and CPU time, and whatever happens there is an error here. The cost is one process start, about 2 ms per
//! prompt.
//!
//! The child is a program that calls [`serve`], normally the current program with a special argument. Each side sends
//! one JSON document.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{RenderError, TemplateError};
use super::render::{Job, render};

/// Limits of one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space of the child in MiB. Enforced on Linux.
    pub memory_mib: u64,
    /// CPU time of the child.
    pub cpu_seconds: u64,
    /// Time after which the child is killed, whatever it waits for.
    pub wall_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_mib: 512,
            cpu_seconds: 2,
            wall_seconds: 20,
        }
    }
}

/// How to start the process that renders.
#[derive(Clone, Debug)]
pub struct Sandbox {
    program: PathBuf,
    args: Vec<OsString>,
    limits: Limits,
}

/// The input of the child.
#[derive(Serialize, Deserialize)]
struct Order<'a> {
    limits: Limits,
    #[serde(borrow)]
    job: Job<'a>,
}

/// The output of the child.
type Answer = Result<String, RenderError>;

impl Sandbox {
    /// Creates a sandbox. `program` with `args` must call [`serve`] and write nothing else to standard output.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Sandbox {
            program: program.into(),
            args: args.into_iter().collect(),
            limits: Limits::default(),
        }
    }

    /// Sets other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Sandbox { limits, ..self }
    }

    pub(super) fn render(&self, job: Job<'_>) -> Result<String, TemplateError> {
        let order = serde_json::to_vec(&Order {
            limits: self.limits,
            job,
        })
        .map_err(|error| TemplateError::Process(error.into()))?;
        let mut child = Running(
            Command::new(&self.program)
                .args(&self.args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(TemplateError::Process)?,
        );
        let answer = child.ask(order, Duration::from_secs(self.limits.wall_seconds));
        // A child that crashed or was stopped wrote half an answer or none.
        match answer.as_deref().map(serde_json::from_slice::<Answer>) {
            Some(Ok(answer)) => Ok(answer?),
            _ => Err(TemplateError::Stopped {
                memory_mib: self.limits.memory_mib,
                seconds: self.limits.cpu_seconds,
            }),
        }
    }
}

/// A child process that is killed on drop.
struct Running(Child);

impl Running {
    /// Sends `order` to the child; returns its whole answer if it comes in time.
    fn ask(&mut self, order: Vec<u8>, time: Duration) -> Option<Vec<u8>> {
        let (mut stdin, mut stdout) = (self.0.stdin.take()?, self.0.stdout.take()?);
        let (send, receive) = mpsc::channel();
        // The thread ends with the child, because killing that closes both pipes.
        std::thread::Builder::new()
            .name("chat-template".into())
            .spawn(move || {
                // If the child died, this fails, and the missing answer tells us.
                let _ = stdin.write_all(&order);
                drop(stdin);
                let mut answer = Vec::new();
                let _ = stdout.read_to_end(&mut answer);
                let _ = send.send(answer);
            })
            .ok()?;
        receive.recv_timeout(time).ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child's side: reads one order from standard input, renders it under its limits, and writes the answer to
/// standard output. The limits stay in force, so the process should end afterwards.
///
/// # Errors
/// If the order was not written by [`Sandbox`], or a pipe broke.
pub fn serve() -> io::Result<()> {
    let mut order = Vec::new();
    io::stdin().read_to_end(&mut order)?;
    let order: Order<'_> = serde_json::from_slice(&order)?;
    apply(order.limits)?;
    let answer: Answer = render(&order.job);
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, &answer)?;
    stdout.flush()
}

#[cfg(unix)]
fn apply(limits: Limits) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = |value| Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    setrlimit(Resource::Core, limit(0))?;
    setrlimit(Resource::Cpu, limit(limits.cpu_seconds))?;
    setrlimit(Resource::As, limit(limits.memory_mib << 20))?;
    Ok(())
}

#[cfg(not(unix))]
fn apply(_: Limits) -> io::Result<()> {
    Ok(())
}
