//! Runs a program and captures its output, with size limits, until it ends or the user stops it.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::interrupt::Working;
use crate::output;

/// Largest stdout; results of a thousand tests are smaller.
const MAX_STDOUT: u64 = 16 << 20;
/// Bytes kept of the end of stderr.
const MAX_STDERR: usize = 64 << 10;

/// Runs `command` and returns its stdout; `None` if the user stopped it. `name` is for messages.
///
/// # Errors
/// The program cannot be started or fails; the message has its last line on stderr.
pub fn stdout_of(
    mut command: Command,
    name: &str,
    working: &Working<'_>,
) -> Result<Option<String>> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let program = output::for_terminal(&command.get_program().to_string_lossy());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {name}, {program}"))?;
    let stdout = child.stdout.take().expect("stdout is a pipe");
    let stderr = child.stderr.take().expect("stderr is a pipe");
    let printed = thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.take(MAX_STDOUT + 1).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    });
    let said = thread::spawn(move || last_of(stderr));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if working.asked() {
            // Fails if it has ended meanwhile, which is fine.
            let _ = child.kill();
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let joined = |_| anyhow::anyhow!("cannot read what {name} prints");
    let printed = printed.join().map_err(joined)??;
    let said = said.join().map_err(joined)?;
    if working.asked() {
        return Ok(None);
    }
    if !status.success() {
        let last = said
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        bail!(
            "{name} failed ({status}): {}; run it alone to see more: {}",
            output::for_terminal(last.unwrap_or("no message")),
            output::for_terminal(&format!("{command:?}"))
        );
    }
    if printed.len() as u64 > MAX_STDOUT {
        bail!(
            "{name} printed more than {} MiB, which cannot be results",
            MAX_STDOUT >> 20
        );
    }
    match String::from_utf8(printed) {
        Ok(text) => Ok(Some(text)),
        Err(_) => bail!("{name} printed invalid UTF-8; is {program} the right program?"),
    }
}

/// Reads to the end and returns the last part as text.
fn last_of(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    let mut part = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut part) {
        kept.extend_from_slice(&part[..n]);
        let surplus = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
