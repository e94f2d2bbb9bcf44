//! Shared by the benches: the machine and Criterion's settings.

use std::time::Duration;

use criterion::Criterion;
use rocmforge_cpu::{Isa, Pool, default_threads};

/// The instruction set and threads that kernels run on.
pub(crate) struct Machine {
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
}

impl Machine {
    /// Uses all cores, or `ROCMFORGE_THREADS` threads. Prints the machine's peak rates, to compare the benches with.
    pub(crate) fn new() -> Machine {
        let wanted = std::env::var("ROCMFORGE_THREADS").ok();
        let n_threads = wanted
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(default_threads);
        let (isa, pool) = (Isa::detect(), Pool::new(n_threads));
        let best = rocmforge_cpu::measure_roofline(isa, n_threads);
        println!(
            "{}, {isa}, {n_threads} threads: reads {:.1} GB/s, f32 {:.0} GFLOP/s, int8 {:.0} GOP/s",
            processor(),
            best.read_bytes_per_s / 1e9,
            best.f32_ops_per_s / 1e9,
            best.i8_ops_per_s / 1e9
        );
        Machine { isa, pool }
    }
}

/// One or two seconds per bench, because there are many.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .noise_threshold(0.02)
        .without_plots()
        .configure_from_args()
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    name.map_or("unnamed processor", |name| {
        name.trim_start_matches([' ', '\t', ':'])
    })
    .to_owned()
}
