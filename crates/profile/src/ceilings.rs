//! Measures the peak rates of a device, in the same run as the model they are compared with.

use std::time::Instant;

use rocmforge_cpu::Isa;
use rocmforge_cpu::Pool;
use rocmforge_engine::EngineError;
use rocmforge_gpu::{Gpu, GpuError, ops};
use rocmforge_plan::Roofline;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{DeviceId, GpuConfig};

use crate::schema::Ceilings;
use crate::timer::KernelTimer;

/// Starts timed together, and repetitions. The best counts, since other programs may use the machine too.
const N_STARTS: usize = 200;
const N_BATCHES: usize = 7;
/// Values processed by the small kernel that is timed.
const FEW_VALUES: usize = 32;

impl Ceilings {
    /// Measures the CPU with `n_threads` threads. Takes some tenths of a second.
    pub fn of_cpu(isa: Isa, n_threads: usize) -> Ceilings {
        let roofline = rocmforge_cpu::measure_roofline(isa, n_threads);
        Ceilings {
            read_bytes_per_s: roofline.read_bytes_per_s,
            f32_ops_per_s: Some(roofline.f32_ops_per_s),
            i8_ops_per_s: Some(roofline.i8_ops_per_s),
            start_us: Some(pool_start_us(n_threads)),
        }
    }

    /// Returns the roofline of these peaks, if all are known.
    pub fn roofline(&self) -> Option<Roofline> {
        Some(Roofline {
            read_bytes_per_s: self.read_bytes_per_s,
            f32_ops_per_s: self.f32_ops_per_s?,
            i8_ops_per_s: self.i8_ops_per_s?,
        })
    }

    /// Returns the better of two measurements, peak by peak: other load only lowers them.
    pub fn best_of(self, other: Ceilings) -> Ceilings {
        let better = |a: Option<f64>, b: Option<f64>, best: fn(f64, f64) -> f64| match (a, b) {
            (Some(a), Some(b)) => Some(best(a, b)),
            (a, b) => a.or(b),
        };
        Ceilings {
            read_bytes_per_s: self.read_bytes_per_s.max(other.read_bytes_per_s),
            f32_ops_per_s: better(self.f32_ops_per_s, other.f32_ops_per_s, f64::max),
            i8_ops_per_s: better(self.i8_ops_per_s, other.i8_ops_per_s, f64::max),
            start_us: better(self.start_us, other.start_us, f64::min),
        }
    }

    /// Returns the largest difference of a peak rate between two measurements, relative to the higher one.
    pub fn difference(&self, other: &Ceilings) -> f64 {
        let pairs = [
            Some((self.read_bytes_per_s, other.read_bytes_per_s)),
            self.f32_ops_per_s.zip(other.f32_ops_per_s),
            self.i8_ops_per_s.zip(other.i8_ops_per_s),
        ];
        let differences = pairs.into_iter().flatten();
        let differences = differences.map(|(a, b)| 1.0 - a.min(b) / a.max(b));
        differences.fold(0.0, f64::max)
    }

    /// Measures a GPU; call it before the model takes its memory. `None` for an emulated GPU.
    ///
    /// # Errors
    /// If the device cannot be opened or fails.
    pub fn of_gpu(config: &GpuConfig) -> Result<Option<Ceilings>, EngineError> {
        if matches!(config.id, Some(DeviceId::Host(_))) {
            return Ok(None);
        }
        let roofline = gpu::roofline(config)?;
        let id = match config.id {
            Some(id) => Some(id),
            None => gpu::best(&config.open).ok().map(|best| best.chosen.id),
        };
        let start_us = match id {
            Some(id) => Some(launch_us(&Gpu::open_with(id, &config.open)?)?),
            None => None,
        };
        Ok(Some(Ceilings {
            read_bytes_per_s: roofline.read_bytes_per_s,
            f32_ops_per_s: Some(roofline.f32_ops_per_s),
            i8_ops_per_s: Some(roofline.i8_ops_per_s),
            start_us,
        }))
    }
}

/// Measures the time of an empty task on the thread pool, in microseconds.
fn pool_start_us(n_threads: usize) -> f64 {
    let pool = Pool::new(n_threads);
    let batch = |_| {
        let started = Instant::now();
        for _ in 0..N_STARTS {
            pool.run(n_threads, &|task| {
                std::hint::black_box(task);
            });
        }
        started.elapsed().as_secs_f64() * 1e6 / N_STARTS as f64
    };
    (0..N_BATCHES).map(batch).fold(f64::INFINITY, f64::min)
}

/// Measures the device time of one launch within a queue of launches, in microseconds.
fn launch_us(gpu: &Gpu) -> Result<f64, GpuError> {
    let x = gpu.upload(&[0f32; FEW_VALUES])?;
    let mut best = f64::INFINITY;
    // The first batch loads the kernel.
    for _ in 0..=N_BATCHES {
        let mut timer = KernelTimer::for_kernel("add");
        timer.start(gpu)?;
        for _ in 0..N_STARTS {
            ops::add(gpu, x.as_slice(), x.as_slice())?;
        }
        timer.stop(gpu)?;
        if let Some(ms) = timer.elapsed()? {
            best = best.min(ms * 1e3 / N_STARTS as f64);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_ceilings() {
        let ceilings = Ceilings::of_cpu(Isa::detect(), 2);
        for value in [
            Some(ceilings.read_bytes_per_s),
            ceilings.f32_ops_per_s,
            ceilings.i8_ops_per_s,
            ceilings.start_us,
        ] {
            assert!(value.is_some_and(|value| value.is_finite() && value > 0.0));
        }
    }

    #[test]
    fn other_load_only_lowers_peaks() {
        let a = Ceilings {
            read_bytes_per_s: 10.0,
            f32_ops_per_s: Some(100.0),
            i8_ops_per_s: None,
            start_us: Some(2.0),
        };
        let b = Ceilings {
            read_bytes_per_s: 8.0,
            f32_ops_per_s: Some(125.0),
            i8_ops_per_s: Some(300.0),
            start_us: Some(5.0),
        };
        let best = Ceilings {
            read_bytes_per_s: 10.0,
            f32_ops_per_s: Some(125.0),
            i8_ops_per_s: Some(300.0),
            start_us: Some(2.0),
        };
        assert_eq!((a.best_of(b), b.best_of(a)), (best, best));
        // A fifth less of each.
        assert!((a.difference(&b) - 0.2).abs() < 1e-12);
        assert_eq!(a.difference(&a), 0.0);
    }

    #[test]
    fn a_launch_takes_time() {
        let targets = gpu::image_targets();
        let mut personas = targets.iter().filter_map(|t| t.strip_prefix("host-"));
        let Some(persona) = personas.next() else {
            println!("skipped: built without the target host");
            return;
        };
        let us = launch_us(&Gpu::host(persona).unwrap()).unwrap();
        assert!(us.is_finite() && us > 0.0, "{us}");
        // It has no memory of its own that a bandwidth would be of.
        let config = GpuConfig {
            id: Some(format!("host:{persona}").parse().unwrap()),
            ..GpuConfig::default()
        };
        assert_eq!(Ceilings::of_gpu(&config).unwrap(), None);
    }
}
