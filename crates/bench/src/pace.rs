//! Pace: how fast the machine itself was while something was measured.
//!
//! Clock rates, temperature and the neighbours of a virtual machine change it from run to run. Reads of memory and
//! arithmetic, timed for milliseconds between the samples, show the change, so that it is not taken for the program's.

use rocmforge_cpu::{Gauge, Isa};
use rocmforge_profile::stats::Summary;

/// The metrics: bytes read and operations per second, in GB/s and Gop/s, of as many threads as the benchmark's. They are
/// facts about the machine and not compared.
pub const PACE: [&str; 2] = ["pace_read", "pace_arithmetic"];

/// Measurements of the machine between samples.
pub struct Pace {
    gauge: Gauge,
    seen: [Vec<f64>; 2],
}

impl Pace {
    /// Prepares measurements with `n_threads` threads of the CPU.
    pub fn new(isa: Isa, n_threads: usize) -> Pace {
        Pace {
            gauge: Gauge::new(isa, n_threads),
            seen: Default::default(),
        }
    }

    /// Measures the machine once.
    pub fn look(&mut self) {
        for (seen, rate) in self.seen.iter_mut().zip(self.gauge.read()) {
            seen.push(rate / 1e9);
        }
    }

    /// Returns the medians of what was measured since the last call, under the names of [`PACE`]; nothing without a look.
    pub fn take(&mut self) -> impl Iterator<Item = (&'static str, f64)> + use<> {
        let seen = std::mem::take(&mut self.seen);
        let named = PACE.into_iter().zip(seen);
        named.filter_map(|(name, rates)| Some((name, Summary::of(&rates)?.p50)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_positive_rates() {
        let mut pace = Pace::new(Isa::detect(), 2);
        assert_eq!(pace.take().count(), 0);
        pace.look();
        pace.look();
        let rates: Vec<_> = pace.take().collect();
        assert_eq!(
            rates.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            PACE
        );
        assert!(rates.iter().all(|(_, rate)| *rate > 0.0), "{rates:?}");
        assert_eq!(pace.take().count(), 0);
    }
}
