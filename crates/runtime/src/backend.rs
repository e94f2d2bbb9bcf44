//! The device side of the engine: compiles a plan and runs batches.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::RuntimeError;
use crate::offload::Offload;
use crate::times::StepObserver;
use crate::tuning::TuneProgress;
use rocmforge_plan::{Batch, StepOutput};
use rocmforge_plan::{BufferId, Op, Side};

/// The float buffers of a step as they are when an observer looks.
pub trait OpData {
    /// Values of the buffer, `[rows, width]`; a device copies them to the host.
    fn buffer(&self, id: BufferId) -> Cow<'_, [f32]>;
}

/// Told before and after every operation of a step; runs on the device's thread.
pub trait OpObserver: Send {
    /// `index` is the operation's place in the compiled plan.
    fn before(&mut self, index: usize, op: &Op, batch: &Batch, data: &dyn OpData);
    fn after(&mut self, index: usize, op: &Op, batch: &Batch, data: &dyn OpData);
}

/// Where a backend puts the result of a step. A device with a queue of its own may keep it and answer later.
pub type Reply = Box<dyn FnOnce(Result<StepOutput, RuntimeError>) + Send>;

/// Which steps to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// None: those that are over already.
    No,
    Oldest,
    All,
}

/// What a device without a step has left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    Now,
    /// Something else has to end first.
    Later,
}

/// A compiled model on a device.
pub trait Backend: Send {
    /// Starts the step. Steps finish in the order they were submitted. Whatever goes wrong is the reply.
    fn submit(&mut self, batch: Batch, reply: Reply);

    /// How many submitted steps have no reply yet.
    fn n_in_flight(&self) -> usize {
        0
    }

    /// Replies to steps that are over.
    fn finish(&mut self, _wait: Wait) {}

    /// Sets the observer of the following steps.
    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>);

    /// Sets who is told what the following steps take.
    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>);

    /// Measures ways to make its launches, for about so long or a little more; `None` if there is nothing to choose on
    /// this device. No step may be in flight.
    fn tune(&mut self, _budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        Ok(None)
    }

    /// Does what can be done while there is no step to run, for about so long; when there is more.
    fn idle(&mut self, _budget: Duration) -> Rest {
        Rest::Nothing
    }

    fn info(&self) -> BackendInfo;
}

/// Bytes that a backend has on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights as the device has them, the cache and what steps need.
    pub total: u64,
    /// What steps need beside weights and cache.
    pub scratch: u64,
}

/// What a backend says of itself once it has compiled the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// Device in words, e.g. `CPU (avx2, 2 threads)`.
    pub device: String,
    /// Operations of a step that have no fast kernel, by what keeps them from it, such as a weight format.
    pub slow_ops: Vec<(String, usize)>,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// The memory of a device that takes all of it at once.
    pub device_memory: Option<DeviceMemory>,
    /// Whether steps of generation run as graphs.
    pub graphs: bool,
    /// Launches whose making was measured on the device before.
    pub n_tuned: usize,
    /// What the user should know of how it runs.
    pub notices: Vec<String>,
    /// What of the model is on a GPU, as it was settled: never [`GpuLayers::Auto`](crate::gpu::GpuLayers::Auto).
    pub offload: Offload,
    /// What each device has, where several share the model; otherwise empty.
    pub parts: Vec<BackendPart>,
}

/// A device of several that share a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendPart {
    pub side: Side,
    /// In words.
    pub device: String,
    /// Layers whose cache it has.
    pub n_layers: usize,
    /// Operations of a step.
    pub n_ops: usize,
    /// Bytes of its KV cache.
    pub kv_bytes: u64,
}

impl BackendInfo {
    /// Whether a GPU has any of the model.
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

    fn idle(&mut self, budget: Duration) -> Rest {
        (**self).idle(budget)
    }

    fn info(&self) -> BackendInfo {
        (**self).info()
    }
}
