//! Samples device utilization: a thread that reads a gauge at intervals, for a run ([`Sampler`]) or for as long as a
//! program runs ([`Follower`]).
//!
//! The gauge is sysfs ([`super::sysfs`]) or `amd-smi` for AMD, `nvidia-smi` for NVIDIA, and the CPU time of this
//! process for the CPU. A gauge that is missing, dies or prints something unexpected is an error; no value is ever made
//! up.

mod follower;
mod gauges;
mod limits;
#[cfg(all(test, unix))]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use follower::Follower;
pub use gauges::nvidia_smi;
use gauges::{NvidiaSmi, ProcessTime};
pub use limits::ClockLimits;

use super::amd_smi;
use super::command::CommandLine;
use super::error::ExternalError;
use super::process::{self, Limits};
use super::sysfs;
use rocmforge_profile::schema::Utilization;
use rocmforge_profile::stats::Summary;

/// Target utilization in percent.
pub const BUSY_TARGET: f64 = 80.0;

/// Default time between two readings.
pub const EVERY: Duration = Duration::from_millis(100);

/// Longest wait for a tool that reads a gauge.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most readings kept; a day's worth at ten per second.
const MAX_READINGS: usize = 1 << 20;

/// A source of utilization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// CPU time of this process, relative to `n_threads` threads.
    Process { n_threads: usize },
    /// The driver's files of an AMD GPU.
    Sysfs(sysfs::Card),
    /// `amd-smi metric`, run for each reading.
    AmdSmi { program: PathBuf, gpu: String },
    /// `nvidia-smi -lms`, which runs until it is stopped.
    NvidiaSmi { program: PathBuf, gpu: String },
}

/// Where gauges of GPUs are looked for.
#[derive(Debug, Clone)]
pub struct Places {
    /// Folders of tools, as in the variable PATH.
    pub path: OsString,
    /// `/sys`, except in tests.
    pub sysfs: PathBuf,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            path: std::env::var_os("PATH").unwrap_or_default(),
            sysfs: PathBuf::from("/sys"),
        }
    }
}

impl Source {
    /// Returns the gauge of a GPU named `hip:0` or `cuda:0`. Its address on the PCI bus, such as `0000:03:00.0`, is the
    /// only name that HIP, CUDA, the kernel, amd-smi and nvidia-smi share: each numbers the GPUs in its own way.
    ///
    /// # Errors
    /// If the address is unknown, or this machine has no gauge of the GPU.
    pub fn of_gpu(
        name: &str,
        pci_address: Option<&str>,
        places: &Places,
    ) -> Result<Source, ExternalError> {
        let missing = |reason: &str| ExternalError::Unavailable {
            source_name: name.to_string(),
            reason: reason.to_string(),
        };
        let Some(address) = pci_address else {
            return Err(missing(
                "its driver does not tell its PCI address, by which its sensors are found",
            ));
        };
        let find = |tool| super::tools::find(tool, &places.path);
        let gpu = address.to_string();
        match name.split(':').next() {
            Some("cuda") => match find("nvidia-smi") {
                Some(program) => Ok(Source::NvidiaSmi { program, gpu }),
                None => Err(missing(
                    "nvidia-smi is not in PATH; it comes with the driver",
                )),
            },
            Some("hip") => {
                let cards = sysfs::cards(&places.sysfs).into_iter();
                let card = cards
                    .filter(|card| card.pci.eq_ignore_ascii_case(address))
                    .find(|card| card.busy(&card.state()).is_ok());
                match (card, find("amd-smi")) {
                    (Some(card), _) => Ok(Source::Sysfs(card)),
                    (None, Some(program)) => Ok(Source::AmdSmi { program, gpu }),
                    (None, None) => Err(missing(&format!(
                        "{} has no gpu_busy_percent of {address}, and amd-smi is not in PATH",
                        places.sysfs.join("class/drm").display()
                    ))),
                }
            }
            _ => Err(missing("this kind of device has no gauge")),
        }
    }

    /// Returns a description for [`Utilization::source`].
    pub fn name(&self) -> String {
        match self {
            Source::Process { n_threads } => {
                format!("CPU time of this process over {n_threads} threads")
            }
            Source::Sysfs(card) => format!("sysfs ({}, {})", card.name, card.pci),
            Source::AmdSmi { gpu, .. } => format!("amd-smi (GPU {gpu})"),
            Source::NvidiaSmi { gpu, .. } => format!("nvidia-smi (GPU {gpu})"),
        }
    }

    /// Opens the gauge, for readings at intervals of `every`. Waits at most for `patience` for a tool.
    fn probe(&self, every: Duration, patience: Duration) -> Result<Box<dyn Probe>, ExternalError> {
        match self {
            Source::Process { n_threads } => Ok(Box::new(ProcessTime::new(*n_threads)?)),
            Source::Sysfs(card) => {
                // Fail before the run rather than after it.
                card.busy(&card.state())?;
                Ok(Box::new(card.clone()))
            }
            Source::AmdSmi { program, gpu } => {
                let mut probe = AmdSmi {
                    command: CommandLine {
                        program: program.into(),
                        ..amd_smi::metric(Some(gpu))
                    },
                    patience,
                };
                probe.read()?;
                Ok(Box::new(probe))
            }
            Source::NvidiaSmi { program, gpu } => {
                let started = NvidiaSmi::start((program, gpu), every, patience)?;
                Ok(Box::new(started))
            }
        }
    }
}

/// One reading. `None` is what the source does not say.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    pub busy_percent: f64,
    pub memory_used_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Of the compute units.
    pub clock_mhz: Option<f64>,
    pub limits: ClockLimits,
}

