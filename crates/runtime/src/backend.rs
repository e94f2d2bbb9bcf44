//! The interface of a device: it compiles a plan and runs batches.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::RuntimeError;
use crate::gpu_config::Graphs;
use crate::offload::Offload;
use crate::times::StepObserver;
use crate::tuning::TuneProgress;
use rocmforge_plan::{Batch, StepOutput};
use rocmforge_plan::{BufferId, Op, Side};

/// Read access to the float buffers of a step, for observers.
pub trait OpData {
    /// Returns the values of a buffer, `[rows, width]`. A GPU copies them to the host.
    fn buffer(&self, id: BufferId) -> Cow<'_, [f32]>;
}

/// Called before and after every operation of a step, on the thread of the backend.
pub trait OpObserver: Send {
    /// Called before the operation at `index` of the compiled plan.
    fn before(&mut self, index: usize, op: &Op, batch: &Batch, data: &dyn OpData);
    /// Called after it.
    fn after(&mut self, index: usize, op: &Op, batch: &Batch, data: &dyn OpData);
}

/// The callback for a step's result. A device with its own queue may call it after `submit` returns.
pub type Reply = Box<dyn FnOnce(Result<StepOutput, RuntimeError>) + Send>;

/// Which steps to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait; only collect steps that are done.
    No,
    Oldest,
    All,
}

/// The background work, such as autotuning, that an idle device has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleWork {
    /// None is left.
    Done,
    /// There is more to do now.
    Now,
    /// There is more to do once something else has finished.
    Later,
}

/// A compiled model on a device.
pub trait Backend: Send {
    /// Starts a step. Steps finish in the order they were submitted. Errors go to `reply`.
    fn submit(&mut self, batch: Batch, reply: Reply);

    /// Returns the number of submitted steps without a reply.
    fn n_in_flight(&self) -> usize {
        0
    }

    /// Replies to finished steps, after waiting for those that `wait` names.
    fn finish(&mut self, _wait: Wait) {}

    /// Sets the observer of the following steps.
    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>);

    /// Sets the step observer, which gets the times of the following steps.
    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>);

    /// Autotunes launches for about `budget`. Returns `None` if this device has nothing to tune. No step may be in
    /// flight.
    fn tune(&mut self, _budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        Ok(None)
    }

    /// Does background work such as autotuning for about `budget`, and returns what is left.
    fn idle(&mut self, _budget: Duration) -> IdleWork {
        IdleWork::Done
    }

    /// Describes the backend.
    fn info(&self) -> BackendInfo;
}

/// Bytes that a backend has allocated on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights in the device's layout, KV cache and step buffers.
    pub total: u64,
    /// Step buffers alone.
    pub scratch: u64,
}

/// Facts about a backend with a compiled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// The device in words, e.g. `CPU (avx2, 2 threads)`.
    pub device: String,
    /// Number of operations per step without a fast kernel, by cause, such as a weight format.
    pub slow_ops: Vec<(String, usize)>,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// Bytes of the slots for states of sequences.
    pub state_bytes: u64,
    /// Memory on a device that allocates everything at start.
    pub device_memory: Option<DeviceMemory>,
    /// Which decode steps run as graphs.
    pub graphs: Graphs,
    /// Whether the bits of a row depend on the tokens of its sequence only. Else they also depend on how many rows its step has.
    pub batch_invariant: bool,
    /// Number of autotuned launches.
    pub n_tuned: usize,
    /// Messages for the user about how the model runs.
    pub notices: Vec<String>,
    /// The resolved offload: never [`GpuLayers::Auto`](crate::gpu::GpuLayers::Auto).
    pub offload: Offload,
    /// The part of each device, if several share the model; otherwise empty.
    pub parts: Vec<BackendPart>,
}

/// The part of a model on one of several devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendPart {
    pub side: Side,
    /// The device in words.
    pub device: String,
    /// Layers whose KV cache is on this device.
    pub n_layers: usize,
    /// Operations per step.
    pub n_ops: usize,
    /// Bytes of its KV cache.
    pub kv_bytes: u64,
}

impl BackendInfo {
    /// Returns whether any part of the model is on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.offload != Offload::NOTHING
    }
}

impl Backend for Box<dyn Backend> {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        (**self).submit(batch, reply);
    }

    fn n_in_flight(&self) -> usize {
        (**self).n_in_flight()
    }

    fn finish(&mut self, wait: Wait) {
        (**self).finish(wait);
    }

    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        (**self).observe(observer);
    }

    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        (**self).observe_steps(observer);
    }

    fn tune(&mut self, budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        (**self).tune(budget)
    }

    fn idle(&mut self, budget: Duration) -> IdleWork {
        (**self).idle(budget)
    }

    fn info(&self) -> BackendInfo {
        (**self).info()
    }
}
