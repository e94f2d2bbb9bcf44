//! GPU settings.

use std::sync::Arc;

use rocmforge_gpu::{DeviceId, OpenOptions};

use crate::offload::Offload;
use crate::self_check::SelfCheck;
use crate::tuning::TuningStore;

/// Selects a GPU and how to run on it.
#[derive(Debug, Clone, Default)]
pub struct GpuConfig {
    /// `None` selects the best usable GPU ([`best`](crate::gpu::best)).
    pub id: Option<DeviceId>,
    pub open: OpenOptions,
    pub graphs: Graphs,
    /// Whether the bits of a sequence's logits depend on its own tokens only: not on other sequences, on how its prompt is
    /// divided into steps, or on what was in the cache, as on a CPU in any case. Steps are of prompts or of answers only.
    pub batch_invariant: bool,
    pub self_check: SelfCheck,
    pub offload: Offload,
    pub tuning: TuningUse,
}

/// Which autotuning results to use, and whether to measure more. Tuning never changes results.
#[derive(Debug, Clone, Default)]
pub struct TuningUse {
    /// Stored results. Without a store, all launches use their default variant.
    pub store: Option<Arc<dyn TuningStore>>,
    pub when_idle: WhenIdle,
}

/// What a device does while it has no step to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenIdle {
    #[default]
    Wait,
    /// Measures launch variants for the store, a few milliseconds at a time.
    Tune,
}

/// Whether decode steps run as graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Graphs {
    #[default]
    On,
    /// As `On`, but not those of one sequence: a check found separate launches to be faster.
    OfSeveral,
    /// Every launch of every step is queued separately.
    Off,
}
