//! What was executed where: an event for each operation, summed up by backend and by type of operation.

use std::collections::BTreeMap;
use std::time::Duration;

/// One operation that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionEvent {
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// Type of operation, such as `matmul`.
    pub op_type: String,
    /// Number of the engine's step.
    pub step: u64,
    pub duration: Duration,
}

/// What all operations come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendExecutionSummary {
    pub ops_executed: u64,
    pub time_by_backend: BTreeMap<String, Duration>,
    pub operations_by_backend: BTreeMap<String, u64>,
    pub operations_by_type: BTreeMap<String, u64>,
}

impl BackendExecutionSummary {
    pub fn record(&mut self, event: &ExecutionEvent) {
        self.ops_executed += 1;
        add(&mut self.time_by_backend, &event.backend, event.duration);
        add(&mut self.operations_by_backend, &event.backend, 1);
        add(&mut self.operations_by_type, &event.op_type, 1);
    }

    /// Time of a backend that no operation of its own took, such as the host's while it queues launches.
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
