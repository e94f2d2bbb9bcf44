//! Power, temperature and clock of a GPU, read while a test runs again, so that reading does not disturb what is timed.

use rocmforge_bench::BenchError;
use rocmforge_bench::requests::{Requests, Watch, Workload};
use rocmforge_engine::Device;
use rocmforge_external::sampler::Source;
use rocmforge_profile::schema::Utilization;

use crate::output;
use crate::sensors::{self, while_running};

/// The sensors of a GPU; `None` for other devices, or after a notice where the GPU's cannot be read.
pub fn of(device: &Device) -> Option<Source> {
    match sensors::of(device)?.1 {
        Ok(source) => Some(source),
        Err(error) => {
            output::note(&format!("notice: power is not measured: {error}"));
            None
        }
    }
}

/// Runs a workload of `n_tokens` again and reads the sensors. `None` if they failed, which a notice says.
pub fn read(
    source: &Source,
    requests: &mut Requests,
    (workload, n_tokens): (&Workload, usize),
    stop: &dyn Fn() -> bool,
) -> Result<Option<Utilization>, BenchError> {
    let run = || requests.run(workload, Watch::No, stop).map(|_| n_tokens);
    match while_running(source, run)? {
        Ok(found) => Ok(Some(found)),
        Err(error) => {
            output::note(&format!("notice: power is not measured: {error}"));
            Ok(None)
        }
    }
}
