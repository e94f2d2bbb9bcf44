//! Runs a tool with a time limit, a limit on kept output, and cancellation.
//!
//! Each tool gets its own process group, because a profiler starts the profiled program: stopping one must stop both.
//! Its stdin is empty, since a background process group may not read the terminal.

use std::io::{self, Read};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::command::CommandLine;
use super::error::ExternalError;

/// When to stop a process.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    pub timeout: Option<Duration>,
    /// Polled many times per second.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Advice for the error message of a timeout.
    pub hint: &'static str,
}

impl Limits<'_> {
    /// Limits only the time.
    pub fn timeout(timeout: Duration) -> Limits<'static> {
        Limits {
            timeout: Some(timeout),
            cancelled: &|| false,
            hint: "it may be broken on this machine",
        }
    }
}

/// Exit status and output of a process.
#[derive(Debug)]
pub struct Captured {
    pub status: ExitStatus,
    /// The first [`MAX_STDOUT`] bytes of stdout.
    pub stdout: Vec<u8>,
    /// Whether stdout was longer.
    pub cut: bool,
    /// The last [`MAX_STDERR`] bytes of stderr.
    pub stderr: Vec<u8>,
}

impl Captured {
    /// Returns the end of stderr, or of stdout if that is empty, for an error message.
    pub fn last_words(&self) -> String {
        let said = [&self.stderr, &self.stdout]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_string());
        let said = said.into_iter().find(|text| !text.is_empty());
        let said = said.unwrap_or_else(|| "it printed nothing".to_string());
        let lines: Vec<&str> = said.lines().rev().take(4).collect();
        let lines: Vec<&str> = lines.into_iter().rev().map(str::trim).collect();
        printable(&lines.join(" / "), 400)
    }

    /// Returns the kept parts of stderr and stdout.
    pub fn text(&self) -> String {
        let (err, out) = (
            String::from_utf8_lossy(&self.stderr),
            String::from_utf8_lossy(&self.stdout),
        );
        format!("{err}\n{out}")
    }
}

/// Most bytes of stdout kept.
pub const MAX_STDOUT: usize = 16 << 20;

/// Most bytes of stderr kept.
pub const MAX_STDERR: usize = 256 << 10;

/// How long the pipes of an ended process may stay open; a process it left behind can hold them.
const PIPE_GRACE: Duration = Duration::from_secs(2);

/// How long a process may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(1);

/// Runs `command` to its end.
///
/// # Errors
/// If it cannot be started, takes too long or is cancelled. A failing exit status is not an error here.
pub fn run(command: &CommandLine, limits: &Limits<'_>) -> Result<Captured, ExternalError> {
    let mut child = Group::spawn(command)?;
    let stdout = collect(child.0.stdout.take(), Keep::First(MAX_STDOUT));
    let stderr = collect(child.0.stderr.take(), Keep::Last(MAX_STDERR));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.ended()? {
            break status;
        }
        let program = command.name();
        if (limits.cancelled)() {
            return Err(ExternalError::Cancelled { program });
        }
        if let Some(timeout) = limits.timeout
            && start.elapsed() >= timeout
        {
            return Err(ExternalError::TimedOut {
                program,
                seconds: timeout.as_secs_f64(),
                hint: limits.hint,
            });
        }
        // Short waits first, so that fast tools are not delayed; longer ones later, so that polling costs little.
        thread::sleep(
            start
                .elapsed()
                .clamp(Duration::from_millis(1), Duration::from_millis(20)),
        );
    };
    let (stdout, cut) = stdout.recv_timeout(PIPE_GRACE).unwrap_or_default();
    let (stderr, _) = stderr.recv_timeout(PIPE_GRACE).unwrap_or_default();
    Ok(Captured {
        status,
        stdout,
        cut,
        stderr,
    })
}

/// A process group that is killed when this is dropped.
pub(super) struct Group(pub(super) Child);

