//! Renders templates in a process of their own.
//!
//! A template is a program of a stranger. Steps and text can be limited inside
//! the interpreter; memory, the time of one step and the depth of the stack
//! cannot: `x = x ~ x` doubles a string per step, `'a' * 100000000` is computed
//! by the compiler, `x == x` of a list that shares its parts takes 2^n time in
//! one step, and a list nested a million deep overflows the stack when it is
//! freed. Nor is one trial at load enough: a template can behave until the
//! conversation has ten messages or the year is 2027. So every rendering of a
//! file's template runs in a child with a limit on its address space and on its
//! computing time; whatever happens there is an error here. It costs a start of
//! the program, about 2 ms a prompt.
//!
//! The child is a program that calls [`serve`], normally the current one with an
//! argument of its own. Both sides speak one JSON document each way.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{RenderError, TemplateError};
use super::render::{Job, render};

/// What a rendering may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space of the child. Enforced on Linux.
    pub memory_mib: u64,
    /// Computing time of the child.
    pub cpu_seconds: u64,
    /// Time until the child is given up, whatever it waits for.
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

/// How to start a process that renders.
#[derive(Clone, Debug)]
pub struct Sandbox {
    program: PathBuf,
    args: Vec<OsString>,
    limits: Limits,
}

/// What the child reads.
#[derive(Serialize, Deserialize)]
struct Order<'a> {
    limits: Limits,
    #[serde(borrow)]
    job: Job<'a>,
}

/// What the child writes.
type Answer = Result<String, RenderError>;

impl Sandbox {
    /// `program` with `args` must call [`serve`] and write nothing else.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Sandbox {
            program: program.into(),
            args: args.into_iter().collect(),
            limits: Limits::default(),
        }
    }

    /// The same with other limits.
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
        // A child that crashed or was stopped has written half an answer or none.
        match answer.as_deref().map(serde_json::from_slice::<Answer>) {
            Some(Ok(answer)) => Ok(answer?),
            _ => Err(TemplateError::Stopped {
                memory_mib: self.limits.memory_mib,
                seconds: self.limits.cpu_seconds,
            }),
        }
    }
}

/// A child that does not outlive its owner.
struct Running(Child);

impl Running {
    /// Gives `order` to the child and returns all that it answers in time.
    fn ask(&mut self, order: Vec<u8>, time: Duration) -> Option<Vec<u8>> {
        let (mut stdin, mut stdout) = (self.0.stdin.take()?, self.0.stdout.take()?);
        let (send, receive) = mpsc::channel();
        // Ends with the child: killing it closes both pipes.
        std::thread::Builder::new()
            .name("chat-template".into())
            .spawn(move || {
                // A child that died takes no order; its silence says so.
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
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child's side: reads one order from standard input, renders it under its
/// limits, and writes the answer to standard output. The limits stay in force:
/// the process should end after it.
///
/// # Errors
/// The order is not one of [`Sandbox`], or a pipe broke.
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
