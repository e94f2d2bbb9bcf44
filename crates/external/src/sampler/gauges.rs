//! The stateful gauges: CPU time, which is the difference of two readings, and a process that prints lines.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{ClockLimits, Probe, Reading};
use crate::command::CommandLine;
use crate::error::ExternalError;
use crate::process::{self, Group, Limits, printable};

/// Longest line of nvidia-smi that is read.
const MAX_LINE: u64 = 4096;

/// CPU time of this process between two readings, relative to the time available to its threads.
pub(super) struct ProcessTime {
    n_threads: usize,
    last: (Instant, Duration),
}

impl ProcessTime {
    pub(super) fn new(n_threads: usize) -> Result<ProcessTime, ExternalError> {
        Ok(ProcessTime {
            n_threads: n_threads.max(1),
            last: (Instant::now(), process_time()?),
        })
    }
}

impl Probe for ProcessTime {
    fn read(&mut self) -> Result<Option<Reading>, ExternalError> {
        let now = (Instant::now(), process_time()?);
        let wall = now.0 - self.last.0;
        // The scheduler accounts CPU time at intervals, so short readings are inaccurate.
        if wall < Duration::from_millis(10) {
            return Ok(None);
        }
        let busy_percent = busy_percent(now.1.saturating_sub(self.last.1), wall, self.n_threads);
        self.last = now;
        Ok(Some(Reading {
            busy_percent,
            memory_used_bytes: resident_bytes(),
            ..Reading::default()
        }))
    }
}

pub(super) fn busy_percent(computing: Duration, wall: Duration, n_threads: usize) -> f64 {
    let share = computing.as_secs_f64() / (wall.as_secs_f64() * n_threads as f64);
    // The two clocks are not read at the same instant.
    (100.0 * share).min(100.0)
}

/// CPU time of all threads of this process so far.
#[cfg(unix)]
fn process_time() -> Result<Duration, ExternalError> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    ))
}

#[cfg(not(unix))]
fn process_time() -> Result<Duration, ExternalError> {
    Err(ExternalError::Unavailable {
        source_name: "the CPU".to_string(),
        reason: "this system does not report the CPU time of a process".to_string(),
    })
}

/// Resident memory of this process, where the system reports it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A running `nvidia-smi`. Its lines queue in the pipe; a reading is the newest of them.
pub(super) struct NvidiaSmi {
    lines: mpsc::Receiver<Result<Reading, ExternalError>>,
    /// Longest wait for a line.
    patience: Duration,
    _child: Group,
}

impl NvidiaSmi {
    /// Starts `program` for a GPU. It prints a line at intervals of `interval`; starting it takes at most `patience`.
    pub(super) fn start(
        (program, gpu): (&Path, &str),
        interval: Duration,
        patience: Duration,
    ) -> Result<NvidiaSmi, ExternalError> {
        let mut known = FEWEST_FIELDS;
        for fields in FIELDS {
            let once = query(program, gpu, fields);
            if process::run(&once, &Limits::timeout(patience))?
                .status
                .success()
            {
                known = fields;
                break;
            }
        }
        // If it knows none of them, its own words say why.
        let command = every(query(program, gpu, known), interval);
        let mut child = Group::spawn(&command)?;
        let stdout = child.0.stdout.take();
        let stdout = stdout.ok_or_else(|| nvidia_unavailable("it has no output".to_string()))?;
        let stderr = process::collect_last(child.0.stderr.take());
        let (send, lines) = mpsc::sync_channel(1024);
        thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
                let reading = match read {
                    Ok(n) if n > 0 => nvidia_reading(&String::from_utf8_lossy(&line)),
                    _ => {
                        let said = stderr
                            .recv_timeout(Duration::from_secs(1))
                            .unwrap_or_default();
                        let said = String::from_utf8_lossy(&said.0).trim().to_string();
                        Err(nvidia_unavailable(format!("it ended: {said}")))
                    }
                };
                let ends = reading.is_err();
                // The receiver is gone after the sampler stopped.
                if send.send(reading).is_err() || ends {
                    return;
                }
            }
        });
        Ok(NvidiaSmi {
            lines,
            patience,
            _child: child,
        })
    }
}

impl Probe for NvidiaSmi {
    fn read(&mut self) -> Result<Option<Reading>, ExternalError> {
        // nvidia-smi takes a moment to start.
        let first = self.lines.recv_timeout(self.patience);
        let mut newest =
            first.map_err(|_| nvidia_unavailable("it printed nothing".to_string()))??;
        while let Ok(reading) = self.lines.try_recv() {
            newest = reading?;
        }
        Ok(Some(newest))
    }
}

/// What nvidia-smi is asked for: the names of drivers from 535 on, older ones, and those that every driver knows. It
/// refuses a list with a name that it does not know.
const FIELDS: [&str; 3] = [
    "utilization.gpu,memory.used,power.draw,temperature.gpu,clocks.sm,clocks_event_reasons.active",
    "utilization.gpu,memory.used,power.draw,temperature.gpu,clocks.sm,clocks_throttle_reasons.active",
    FEWEST_FIELDS,
];
const FEWEST_FIELDS: &str = "utilization.gpu,memory.used";

/// Returns the command whose lines [`Source::NvidiaSmi`] reads with a driver of today.
pub fn nvidia_smi(program: &Path, gpu: &str, interval: Duration) -> CommandLine {
    every(query(program, gpu, FIELDS[0]), interval)
}

/// Prints a line.
fn query(program: &Path, gpu: &str, fields: &str) -> CommandLine {
    CommandLine::new(program)
        .arg(format!("--query-gpu={fields}"))
        .args(["--format=csv,noheader,nounits", "-i", gpu])
}

/// Repeats a query.
fn every(query: CommandLine, interval: Duration) -> CommandLine {
    query.arg("-lms").arg(interval.as_millis().to_string())
}

/// A line such as `97, 5120, 412.33, 61, 1980, 0x0000000000000004`: percent, MiB, watts, degrees Celsius, MHz, reasons. All
/// but the first may be `[N/A]`, and those after the second missing.
pub(super) fn nvidia_reading(line: &str) -> Result<Reading, ExternalError> {
    let wrong = || nvidia_unavailable(format!("it printed \"{}\"", line.trim()));
    let mut fields = line.split(',').map(str::trim);
    let busy_percent: f64 = fields
        .next()
        .and_then(|busy| busy.parse().ok())
        .ok_or_else(wrong)?;
    if !(0.0..=100.0).contains(&busy_percent) {
        return Err(wrong());
    }
    let mib = fields.next().ok_or_else(wrong)?.parse::<u64>().ok();
    let mut number = || {
        let value = fields.next()?.parse::<f64>().ok()?;
        (value.is_finite() && value >= 0.0).then_some(value)
    };
    Ok(Reading {
        busy_percent,
        memory_used_bytes: mib.and_then(|mib| mib.checked_mul(1 << 20)),
        power_watts: number(),
        temperature: number(),
        clock_mhz: number(),
        limits: fields
            .next()
            .and_then(|bits| u64::from_str_radix(bits.strip_prefix("0x")?, 16).ok())
            .map_or(ClockLimits::default(), ClockLimits::of_nvidia),
    })
}

fn nvidia_unavailable(reason: String) -> ExternalError {
    ExternalError::Unavailable {
        source_name: "nvidia-smi".to_string(),
        reason: printable(&reason, 400),
    }
}
