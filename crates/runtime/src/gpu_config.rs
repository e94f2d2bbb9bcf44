//! The user's choices for a GPU.

use std::sync::Arc;

use rocmforge_gpu::{DeviceId, OpenOptions};

use crate::offload::Offload;
use crate::self_check::SelfCheck;
use crate::tuning::TuningStore;

/// Which GPU, and how to run on it.
#[derive(Debug, Clone, Default)]
pub struct GpuConfig {
    /// `None` is the first GPU of this machine ([`first`]).
    pub id: Option<DeviceId>,
    pub open: OpenOptions,
    pub graphs: Graphs,
    pub self_check: SelfCheck,
    pub offload: Offload,
    pub tuning: TuningUse,
}

/// Whose measurements decide how launches are made where the result is the same, and who measures more.
#[derive(Debug, Clone, Default)]
pub struct TuningUse {
    /// Without one, all launches are made in the usual way.
    pub store: Option<Arc<dyn TuningStore>>,
    pub when_idle: WhenIdle,
}

/// What a device does that has no step to run for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenIdle {
    #[default]
    Wait,
    /// It measures launches for the store, a few milliseconds at a time.
    Tune,
}

/// Whether steps of generation run as graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Graphs {
    #[default]
    On,
    /// Every launch is queued by itself, in every step.
    Off,
}
