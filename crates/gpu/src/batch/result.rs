//! The results of a batch: outputs, and the time of each operation.

use std::ops::Range;
use std::time::Duration;

use super::workspace::{Pool, Workspace};
use crate::gpu::Gpu;
use crate::memory::Slice;

/// When an operation ran within its grouped launch, by the device's clock (NVIDIA's `%globaltimer`, AMD's wall clock):
/// from the start of its first block to the end of its last, counted from the first block of all operations. Blocks of
/// several operations run side by side, so these times overlap and do not add up to the total. The resolution of the
/// clock depends on the device, from 10 ns to about a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationTime {
    pub start: Duration,
    pub end: Duration,
}

impl OperationTime {
    pub fn duration(&self) -> Duration {
        self.end - self.start
    }
}

/// Outputs and times of a batch.
pub struct BatchMatmulResult {
    /// Range of each operation in `values`.
    outputs: Vec<Range<usize>>,
    values: Vec<f32>,
    timings: Option<Vec<OperationTime>>,
    total: Option<Duration>,
    n_launches: usize,
    /// Present until this is dropped.
    workspace: Option<Workspace>,
    pool: Pool,
}

impl BatchMatmulResult {
    /// Reads the results of a batch that is done.
    pub(super) fn new(
        gpu: &Gpu,
        outputs: Vec<Range<usize>>,
        n_launches: usize,
        workspace: Workspace,
        pool: Pool,
    ) -> BatchMatmulResult {
        let n_ops = outputs.len();
        let n_values = outputs.last().map_or(0, |last| last.end);
        let ticks = workspace.host_times.read(0..2 * n_ops);
        let (starts, ends) = ticks.split_at(n_ops);
        let timings = gpu.clock_hz().map(|hz| times(hz, starts, ends));
        let total = workspace.ended.elapsed_ms(&workspace.started).ok();
        BatchMatmulResult {
            outputs,
            values: workspace.host_out.read(0..n_values),
            timings,
            total: total.map(|ms| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3)),
            n_launches,
            workspace: Some(workspace),
            pool,
        }
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Returns the output of an operation, `[n_rows, n_out]`.
    ///
    /// # Panics
    /// If `op` is out of range.
    pub fn output(&self, op: usize) -> &[f32] {
        &self.values[self.outputs[op].clone()]
    }

    /// Returns the output on the device, until this is dropped. Launches that read it may still be queued then: the
    /// memory is reused only after them.
    ///
    /// # Panics
    /// If `op` is out of range.
    pub fn device_output(&self, op: usize) -> Slice<'_, f32> {
        let workspace = self.workspace.as_ref().expect("only `drop` takes it");
        workspace.out.as_slice().part(self.outputs[op].clone())
    }

    /// Returns the time of an operation. `None` if the driver does not report the frequency of the device's clock.
    ///
    /// # Panics
    /// If `op` is out of range.
    pub fn timing(&self, op: usize) -> Option<OperationTime> {
        self.timings.as_ref().map(|timings| timings[op])
    }

    /// Returns the time of the conversion and all products together, by events around them. `None` if the device was
    /// lost since.
    pub fn total(&self) -> Option<Duration> {
        self.total
    }

    /// Number of launches of the batch: one for conversions, if any, and one per weight format.
    pub fn n_launches(&self) -> usize {
        self.n_launches
    }
}

impl Drop for BatchMatmulResult {
    fn drop(&mut self) {
        if let Some(workspace) = self.workspace.take() {
            self.pool.give_back(workspace);
        }
    }
}

/// Converts clock ticks to times since the first tick of all.
fn times(hz: f64, starts: &[u64], ends: &[u64]) -> Vec<OperationTime> {
    let first = starts.iter().copied().min().unwrap_or(0);
    let since = |ticks: u64| Duration::from_secs_f64(ticks.saturating_sub(first) as f64 / hz);
    let pairs = starts.iter().zip(ends);
    pairs
        .map(|(&start, &end)| OperationTime {
            start: since(start),
            // Clocks of different parts of a device may differ by a tick.
            end: since(end.max(start)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_ticks_to_times() {
        let found = times(1e8, &[1000, 900], &[1500, 899]);
        let time = |start, end| OperationTime {
            start: Duration::from_nanos(start),
            end: Duration::from_nanos(end),
        };
        assert_eq!(found, [time(1000, 6000), time(0, 0)]);
        assert_eq!(found[0].duration(), Duration::from_micros(5));
    }
}
