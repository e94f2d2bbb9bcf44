//! Renders templates in a separate process.
//!
//! A template is a program from an unknown source. The interpreter can limit steps and output, but not memory, the time
//! of one step or stack depth: `x = x ~ x` doubles a string per step, `'a' * 100000000` is computed by the compiler,
//! `x == x` of a list that shares its parts takes 2^n time in one step, and a list nested a million deep overflows the
//! stack when it is freed. A trial at load is not enough either: a template can behave until the conversation has ten
//! messages or the year is 2027. So every rendering of a file's template runs in a child process with limits on address
//! space and CPU time, and whatever happens there is an error here.
//!
//! A process start takes about 2 ms, so a child that has answered is kept for further prompts. It ends after a failure,
//! after some hundred prompts, or when it has grown. A failure in a child that was used before is tried again in a fresh one, so
//! an outcome does not depend on what was rendered before.
//!
//! The child is a program that calls [`serve`], normally the current program with a special argument. It reads JSON
//! documents and answers each with the text or, in JSON, an error; the first byte says which. Before each of them stands
//! its length, as 8 bytes.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{RenderError, TemplateError};
use super::render::{Job, MAX_TEXT_BYTES, render};

/// Limits of one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space of the child in MiB. Enforced on Linux.
    pub memory_mib: u64,
    /// CPU time of the child. One that was used before may take up to a second more.
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
    /// Children that have answered.
    idle: Arc<Mutex<Vec<Renderer>>>,
}

/// The input of the child.
#[derive(Serialize, Deserialize)]
struct Order<'a> {
    limits: Limits,
    #[serde(borrow)]
    job: Job<'a>,
}

/// First byte of an answer that continues with the text.
const TEXT: u8 = b'+';
/// First byte of an answer that continues with a [`RenderError`] in JSON.
const ERROR: u8 = b'-';
/// Longest answer to read. Messages of errors are much shorter than a text may be.
const MAX_ANSWER_BYTES: usize = 1 + MAX_TEXT_BYTES;
/// Prompts that one child renders.
const MAX_USES: usize = 256;
/// Memory of a child that is kept.
#[cfg(target_os = "linux")]
const MAX_KEPT_BYTES: usize = 64 << 20;

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
            idle: Arc::default(),
        }
    }

    /// Sets other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Sandbox { limits, ..self }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Renderer>> {
        // No code panics while it holds the lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn render(&self, job: Job<'_>) -> Result<String, TemplateError> {
        let limits = self.limits.within_own();
        let order = serde_json::to_vec(&Order { limits, job })
            .map_err(|error| TemplateError::Process(error.into()))?;
        let (order, time) = (Arc::new(order), Duration::from_secs(limits.wall_seconds));
        // The limits of this process are those of a child's whole life, so a child under them is used once.
        let keeps = limits == self.limits;
        let used = match keeps {
            true => self.idle().pop(),
            false => None,
        };
        let answer = used.and_then(|child| self.ask(child, &order, time));
        let answer = match answer {
            Some(answer) => Some(answer),
            None => {
                let child = Renderer::start(&self.program, &self.args)?;
                match keeps {
                    true => self.ask(child, &order, time),
                    false => child.ask(&order, time).as_deref().and_then(parse),
                }
            }
        };
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
        match answer {
            Some(answer) => Ok(answer?),
            None => Err(stopped),
        }
    }

    /// Lets a child render, and keeps it if it may be used again.
    fn ask(
        &self,
        mut child: Renderer,
        order: &Arc<Vec<u8>>,
        time: Duration,
    ) -> Option<Result<String, RenderError>> {
        let answer = parse(&child.ask(order, time)?)?;
        child.n_uses += 1;
        if child.n_uses < MAX_USES {
            self.idle().push(child);
        }
        Some(answer)
    }
}

/// Parses an answer; `None` if it is none.
fn parse(answer: &[u8]) -> Option<Result<String, RenderError>> {
    match answer.split_first()? {
        (&TEXT, text) => Some(Ok(std::str::from_utf8(text).ok()?.to_owned())),
        (&ERROR, rest) => serde_json::from_slice(rest).ok().map(Err),
        _ => None,
    }
}

/// A child that renders, and the thread that writes to it and reads from it.
#[derive(Debug)]
struct Renderer {
    // Killing the child ends the thread.
    _process: Running,
    orders: mpsc::Sender<Arc<Vec<u8>>>,
    answers: mpsc::Receiver<Vec<u8>>,
    n_uses: usize,
}

