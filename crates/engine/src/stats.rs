//! What an engine is doing, in numbers.

use serde::Serialize;

use crate::kv_cache::{ContextShifts, KvUsage};

/// The state of an engine after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Requests that are served.
    pub running: usize,
    /// Requests that wait, preempted ones included.
    pub waiting: usize,
    pub blocks: BlockUsage,
    pub prefix: PrefixLookups,
    /// Times that a request gave its blocks to another one.
    pub preemptions: u64,
    /// Steps that the device did not compute. Their requests were tried again.
    pub failed_steps: u64,
    /// The KV-cache usage when the last step was submitted.
    pub kv_usage: KvUsage,
    pub context_shifts: ContextShifts,
}

/// Blocks of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BlockUsage {
    /// Blocks of requests.
    pub used: usize,
    /// Other blocks, whose content a request with the same prefix can use.
    pub cached: usize,
    pub total: usize,
}

/// Prompt tokens looked for in the prefix cache, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PrefixLookups {
    pub queries: u64,
    pub hits: u64,
}