impl Group {
    /// Starts `command` with pipes for stdout and stderr.
    pub(super) fn spawn(command: &CommandLine) -> Result<Group, ExternalError> {
        let mut started = command.to_command();
        started
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut started, 0);
        let child = started.spawn().map_err(|source| ExternalError::Start {
            program: command.name(),
            source,
        })?;
        Ok(Group(child))
    }

    /// Returns the exit status if the process has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>, ExternalError> {
        let ended = self.0.try_wait();
        ended.map_err(|source| ExternalError::io("wait for", "the tool", source))
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        // It may have ended already.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(pid, signal);
    }

    /// Kills the processes that still run.
    #[cfg(unix)]
    fn end(&mut self) {
        use rustix::process::Signal;
        if let Ok(Some(_)) = self.0.try_wait() {
            return;
        }
        self.signal(Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < TERM_GRACE && !matches!(self.0.try_wait(), Ok(Some(_))) {
            thread::sleep(Duration::from_millis(10));
        }
        // The group id stays reserved while a member lives, so no unrelated process is hit.
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }

    #[cfg(not(unix))]
    fn end(&mut self) {
        let _ = TERM_GRACE;
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Clone, Copy)]
enum Keep {
    First(usize),
    Last(usize),
}

/// Reads a pipe to its end on its own thread, keeps a part, and tells whether there was more.
pub(super) fn collect_last(
    pipe: Option<impl Read + Send + 'static>,
) -> mpsc::Receiver<(Vec<u8>, bool)> {
    collect(pipe, Keep::Last(MAX_STDERR))
}

fn collect(
    pipe: Option<impl Read + Send + 'static>,
    keep: Keep,
) -> mpsc::Receiver<(Vec<u8>, bool)> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut cut = false;
        let mut buffer = [0; 16 << 10];
        if let Some(mut pipe) = pipe {
            loop {
                let n = match pipe.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) => n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                match keep {
                    Keep::First(max) => {
                        let fits = n.min(max - kept.len());
                        kept.extend_from_slice(&buffer[..fits]);
                        cut |= fits < n;
                    }
                    Keep::Last(max) => {
                        kept.extend_from_slice(&buffer[..n]);
                        if kept.len() > max {
                            kept.drain(..kept.len() - max);
                            cut = true;
                        }
                    }
                }
            }
        }
        // The receiver is gone if the process was stopped.
        let _ = send.send((kept, cut));
    });
    receive
}

/// Makes untrusted text printable: without control characters, and at most `max` characters.
pub(super) fn printable(text: &str, max: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(max + 1)
        .collect();
    match clean.chars().count() > max {
        true => clean.chars().take(max).chain("...".chars()).collect(),
        false => clean,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn sh(script: &str) -> CommandLine {
        CommandLine::new("sh").args(["-c", script])
    }

    fn limits(timeout: Duration) -> Limits<'static> {
        Limits {
            hint: "try less",
            ..Limits::timeout(timeout)
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn returns_output_and_status() {
        let done = run(&sh("echo out; echo err >&2; exit 3"), &limits(LONG)).unwrap();
        assert_eq!(
            (&done.stdout[..], &done.stderr[..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(done.status.code(), Some(3));
        assert_eq!(done.last_words(), "err");
        let gone = run(&CommandLine::new("/no/such/program"), &limits(LONG));
        assert!(matches!(gone, Err(ExternalError::Start { .. })), "{gone:?}");
    }

    #[test]
    fn truncates_long_output() {
        let script = "head -c 20000000 /dev/zero; yes error | head -n 200000 >&2; echo end >&2";
        let done = run(&sh(script), &limits(LONG)).unwrap();
        assert_eq!((done.stdout.len(), done.cut), (MAX_STDOUT, true));
        assert_eq!(done.stderr.len(), MAX_STDERR);
        assert!(
            done.last_words().ends_with("error / end"),
            "{}",
            done.last_words()
        );
    }

    /// Whether a process runs; a zombie does not.
    fn runs(pid: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|text| !text.contains("State:\tZ"))
    }

    #[test]
    fn timeout_kills_the_children_too() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        // A tool that waits for a child that ignores SIGTERM.
        let script = format!(
            "sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 0.1; done' & wait",
            file.display()
        );
        let started = || std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'));
        let cancelled = || started();
        let stopped = run(
            &sh(&script),
            &Limits {
                cancelled: &cancelled,
                ..limits(LONG)
            },
        );
        assert!(
            matches!(stopped, Err(ExternalError::Cancelled { .. })),
            "{stopped:?}"
        );
        let pid = std::fs::read_to_string(&file).unwrap();
        let start = Instant::now();
        while runs(pid.trim()) && start.elapsed() < LONG {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!runs(pid.trim()), "{pid} lives");

        let error = run(&sh("sleep 1000"), &limits(Duration::ZERO)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sh did not end within 0 s") && text.ends_with("try less"),
            "{text}"
        );
    }
}