/// A child process that is killed on drop.
#[derive(Debug)]
struct Running(Child);

impl Renderer {
    fn start(program: &Path, args: &[OsString]) -> Result<Renderer, TemplateError> {
        let mut process = Running(
            Command::new(program)
                .args(args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(TemplateError::Process)?,
        );
        let pipes = (process.0.stdin.take(), process.0.stdout.take());
        let (Some(mut stdin), Some(mut stdout)) = pipes else {
            unreachable!("both are pipes");
        };
        let (orders, to_write) = mpsc::channel::<Arc<Vec<u8>>>();
        let (send, answers) = mpsc::channel();
        std::thread::Builder::new()
            .name("chat-template".into())
            .spawn(move || {
                for order in to_write {
                    // If the child died, this fails, and the missing answer tells us.
                    let _ = write_document(&mut stdin, &order);
                    let Ok(Some(answer)) = read_document(&mut stdout, MAX_ANSWER_BYTES) else {
                        return;
                    };
                    if send.send(answer).is_err() {
                        return;
                    }
                }
            })
            .map_err(TemplateError::Process)?;
        Ok(Renderer {
            _process: process,
            orders,
            answers,
            n_uses: 0,
        })
    }

    /// Sends `order` to the child; returns its whole answer if it comes in time.
    fn ask(&self, order: &Arc<Vec<u8>>, time: Duration) -> Option<Vec<u8>> {
        self.orders.send(Arc::clone(order)).ok()?;
        self.answers.recv_timeout(time).ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_document(to: &mut impl Write, document: &[u8]) -> io::Result<()> {
    to.write_all(&(document.len() as u64).to_le_bytes())?;
    to.write_all(document)?;
    to.flush()
}

/// Reads a document; `None` if there are no more.
fn read_document(from: &mut impl Read, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    let mut document = Vec::new();
    if length <= max_bytes as u64 {
        from.take(length).read_to_end(&mut document)?;
    }
    match document.len() as u64 == length {
        true => Ok(Some(document)),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The child's side: reads orders from standard input, renders each under its limits, and writes the answers to standard
/// output. Returns when there are no more, or when the process has become too large to be kept. The limits stay in force,
/// so the process should end afterwards.
///
/// # Errors
/// If an order was not written by [`Sandbox`], or a pipe broke.
pub fn serve() -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    let mut is_first = true;
    while let Some(order) = read_document(&mut stdin, usize::MAX)? {
        let order: Order<'_> = serde_json::from_slice(&order)?;
        match std::mem::take(&mut is_first) {
            true => apply(order.limits)?,
            false => allow_time(order.limits)?,
        }
        let answer = match render(&order.job) {
            Ok(text) => [&[TEXT][..], text.as_bytes()].concat(),
            Err(error) => {
                let mut answer = vec![ERROR];
                serde_json::to_writer(&mut answer, &error)?;
                answer
            }
        };
        write_document(&mut stdout, &answer)?;
        drop(answer);
        if has_grown() {
            break;
        }
    }
    Ok(())
}

/// Whether the process holds so much memory that a fresh one is better.
#[cfg(target_os = "linux")]
fn has_grown() -> bool {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    resident.is_none_or(|pages: usize| pages * rustix::param::page_size() > MAX_KEPT_BYTES)
}

#[cfg(not(target_os = "linux"))]
fn has_grown() -> bool {
    false
}

/// Gives a process that has used some of its CPU time as much again.
#[cfg(unix)]
fn allow_time(limits: Limits) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let used = u64::try_from(used.tv_sec).unwrap_or(0) + 1;
    let limit = Rlimit {
        current: Some(used + limits.cpu_seconds),
        ..getrlimit(Resource::Cpu)
    };
    Ok(setrlimit(Resource::Cpu, limit)?)
}

#[cfg(not(unix))]
fn allow_time(_: Limits) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn apply(limits: Limits) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = |value| Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    let cpu = Rlimit {
        current: Some(limits.cpu_seconds),
        ..getrlimit(Resource::Cpu)
    };
    setrlimit(Resource::Core, limit(0))?;
    setrlimit(Resource::Cpu, cpu)?;
    setrlimit(Resource::As, limit(limits.memory_mib << 20))?;
    Ok(())
}

#[cfg(not(unix))]
fn apply(_: Limits) -> io::Result<()> {
    Ok(())
}
