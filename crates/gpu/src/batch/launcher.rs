//! Batches that run while the host does something else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::execution::Execution;
use super::result::BatchMatmulResult;
use super::{BatchQuantizedMatmul, QuantizedMatmulOp};
use crate::error::{BatchError, GpuError};
use crate::event::Event;

/// Queues batches of operations on a device's stream and gives a handle for each. They run in the order of their
/// submission; what the host has in an input may be overwritten as soon as it is submitted.
///
/// A handle may be dropped at any time, and so may the launcher: memory that queued work uses stays until that is done.
/// Dropping what is last to know a batch in flight waits for it.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rocmforge_gpu::{AsyncKernelLauncher, BatchQuantizedMatmul, GpuError, QuantizedMatmulOp};
/// # fn run(batch: BatchQuantizedMatmul, ops: &[QuantizedMatmulOp<'_>]) -> Result<(), GpuError> {
/// let launcher = AsyncKernelLauncher::new(Arc::new(batch), 4)?;
/// let handle = launcher.submit(ops)?;
/// while !handle.is_done() {
///     // Something useful.
/// }
/// println!("{:?}", handle.wait()?.output(0));
/// # Ok(())
/// # }
/// ```
pub struct AsyncKernelLauncher {
    batch: Arc<BatchQuantizedMatmul>,
    capacity: usize,
    queue: Queue,
}

/// Batches that may be in flight, in the order of their submission.
type Queue = Arc<Mutex<VecDeque<Arc<InFlight>>>>;

fn lock(queue: &Queue) -> MutexGuard<'_, VecDeque<Arc<InFlight>>> {
    queue.lock().unwrap_or_else(|e| e.into_inner())
}

struct InFlight {
    /// First, so that it waits for its work while the weights are there.
    execution: Mutex<Option<Execution>>,
    done: Arc<Event>,
    failure: OnceLock<GpuError>,
    _batch: Arc<BatchQuantizedMatmul>,
}

impl InFlight {
    fn has_results(&self) -> bool {
        let execution = self.execution.lock().unwrap_or_else(|e| e.into_inner());
        // Who took the execution took its results.
        execution.as_ref().is_none_or(Execution::has_results)
    }
}

/// A batch that was submitted.
#[must_use = "the results of a batch come from its handle"]
pub struct LaunchHandle {
    in_flight: Arc<InFlight>,
    queue: Queue,
}

impl AsyncKernelLauncher {
    /// For at most `capacity` batches in flight.
    ///
    /// # Errors
    /// [`BatchError::NoRoom`] for none.
    pub fn new(
        batch: Arc<BatchQuantizedMatmul>,
        capacity: usize,
    ) -> Result<AsyncKernelLauncher, GpuError> {
        if capacity == 0 {
            return Err(GpuError::Batch(BatchError::NoRoom));
        }
        Ok(AsyncKernelLauncher {
            batch,
            capacity,
            queue: Queue::default(),
        })
    }

    /// Queues the operations and returns at once. What the device fails with from then on is told by the handle.
    ///
    /// # Errors
    /// [`BatchError::QueueFull`] with as many batches in flight as the launcher takes; what is wrong with the
    /// operations; if there is no memory for them.
    pub fn submit(&self, ops: &[QuantizedMatmulOp<'_>]) -> Result<LaunchHandle, GpuError> {
        let mut queue = lock(&self.queue);
        retire(&mut queue);
        if queue.len() >= self.capacity {
            return Err(GpuError::Batch(BatchError::QueueFull { n: queue.len() }));
        }
        let mut execution = Execution::prepare(&self.batch, ops)?;
        let queued = execution.queue();
        let in_flight = Arc::new(InFlight {
            done: execution.done(),
            execution: Mutex::new(Some(execution)),
            failure: OnceLock::new(),
            _batch: Arc::clone(&self.batch),
        });
        match queued {
            Ok(()) => queue.push_back(Arc::clone(&in_flight)),
            Err(error) if error.is_fatal() => {
                // Calls fail with what broke the device, which may have been an earlier batch.
                queue.push_back(Arc::clone(&in_flight));
                blame(&queue, &error);
            }
            Err(error) => {
                let _ = in_flight.failure.set(error);
            }
        }
        Ok(LaunchHandle {
            in_flight,
            queue: Arc::clone(&self.queue),
        })
    }

    /// Batches that are not done.
    pub fn n_in_flight(&self) -> usize {
        let mut queue = lock(&self.queue);
        retire(&mut queue);
        queue.len()
    }

    /// Waits until another batch may be submitted.
    pub fn wait_for_room(&self) {
        loop {
            let first = {
                let mut queue = lock(&self.queue);
                retire(&mut queue);
                match queue.front() {
                    Some(first) if queue.len() >= self.capacity => Arc::clone(first),
                    _ => return,
                }
            };
            if let Err(error) = first.done.wait() {
                blame(&lock(&self.queue), &error);
            }
        }
    }

    /// Waits for all that was submitted. Failures are told by the handles.
    pub fn wait_for_all(&self) {
        let all: Vec<_> = lock(&self.queue).iter().cloned().collect();
        for in_flight in all {
            if let Err(error) = in_flight.done.wait() {
                blame(&lock(&self.queue), &error);
            }
        }
    }
}

impl LaunchHandle {
    /// Whether the batch is done, well or not: then [`LaunchHandle::wait`] does not wait.
    pub fn is_done(&self) -> bool {
        let in_flight = &self.in_flight;
        if in_flight.failure.get().is_some() || in_flight.has_results() {
            return true;
        }
        match in_flight.done.is_done() {
            Ok(is_done) => is_done,
            Err(error) => {
                blame(&lock(&self.queue), &error);
                true
            }
        }
    }

    /// Waits for the results.
    ///
    /// # Errors
    /// What the device failed with in this batch. [`GpuError::Lost`], if an earlier one broke the device; results that were there
    /// before are not lost.
    pub fn wait(self) -> Result<BatchMatmulResult, GpuError> {
        let in_flight = &self.in_flight;
        if in_flight.failure.get().is_none()
            && let Err(error) = in_flight.done.wait()
            && !in_flight.has_results()
        {
            blame(&lock(&self.queue), &error);
            // Where the queue knows the batch no more.
            let _ = in_flight.failure.set(error);
        }
        if let Some(error) = in_flight.failure.get() {
            return Err(error.clone());
        }
        let mut execution = in_flight
            .execution
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        let execution = execution.take().expect("only the handle takes it");
        Ok(execution.finish())
    }
}

/// Forgets batches that are done, or failed.
fn retire(queue: &mut VecDeque<Arc<InFlight>>) {
    queue.retain(|in_flight| in_flight.failure.get().is_none() && !in_flight.has_results());
}

/// Tells the failure of a device to the batch that suffered it, which is the first that has no results, and its
/// consequence to those behind.
fn blame(queue: &VecDeque<Arc<InFlight>>, error: &GpuError) {
    let without = queue.iter().filter(|in_flight| !in_flight.has_results());
    let cause = match error {
        GpuError::Lost { cause } => cause,
        error => &Box::new(error.clone()),
    };
    for (i, in_flight) in without.enumerate() {
        let told = match i {
            0 => (**cause).clone(),
            _ => GpuError::Lost {
                cause: cause.clone(),
            },
        };
        // The first failure is the one that says most.
        let _ = in_flight.failure.set(told);
    }
}
