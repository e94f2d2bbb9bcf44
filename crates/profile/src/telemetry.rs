//! Records what ran on which backend: one event per part of a step, summed by backend and by operation type.
//!
//! Times come from a [`StepObserver`](rocmforge_runtime::StepObserver), names from the plan ([`PlanOps`]). The
//! example `execution_summary` prints the summary of a model split between a GPU and the CPU.

use std::collections::BTreeMap;
use std::time::Duration;

use rocmforge_plan::Side;
use rocmforge_runtime::times::StepTimes;

use crate::ops::PlanOps;

/// A part of a step that ran: an operation, several fused operations, or one of the surrounding types `begin`,
/// `choose`, `end` and `copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionEvent {
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// Operation type, such as `matmul`, or the name of fused operations, such as `rope_kv`.
    pub op_type: String,
    /// Number of the engine's step.
    pub step: u64,
    /// Measured by the device's clock. On a GPU it starts at the end of the previous launch, so it includes the time
    /// the device waits for the host.
    pub duration: Duration,
}

/// Returns the events of a step in execution order. `ops` must cover the engine's whole plan
/// ([`running_plan`](rocmforge_runtime::running_plan)); `gpu` is the name of the GPU backend,
/// such as `cuda:0`.
pub fn events<'a>(
    times: &'a StepTimes,
    ops: &'a PlanOps<'_>,
    gpu: &'a str,
) -> impl Iterator<Item = ExecutionEvent> + 'a {
    times.parts.iter().map(move |part| ExecutionEvent {
        backend: match part.side {
            Side::Cpu => "cpu".to_string(),
            Side::Gpu => gpu.to_string(),
        },
        op_type: ops.describe(&part.part).0.to_string(),
        step: times.step,
        duration: part.duration,
    })
}

/// Events summed by backend and by operation type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendExecutionSummary {
    /// Number of events. Fused operations count once. `begin`, `choose`, `end` and `copy` count too;
    /// [`BackendExecutionSummary::operations_by_type`] tells how many there were.
    pub ops_executed: u64,
    /// Total duration by backend. `cpu` includes the host's time for GPU launches.
    pub time_by_backend: BTreeMap<String, Duration>,
    /// Events by backend; they add up to `ops_executed`.
    pub operations_by_backend: BTreeMap<String, u64>,
    /// Events by type; they add up to `ops_executed`.
    pub operations_by_type: BTreeMap<String, u64>,
}

impl BackendExecutionSummary {
    /// Adds the [`events`] of a step, and the host's time for its launches to `cpu`.
    pub fn add_step(&mut self, times: &StepTimes, ops: &PlanOps<'_>, gpu: &str) {
        for event in events(times, ops, gpu) {
            self.record(&event);
        }
        if !times.launches.is_empty() {
            let submits = times.launches.iter().map(|launch| launch.submit);
            self.add_time("cpu", submits.sum());
        }
    }

    /// Adds one event.
    pub fn record(&mut self, event: &ExecutionEvent) {
        self.ops_executed += 1;
        add(&mut self.time_by_backend, &event.backend, event.duration);
        add(&mut self.operations_by_backend, &event.backend, 1);
        add(&mut self.operations_by_type, &event.op_type, 1);
    }

    /// Adds time that belongs to no event, such as the host's time to queue launches.
    pub fn add_time(&mut self, backend: &str, time: Duration) {
        add(&mut self.time_by_backend, backend, time);
    }
}

fn add<T: Default + std::ops::AddAssign>(to: &mut BTreeMap<String, T>, key: &str, value: T) {
    match to.get_mut(key) {
        Some(sum) => *sum += value,
        None => drop(to.insert(key.to_string(), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_events_by_backend_and_type() {
        let mut summary = BackendExecutionSummary::default();
        let ms = Duration::from_millis;
        for (backend, op_type, step, duration) in [
            ("cpu", "embed", 0, ms(1)),
            ("cuda:0", "matmul", 0, ms(5)),
            ("cuda:0", "matmul", 1, ms(6)),
            ("cpu", "matmul", 1, ms(30)),
        ] {
            summary.record(&ExecutionEvent {
                backend: backend.to_string(),
                op_type: op_type.to_string(),
                step,
                duration,
            });
        }
        summary.add_time("cpu", ms(2));
        assert_eq!(summary.ops_executed, 4);
        let times: Vec<(&str, Duration)> = summary
            .time_by_backend
            .iter()
            .map(|(name, time)| (name.as_str(), *time))
            .collect();
        assert_eq!(times, [("cpu", ms(33)), ("cuda:0", ms(11))]);
        let counts = |counts: &BTreeMap<String, u64>| -> Vec<(String, u64)> {
            counts.iter().map(|(name, n)| (name.clone(), *n)).collect()
        };
        let expected = |all: [(&str, u64); 2]| all.map(|(name, n)| (name.to_string(), n));
        let by_type = counts(&summary.operations_by_type);
        assert_eq!(by_type, expected([("embed", 1), ("matmul", 3)]));
        let by_backend = counts(&summary.operations_by_backend);
        assert_eq!(by_backend, expected([("cpu", 2), ("cuda:0", 2)]));
    }
}
