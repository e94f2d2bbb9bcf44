//! What an engine is doing, in numbers.

use std::time::Duration;

use serde::Serialize;

use crate::draft::DraftCounts;
use crate::kv_cache::{BlockPool, ContextShifts, KvUsage};
use crate::sequence::Sequence;

/// The state of an engine after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Requests that are served.
    pub running: usize,
    /// Requests that wait, preempted ones included.
    pub waiting: usize,
    /// How long a request would probably wait behind those; zero as long as nothing is known about the device.
    pub queue_time: Duration,
    pub blocks: BlockUsage,
    /// Slots for states of sequences; none if the model keeps none. Snapshots are the cached ones.
    pub states: BlockUsage,
    pub prefix: PrefixLookups,
    pub drafts: DraftCounts,
    /// Times that a request gave its blocks to another one.
    pub preemptions: u64,
    /// Steps that the device did not compute. Their requests were tried again.
    pub failed_steps: u64,
    /// Times that another backend took the place of the engine's own.
    pub restarts: u64,
    /// The KV-cache usage when the last step was submitted.
    pub kv_usage: KvUsage,
    pub context_shifts: ContextShifts,
}

/// Blocks of the KV cache, or slots for states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BlockUsage {
    /// Blocks of requests.
    pub used: usize,
    /// Other blocks, whose content a request with the same prefix can use.
    pub cached: usize,
    pub total: usize,
}

impl BlockUsage {
    pub(crate) fn of(pool: &BlockPool) -> BlockUsage {
        BlockUsage {
            used: pool.n_blocks() - pool.n_free(),
            cached: pool.n_cached(),
            total: pool.n_blocks(),
        }
    }
}

/// Prompt tokens looked for in the prefix cache, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PrefixLookups {
    pub queries: u64,
    pub hits: u64,
}

/// Requests that wait, and the tokens of their prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Queued {
    pub(crate) requests: usize,
    pub(crate) tokens: usize,
}

impl Queued {
    pub(crate) fn by(sequence: &Sequence) -> Queued {
        Queued {
            requests: 1,
            tokens: sequence.n_prompt,
        }
    }

    /// Returns what remains of this after `left` of it have gone.
    pub(crate) fn without(self, left: Queued) -> Queued {
        Queued {
            requests: self.requests.saturating_sub(left.requests),
            tokens: self.tokens.saturating_sub(left.tokens),
        }
    }
}

impl std::ops::AddAssign for Queued {
    fn add_assign(&mut self, more: Queued) {
        self.requests += more.requests;
        self.tokens += more.tokens;
    }
}
