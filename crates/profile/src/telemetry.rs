//! What was executed where: an event for each part of a step, summed up by backend and by type.
//!
//! Times come from a [`StepObserver`](rocmforge_runtime::StepObserver), words from the plan ([`PlanOps`]). The
//! example `execution_summary` prints the summary of a model that a GPU and the CPU share.

use std::collections::BTreeMap;
use std::time::Duration;

use rocmforge_plan::Side;
use rocmforge_runtime::times::StepTimes;

use crate::ops::PlanOps;

/// One part of a step that ran: an operation, or operations that run as one pass; or what surrounds them, which is of the
/// types `begin`, `choose`, `end` and `copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionEvent {
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// Type of operation, such as `matmul`; of several as one pass, such as `rope_kv`, theirs together.
    pub op_type: String,
    /// Number of the engine's step.
    pub step: u64,
    /// By the clock of the device. On a GPU from the end of the launch before, so that a device that waits for the host
    /// waits here.
    pub duration: Duration,
}

/// The events of a step, in the order in which its parts ran. `ops` is of the whole plan that the engine runs
/// ([`Model::compiled_plan`](rocmforge_model::Model::compiled_plan)); `gpu` names the backend of what a GPU ran, such
/// as `cuda:0`.
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

/// What all events come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendExecutionSummary {
    /// Events. Several operations that run as one pass are one; `begin`, `choose`, `end` and `copy` count, too, and
    /// [`BackendExecutionSummary::operations_by_type`] says how many those are.
    pub ops_executed: u64,
    /// Sums of durations by backend; of `cpu` with the host's time for the launches of a GPU.
    pub time_by_backend: BTreeMap<String, Duration>,
    /// Events by backend; they add up to `ops_executed`.
    pub operations_by_backend: BTreeMap<String, u64>,
    /// Events by type; they add up to `ops_executed`.
    pub operations_by_type: BTreeMap<String, u64>,
}

impl BackendExecutionSummary {
    /// Adds the [`events`] of a step, and to the time of `cpu` what the host took to queue its launches.
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

    /// Adds time of a backend that no operation of its own took, such as the host's while it queues launches.
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
    fn events_are_summed_up() {
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
