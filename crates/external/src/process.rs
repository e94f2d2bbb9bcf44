//! Runs a tool within limits: of time, of what is kept of its output, and until the user says stop.
//!
//! A tool gets a process group of its own, because a profiler starts the program that it watches: whoever gives up
//! on the one must end the other. Its stdin is empty; a process group in the background may not read the terminal.

use std::io::{self, Read};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::command::CommandLine;
use super::error::ExternalError;

/// When to give up.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    pub timeout: Option<Duration>,
    /// Asked many times a second.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// What to do after running out of time.
    pub hint: &'static str,
}

impl Limits<'_> {
    /// A limit of time alone.
    pub fn timeout(timeout: Duration) -> Limits<'static> {
        Limits {
            timeout: Some(timeout),
            cancelled: &|| false,
            hint: "it may be broken on this machine",
        }
    }
}

/// How a process ended and what it wrote.
#[derive(Debug)]
pub struct Captured {
    pub status: ExitStatus,
    /// The first [`MAX_STDOUT`] bytes.
    pub stdout: Vec<u8>,
    /// Whether there was more.
    pub cut: bool,
    /// The last [`MAX_STDERR`] bytes.
    pub stderr: Vec<u8>,
}

impl Captured {
    /// What it said last, for a message: the end of stderr, or of stdout if that is empty.
    pub fn last_words(&self) -> String {
        let said = [&self.stderr, &self.stdout]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_string());
        let said = said.into_iter().find(|text| !text.is_empty());
        let said = said.unwrap_or_else(|| "it said nothing".to_string());
        let lines: Vec<&str> = said.lines().rev().take(4).collect();
        let lines: Vec<&str> = lines.into_iter().rev().map(str::trim).collect();
        printable(&lines.join(" / "), 400)
    }

    /// All of stderr and stdout that was kept.
    pub fn text(&self) -> String {
        let (err, out) = (
            String::from_utf8_lossy(&self.stderr),
            String::from_utf8_lossy(&self.stdout),
        );
        format!("{err}\n{out}")
    }
}

/// Kept of a process's stdout.
pub const MAX_STDOUT: usize = 16 << 20;

/// Kept of its stderr.
pub const MAX_STDERR: usize = 256 << 10;

/// How long the pipes of a process that has ended may stay open: a process that it left behind can hold them.
const PIPE_GRACE: Duration = Duration::from_secs(2);

/// How long a process may take to end when it is asked to.
const TERM_GRACE: Duration = Duration::from_secs(1);

/// Runs `command` to its end.
///
/// # Errors
/// It cannot be started, takes too long, or was cancelled. A failure exit status is not an error here.
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
        // Fast tools are not made slow, slow ones cost nothing.
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

/// A process and its descendants, none of which outlive this value.
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

    /// How it ended, if it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>, ExternalError> {
        let ended = self.0.try_wait();
        ended.map_err(|source| ExternalError::io("wait for", "the tool", source))
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        // It may be gone already.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(pid, signal);
    }

    /// Ends what still runs.
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
        // The group has its number for as long as one of it lives, so that no stranger is hit.
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

/// Reads a pipe to its end on a thread of its own, keeps a part, and says whether that was not all.
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
        // Nobody listens if the process was given up.
        let _ = send.send((kept, cut));
    });
    receive
}

/// Text of a stranger for a message: no control characters, at most `max` of them.
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
    fn output_and_status_arrive() {
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
    fn long_output_is_cut() {
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

    /// Whether a process runs: a dead one whose parent has not looked does not.
    fn runs(pid: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|text| !text.contains("State:\tZ"))
    }

    #[test]
    fn a_hang_ends_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        // A tool that waits for a child that ignores the polite signal.
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
