//! The log of a server on stderr. A thread of its own writes it, so that no client waits for whoever reads it, such as a
//! pipe that is full. What the thread cannot take is left out, and counted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use crate::output::{is_quiet, say};

/// Lines that wait.
const MAX_WAITING: usize = 1024;
/// Bytes of a line; those of the access log have up to 512 KiB of bodies, escaped.
const MAX_LINE_BYTES: usize = 4 << 20;
/// Time for the last lines at the end of the program.
const LAST_LINES: Duration = Duration::from_secs(1);

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    lines: SyncSender<Message>,
    n_left_out: AtomicU64,
}

enum Message {
    Line(String),
    /// Asks to be told when the lines before are written.
    Flush(SyncSender<()>),
}

/// Starts the log.
pub fn start() -> std::io::Result<()> {
    let (lines, inbox) = mpsc::sync_channel(MAX_WAITING);
    let write = move || {
        for message in inbox {
            match message {
                Message::Line(line) => say(&line),
                // One who does not wait any more needs no answer.
                Message::Flush(done) => drop(done.try_send(())),
            }
            let n = LOG
                .get()
                .map_or(0, |log| log.n_left_out.swap(0, Ordering::Relaxed));
            if n > 0 {
                say(&format!(
                    "notice: {n} lines of the log were left out, as nothing reads stderr fast enough"
                ));
            }
        }
    };
    let thread = std::thread::Builder::new().name("rocmforge-log".into());
    thread.spawn(write)?;
    let n_left_out = AtomicU64::new(0);
    let _ = LOG.set(Log { lines, n_left_out });
    Ok(())
}

/// Writes a notice, unless the user wants none. Does not wait.
pub fn note(text: &str) {
    if !is_quiet() {
        line(text);
    }
}

/// Writes what an engine tells while it serves. Does not wait.
pub fn notice(text: &str) {
    note(&format!("notice: {text}"));
}

/// Writes a line. Does not wait.
pub fn line(text: &str) {
    let Some(log) = LOG.get() else {
        return say(&one_line(text));
    };
    if log.lines.try_send(Message::Line(one_line(text))).is_err() {
        log.n_left_out.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until all lines are written, but not for long.
pub fn finish() {
    let Some(log) = LOG.get() else { return };
    let (done, written) = mpsc::sync_channel(1);
    if log.lines.try_send(Message::Flush(done)).is_ok() {
        let _ = written.recv_timeout(LAST_LINES);
    }
}

/// Returns a text without line breaks and other control characters, and not too long.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if line.len() >= MAX_LINE_BYTES {
            line.push_str("...");
            break;
        }
        match c {
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(
            one_line("error: a\nnotice: b\r\u{1b}[2J\u{85}"),
            r"error: a\nnotice: b\r\u{1b}[2J\u{85}"
        );
        assert_eq!(one_line("grün"), "grün");
        let long = one_line(&"x".repeat(2 * MAX_LINE_BYTES));
        assert_eq!(long.len(), MAX_LINE_BYTES + 3);
    }
}