/// A gauge.
pub trait Probe: Send {
    /// Reads it; `None` if it is too early for a value.
    ///
    /// # Errors
    /// If there is no valid value.
    fn read(&mut self) -> Result<Option<Reading>, ExternalError>;
}

/// Reads a gauge at intervals until it is stopped or dropped.
pub struct Sampler {
    source: String,
    stop: Arc<Stop>,
    /// `None` once it has ended.
    worker: Option<JoinHandle<Readings>>,
}

/// All readings with their times, or why there are none.
type Readings = Result<Vec<(Instant, Reading)>, ExternalError>;

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.ask();
    }
}

#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn ask(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for the stop signal, at most for `time`; returns whether it came.
    fn wait(&self, time: Duration) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(asked, time, |asked| !*asked);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Sampler {
    /// Starts reading `source`, now and then at intervals of `every`.
    ///
    /// # Errors
    /// If the gauge is missing.
    pub fn start(source: &Source, every: Duration) -> Result<Sampler, ExternalError> {
        // nvidia-smi's lines wait to be read, and the newest counts.
        let probe = source.probe(EVERY, PATIENCE)?;
        Ok(Sampler::with_probe(source.name(), probe, every))
    }

    /// Like [`Sampler::start`], with any gauge.
    pub fn with_probe(
        source: impl Into<String>,
        mut probe: Box<dyn Probe>,
        every: Duration,
    ) -> Sampler {
        let stop = Arc::new(Stop::default());
        let asked = Arc::clone(&stop);
        let worker = thread::spawn(move || {
            let mut readings = Vec::new();
            loop {
                if readings.len() < MAX_READINGS {
                    readings.extend(probe.read()?.map(|reading| (Instant::now(), reading)));
                }
                if asked.wait(every) {
                    break;
                }
            }
            // Runs shorter than the interval still get a reading.
            if readings.len() < 2 {
                readings.extend(probe.read()?.map(|reading| (Instant::now(), reading)));
            }
            Ok(readings)
        });
        Sampler {
            source: source.into(),
            stop,
            worker: Some(worker),
        }
    }

    /// Stops and returns the summary of all readings.
    ///
    /// # Errors
    /// If the gauge failed meanwhile, or the run was too short for a reading.
    pub fn finish(self) -> Result<Utilization, ExternalError> {
        self.finish_within(|_| true)
    }

    /// Stops and returns the summary of the readings since `start`.
    ///
    /// # Errors
    /// As of [`Sampler::finish`].
    pub fn finish_since(self, start: Instant) -> Result<Utilization, ExternalError> {
        let end = Instant::now();
        self.finish_within(|time| (start..=end).contains(&time))
    }

    fn finish_within(
        mut self,
        counts: impl Fn(Instant) -> bool,
    ) -> Result<Utilization, ExternalError> {
        self.stop.ask();
        let worker = self.worker.take().expect("it ends only once");
        let readings = worker.join();
        let unavailable = |reason: &str| ExternalError::Unavailable {
            source_name: self.source.clone(),
            reason: reason.to_string(),
        };
        let readings = readings.map_err(|_| unavailable("its thread failed"))??;
        let readings: Vec<Reading> = readings
            .into_iter()
            .filter_map(|(time, reading)| counts(time).then_some(reading))
            .collect();
        let summary = |value: fn(&Reading) -> Option<f64>| {
            let values: Vec<f64> = readings.iter().filter_map(value).collect();
            Summary::of(&values)
        };
        let busy_percent = summary(|reading| Some(reading.busy_percent))
            .ok_or_else(|| unavailable("the run was too short for a reading"))?;
        let limits = readings.iter().map(|reading| reading.limits);
        let limits = limits.fold(ClockLimits::default(), |all, limits| all | limits);
        Ok(Utilization {
            power_watts: summary(|reading| reading.power_watts),
            temperature: summary(|reading| reading.temperature),
            clock_mhz: summary(|reading| reading.clock_mhz),
            throttled_by: limits.names().map(str::to_string).collect(),
            joules_per_token: None,
            source: self.source.clone(),
            busy_percent,
            memory_used_bytes: readings
                .iter()
                .filter_map(|reading| reading.memory_used_bytes)
                .max(),
            meets_target: busy_percent.mean > BUSY_TARGET,
        })
    }
}

impl Probe for sysfs::Card {
    fn read(&mut self) -> Result<Option<Reading>, ExternalError> {
        let state = self.state();
        Ok(Some(Reading {
            busy_percent: self.busy(&state)?,
            memory_used_bytes: state.vram_used_bytes,
            power_watts: state.power_watts,
            temperature: state.temperature,
            clock_mhz: state.clock_mhz,
            limits: state.limits,
        }))
    }
}

struct AmdSmi {
    command: CommandLine,
    patience: Duration,
}

impl Probe for AmdSmi {
    fn read(&mut self) -> Result<Option<Reading>, ExternalError> {
        let done = process::run(&self.command, &Limits::timeout(self.patience))?;
        let unavailable = |reason: String| ExternalError::Unavailable {
            source_name: "amd-smi".to_string(),
            reason,
        };
        if !done.status.success() {
            return Err(unavailable(done.last_words()));
        }
        let metrics = amd_smi::parse_metric(&done.stdout)?;
        let metric = &metrics[0];
        let busy_percent = metric
            .gfx_percent
            .ok_or_else(|| unavailable("its gfx_activity is N/A".to_string()))?;
        Ok(Some(Reading {
            busy_percent,
            memory_used_bytes: metric.vram_used_bytes,
            power_watts: metric.power_watts,
            temperature: metric.hotspot,
            clock_mhz: metric.clock_mhz,
            limits: ClockLimits {
                unnamed: metric.is_throttled,
                ..ClockLimits::default()
            },
        }))
    }
}
