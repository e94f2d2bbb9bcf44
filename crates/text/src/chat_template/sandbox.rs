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
//! The child is a program that calls [`serve`], normally the current program with a special argument. It reads one JSON
//! document and answers with the text or, in JSON, an error; the first byte says which.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{RenderError, TemplateError};
use super::render::{Job, MAX_TEXT_BYTES, render};

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

/// First and last byte of an answer with the text between them.
const TEXT: u8 = b'+';
/// First byte of an answer that continues with a [`RenderError`] in JSON.
const ERROR: u8 = b'-';
/// Longest answer to read. Messages of errors are much shorter than a text may be.
const MAX_ANSWER_BYTES: usize = 2 + MAX_TEXT_BYTES;

impl Limits {
    /// Lowers the limits to those of this process, which a child inherits and cannot raise.
    #[cfg(unix)]
    fn within_own(self) -> Limits {
        use rustix::process::{Resource, getrlimit};
        let own = |resource| {
            let limit = getrlimit(resource);
            let [soft, hard] = [limit.current, limit.maximum].map(|n| n.unwrap_or(u64::MAX));
            soft.min(hard)
        };
        Limits {
            memory_mib: self.memory_mib.min(own(Resource::As) >> 20),
            cpu_seconds: self.cpu_seconds.min(own(Resource::Cpu)),
            ..self
        }
    }

    #[cfg(not(unix))]
    fn within_own(self) -> Limits {
        self
    }
}

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
        let limits = self.limits.within_own();
        let order = serde_json::to_vec(&Order { limits, job })
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
        let answer = child.ask(order, Duration::from_secs(limits.wall_seconds));
        // A child that crashed or was stopped wrote half an answer or none.
        let stopped = match limits == self.limits {
            true => TemplateError::Stopped {
                memory_mib: limits.memory_mib,
                seconds: limits.cpu_seconds,
            },
            false => TemplateError::OwnLimits {
                memory_mib: limits.memory_mib,
                seconds: limits.cpu_seconds,
            },
        };
        match answer.as_deref().map(parse) {
            Some(Some(answer)) => Ok(answer?),
            _ => Err(stopped),
        }
    }
}

/// Parses an answer; `None` if it is not complete.
fn parse(answer: &[u8]) -> Option<Result<String, RenderError>> {
    match answer.split_first()? {
        (&TEXT, rest) => {
            // The last byte shows that the text is complete.
            let text = rest.strip_suffix(&[TEXT])?;
            Some(Ok(std::str::from_utf8(text).ok()?.to_owned()))
        }
        (&ERROR, rest) => serde_json::from_slice(rest).ok().map(Err),
        _ => None,
    }
}

/// A child process that is killed on drop.
struct Running(Child);

impl Running {
    /// Sends `order` to the child; returns its whole answer if it comes in time.
    fn ask(&mut self, order: Vec<u8>, time: Duration) -> Option<Vec<u8>> {
        let (mut stdin, stdout) = (self.0.stdin.take()?, self.0.stdout.take()?);
        let (send, receive) = mpsc::channel();
        // The thread ends with the child, because killing that closes both pipes.
        std::thread::Builder::new()
            .name("chat-template".into())
            .spawn(move || {
                // If the child died, this fails, and the missing answer tells us.
                let _ = stdin.write_all(&order);
                drop(stdin);
                let mut answer = Vec::new();
                let _ = stdout
                    .take(MAX_ANSWER_BYTES as u64)
                    .read_to_end(&mut answer);
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
    let answer = render(&order.job);
    let mut stdout = io::stdout().lock();
    match answer {
        Ok(text) => {
            stdout.write_all(&[TEXT])?;
            stdout.write_all(text.as_bytes())?;
            stdout.write_all(&[TEXT])?;
        }
        Err(error) => {
            stdout.write_all(&[ERROR])?;
            serde_json::to_writer(&mut stdout, &error)?;
        }
    }
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
