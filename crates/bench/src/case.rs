//! The cases of a suite: their names, their work, and how to prepare them on a device.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use rocmforge_gpu::{Event, Gpu, GpuError};
use rocmforge_profile::schema::Ceilings;

use crate::error::BenchError;
use crate::harness::{Run, Stop};
use crate::row::Rates;
use crate::target::{BenchDevice, Target};

/// A case before it allocates anything.
pub(super) struct Case {
    /// Names of its rows without suite and device; more than one if parts of a run are timed separately.
    pub parts: Vec<String>,
    pub format: Option<String>,
    pub shape: String,
    pub on: On,
    /// Whether it runs the model.
    pub has_model: bool,
    pub prepare: Box<Prepare>,
}

/// Allocates the case's data on a device.
type Prepare = dyn for<'t> Fn(&'t Target, &Stop<'_>) -> Result<Prepared<'t>, BenchError>;

/// The devices that a case can run on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    All,
    /// Work that is always done by the CPU.
    Cpu,
}

impl Case {
    /// Creates a case with one row, for all devices.
    pub(super) fn new(
        name: String,
        format: Option<&str>,
        shape: String,
        prepare: impl for<'t> Fn(&'t Target) -> Result<Prepared<'t>, BenchError> + 'static,
    ) -> Case {
        Case {
            parts: vec![name],
            format: format.map(str::to_string),
            shape,
            on: On::All,
            has_model: false,
            prepare: Box::new(move |target, _| prepare(target)),
        }
    }

    pub(super) fn runs_on(&self, device: &BenchDevice) -> bool {
        self.on == On::All || matches!(device, BenchDevice::Cpu)
    }
}

/// A case with its data, ready to run.
pub(super) struct Prepared<'t> {
    /// One part per name of the case.
    pub parts: Vec<Part>,
    pub run: Box<Run<'t>>,
}

impl<'t> Prepared<'t> {
    /// Creates a case with one row.
    pub(super) fn new(
        work: Work,
        mut run: impl FnMut(u64) -> Result<f64, BenchError> + 't,
    ) -> Prepared<'t> {
        Prepared {
            parts: vec![Part {
                work,
                ..Part::default()
            }],
            run: Box::new(move |n, _| Ok(vec![run(n)?])),
        }
    }

    /// Adds a note to the first row.
    pub(super) fn note(mut self, note: impl Into<String>) -> Prepared<'t> {
        self.parts[0].notes.push(note.into());
        self
    }

    /// Adds a metric to the first row.
    pub(super) fn metric(mut self, name: &str, value: f64) -> Prepared<'t> {
        self.parts[0].metrics.insert(name.to_string(), value);
        self
    }
}

/// The contents of a row beside its times.
#[derive(Default)]
pub(super) struct Part {
    pub work: Work,
    pub metrics: BTreeMap<String, f64>,
    pub notes: Vec<String>,
}

/// The work of one run; 0 where a number is meaningless.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    /// Bytes that must be read and written.
    pub bytes: u64,
    /// Operations; a multiply-add counts as two.
    pub f32_ops: u64,
    pub i8_ops: u64,
    pub elements: u64,
    pub tokens: u64,
}

impl Work {
    /// Returns the rates of this work if it takes `seconds`.
    pub(super) fn rates(&self, seconds: f64, ceilings: Option<&Ceilings>) -> Rates {
        // A run too short for the clock has no rate.
        let rate = |n: f64| (n > 0.0 && seconds > 0.0).then(|| n / seconds);
        let compute_s = ceilings.and_then(|ceilings| {
            let part = |n: u64, peak: Option<f64>| match n {
                0 => Some(0.0),
                n => peak.map(|peak| n as f64 / peak),
            };
            Some(
                part(self.f32_ops, ceilings.f32_ops_per_s)?
                    + part(self.i8_ops, ceilings.i8_ops_per_s)?,
            )
        });
        let memory_s = ceilings.map(|ceilings| self.bytes as f64 / ceilings.read_bytes_per_s);
        Rates {
            gflop_s: rate((self.f32_ops + self.i8_ops) as f64 / 1e9),
            gb_s: rate(self.bytes as f64 / 1e9),
            elements_s: rate(self.elements as f64),
            tokens_s: rate(self.tokens as f64),
            bandwidth_roofline_share: memory_s.and_then(rate),
            compute_roofline_share: compute_s.and_then(rate),
        }
    }
}

/// Returns the seconds of `n` runs on the CPU.
pub(super) fn time_cpu<T>(n: u64, mut run: impl FnMut() -> T) -> Result<f64, BenchError> {
    let started = Instant::now();
    for _ in 0..n {
        black_box(run());
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Returns the seconds of `n` runs by the device's clock, from before the first launch to the end of the last. Launches
/// are queued back to back, as in a step.
pub(super) fn time_gpu(
    gpu: &Gpu,
    n: u64,
    mut run: impl FnMut() -> Result<(), GpuError>,
) -> Result<f64, BenchError> {
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    start.record()?;
    for _ in 0..n {
        run()?;
    }
    end.record()?;
    end.wait()?;
    Ok(f64::from(end.elapsed_ms(&start)?) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_follow_the_roofline() {
        let work = Work {
            bytes: 2_000_000_000,
            f32_ops: 1_000_000_000,
            i8_ops: 8_000_000_000,
            elements: 10,
            tokens: 0,
        };
        let ceilings = Ceilings {
            read_bytes_per_s: 1e10,
            f32_ops_per_s: Some(1e10),
            i8_ops_per_s: Some(4e10),
            start_us: None,
        };
        let rates = work.rates(0.5, Some(&ceilings));
        let near = |found: Option<f64>, expected: f64| {
            assert!(
                (found.unwrap() - expected).abs() < 1e-9,
                "{found:?} {expected}"
            );
        };
        // 9e9 operations in 0.5 s; at the peaks 2e9 bytes take 0.2 s, the operations 0.1 s + 0.2 s.
        near(rates.gflop_s, 18.0);
        near(rates.gb_s, 4.0);
        near(rates.elements_s, 20.0);
        near(rates.bandwidth_roofline_share, 0.4);
        near(rates.compute_roofline_share, 0.6);
        assert_eq!(rates.tokens_s, None);

        // Without a peak there is no share of it; an emulated GPU has no peaks.
        let gpu = Ceilings {
            f32_ops_per_s: None,
            i8_ops_per_s: None,
            start_us: None,
            ..ceilings
        };
        assert_eq!(work.rates(0.5, Some(&gpu)).compute_roofline_share, None);
        let none = work.rates(0.5, None);
        assert_eq!(
            (none.bandwidth_roofline_share, none.compute_roofline_share),
            (None, None)
        );
        assert_eq!(work.rates(0.0, Some(&ceilings)).gb_s, None);
    }

    /// Half the bandwidth means half the share and twice the time, as with `-t 1` against `-t 2` where threads limit
    /// reading.
    #[test]
    fn half_the_bandwidth_is_half_the_share() {
        let work = Work {
            bytes: 1_000_000,
            ..Work::default()
        };
        let ceilings = Ceilings {
            read_bytes_per_s: 1e9,
            f32_ops_per_s: None,
            i8_ops_per_s: None,
            start_us: None,
        };
        let (whole, half) = (
            work.rates(1e-3, Some(&ceilings)),
            work.rates(2e-3, Some(&ceilings)),
        );
        assert_eq!(whole.bandwidth_roofline_share, Some(1.0));
        assert_eq!(half.bandwidth_roofline_share, Some(0.5));
        assert_eq!(half.gb_s.unwrap() * 2.0, whole.gb_s.unwrap());
    }
}
