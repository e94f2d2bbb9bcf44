//! Runs each part of a diagnosis in a process of its own, so that a driver that crashes or hangs is a finding, and the rest of
//! the diagnosis goes on.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rocmforge_runtime::gpu::DeviceId;

use super::parts::{Message, Part};
use super::report::{Check, Report, Status};
use crate::args::DOCTOR_PART;
use crate::output::{for_terminal, say};
use crate::program::this_program;

/// Most bytes that are read of a part, which a driver may write to as well.
const MAX_OUTPUT: u64 = 64 << 20;

/// What a part found beside its checks.
#[derive(Default)]
pub struct Findings {
    pub gpus: Vec<DeviceId>,
    /// Lines about versions.
    pub versions: Vec<String>,
}

/// Runs a part for at most `limit`, and adds its checks to `report`. A part that ends early, or is ended, adds a failed check
/// in place of the one it was at.
///
/// # Errors
/// If the process cannot be started.
pub fn run(part: Part, limit: Duration, report: &mut Report) -> Result<Findings> {
    let mut child = Command::new(this_program()?)
        .args([DOCTOR_PART, &part.to_string()])
        .args(["--limit", &limit.as_secs().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process of this program")?;
    let output = child.stdout.take().context("the process has no output")?;
    let output = BufReader::new(output.take(MAX_OUTPUT));
    let (to, messages) = mpsc::channel();
    // Ends with the process, which has the other end of the pipe.
    thread::spawn(move || {
        let mut lines = output.split(b'\n').map_while(Result::ok);
        let _ = lines.try_for_each(|line| to.send(String::from_utf8_lossy(&line).into_owned()));
    });
    let until = Instant::now() + limit;
    let mut findings = Findings::default();
    let mut at = part.to_string();
    let ended = loop {
        match messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Message::Begins(name)) => at = name,
                Ok(Message::Done {
                    check,
                    advice,
                    is_fatal,
                }) => report.add(Check {
                    advice,
                    is_fatal,
                    ..check
                }),
                Ok(Message::Gpu(id)) => findings.gpus.extend(id.parse::<DeviceId>()),
                Ok(Message::Version(line)) => findings.versions.push(line),
                // A driver may print what it likes.
                Err(_) => say(&for_terminal(&line)),
            },
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    // One that closed its output may hang nevertheless.
    let mut ended = ended;
    while ended
        && child
            .try_wait()
            .context("cannot wait for a process")?
            .is_none()
    {
        ended = Instant::now() < until;
        thread::sleep(Duration::from_millis(5));
    }
    if !ended {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().context("cannot wait for a process")?;
    let failure = match (ended, status.success()) {
        (true, true) => return Ok(findings),
        (true, false) => format!("the process of this check ended: {status}"),
        (false, _) => format!("no answer within {} s", limit.as_secs()),
    };
    let first = match ended {
        true => "look at sudo dmesg",
        false => "give it more time with --limit; if that does not help, look at sudo dmesg",
    };
    let mut check = Check::new(at, Status::Failed, failure).advice(format!(
        "{first}; use another --device, and report it with the output of rocmforge doctor --bundle doctor.tar"
    ));
    check.is_fatal = part == Part::Cpu;
    report.add(check);
    Ok(findings)
}
