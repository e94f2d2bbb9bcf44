//! Asynchronous batches: they run while the host does something else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::execution::Execution;
use super::result::BatchMatmulResult;
use super::{BatchQuantizedMatmul, QuantizedMatmulOp};
use crate::error::{BatchError, GpuError};
use crate::event::Event;

/// Queues batches of operations on a device's stream and returns a handle for each. Batches run in submission order.
/// Host inputs may be overwritten as soon as a batch is submitted.
///
/// Handles and the launcher may be dropped at any time: memory that queued work uses stays allocated until that work is
/// done. Dropping the last reference to a batch in flight waits for it.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rocmforge_gpu::{AsyncKernelLauncher, BatchQuantizedMatmul, GpuError, QuantizedMatmulOp};
/// # fn run(batch: BatchQuantizedMatmul, ops: &[QuantizedMatmulOp<'_>]) -> Result<(), GpuError> {
/// let launcher = AsyncKernelLauncher::new(Arc::new(batch), 4)?;
/// let handle = launcher.submit(ops)?;
/// while !handle.is_done() {
///      // Do something useful.
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

/// Batches that may be in flight, in submission order.
type Queue = Arc<Mutex<VecDeque<Arc<InFlight>>>>;

fn lock(queue: &Queue) -> MutexGuard<'_, VecDeque<Arc<InFlight>>> {
    queue.lock().unwrap_or_else(|e| e.into_inner())
}

struct InFlight {
    /// First field, so that its drop waits for the work while the weights still exist.
    execution: Mutex<Option<Execution>>,
    done: Arc<Event>,
    failure: OnceLock<GpuError>,
    _batch: Arc<BatchQuantizedMatmul>,
}

impl InFlight {
    fn has_results(&self) -> bool {
        let execution = self.execution.lock().unwrap_or_else(|e| e.into_inner());
        // If the execution was taken, its results were taken with it.
        execution.as_ref().is_none_or(Execution::has_results)
    }
}

/// A submitted batch.
#[must_use = "the results of a batch come from its handle"]
pub struct LaunchHandle {
    in_flight: Arc<InFlight>,
    queue: Queue,
}

impl AsyncKernelLauncher {
    /// Creates a launcher for at most `capacity` batches in flight.
    ///
    /// # Errors
    /// [`BatchError::NoRoom`] if `capacity` is 0.
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

    /// Queues the operations and returns at once. Later errors of the device are reported by the handle.
    ///
    /// # Errors
    /// [`BatchError::QueueFull`] if as many batches are in flight as the launcher takes; other [`BatchError`]s if an
    /// operation is invalid; [`GpuError::OutOfMemory`].
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
                // The error reported here may stem from an earlier batch that broke the device.
                queue.push_back(Arc::clone(&in_flight));
                assign_failure(&queue, &error);
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

    /// Number of batches that are not done.
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
                assign_failure(&lock(&self.queue), &error);
            }
        }
    }

    /// Waits for all submitted batches. Errors are reported by their handles.
    pub fn wait_for_all(&self) {
        let all: Vec<_> = lock(&self.queue).iter().cloned().collect();
        for in_flight in all {
            if let Err(error) = in_flight.done.wait() {
                assign_failure(&lock(&self.queue), &error);
            }
        }
    }
}

impl LaunchHandle {
    /// Whether the batch has succeeded or failed, so that [`LaunchHandle::wait`] does not block.
    pub fn is_done(&self) -> bool {
        let in_flight = &self.in_flight;
        if in_flight.failure.get().is_some() || in_flight.has_results() {
            return true;
        }
        match in_flight.done.is_done() {
            Ok(is_done) => is_done,
            Err(error) => {
                assign_failure(&lock(&self.queue), &error);
                true
            }
        }
    }

    /// Waits for the results.
    ///
    /// # Errors
    /// The device's error in this batch. [`GpuError::Lost`] if an earlier batch broke the device. Results that arrived
    /// before that are not lost.
    pub fn wait(self) -> Result<BatchMatmulResult, GpuError> {
        let in_flight = &self.in_flight;
        if in_flight.failure.get().is_none()
            && let Err(error) = in_flight.done.wait()
            && !in_flight.has_results()
        {
            assign_failure(&lock(&self.queue), &error);
            // For batches that are no longer in the queue.
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

/// Removes batches that are done or failed from the queue.
fn retire(queue: &mut VecDeque<Arc<InFlight>>) {
    queue.retain(|in_flight| in_flight.failure.get().is_none() && !in_flight.has_results());
}

/// Assigns a device error to the first batch without results, which caused it, and [`GpuError::Lost`] to the batches
/// behind.
fn assign_failure(queue: &VecDeque<Arc<InFlight>>, error: &GpuError) {
    let without = queue.iter().filter(|in_flight| !in_flight.has_results());
    let cause = match error {
        GpuError::Lost { cause } => cause,
        error => &Box::new(error.clone()),
    };
    for (i, in_flight) in without.enumerate() {
        let failure = match i {
            0 => (**cause).clone(),
            _ => GpuError::Lost {
                cause: cause.clone(),
            },
        };
        // The first error is the most informative one.
        let _ = in_flight.failure.set(failure);
    }
}
