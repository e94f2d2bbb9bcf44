//! The user's settings of an engine: context, KV cache, batch sizes and device.

use std::time::Duration;

use rocmforge_plan::{Fusion, KvTypes};

use crate::error::ConfigError;
use crate::gpu_config::GpuConfig;

/// The user's settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Positions per sequence; `None` takes the minimum of the trained context, 8192 and what fits in memory.
    pub n_ctx: Option<usize>,
    /// What to do with a sequence whose context is full.
    pub context_policy: ContextPolicy,
    /// Sequences served at once.
    pub max_seqs: usize,
    /// KV-cache size, for all sequences together.
    pub kv_tokens: KvTokens,
    /// Page size: tokens per KV-cache block; 16, 32 or 64.
    pub page: usize,
    pub kv_types: KvTypes,
    /// Tokens per step. Longer prompts are prefilled in chunks of this size. On a GPU whose memory is scarce, chunks of more
    /// than 512 tokens get smaller.
    pub max_batch_tokens: usize,
    /// How long a step should take at most while sequences generate: it takes fewer tokens of prompts then, but at least a
    /// page of them. `None` lets prompts fill each step.
    pub step_target: Option<Duration>,
    pub prefix_sharing: PrefixSharing,
    /// The most tokens that one sequence drafts. Models with states keep one after each drafted token of a few sequences.
    pub max_draft: usize,
    /// Steps submitted before the first one's result is read: 1 or 2. With 2, the device never waits for the engine,
    /// and the end of a text is noticed one step late.
    pub steps_in_flight: usize,
    /// The device that runs the model.
    pub device: Device,
    pub isa: rocmforge_cpu::Isa,
    /// Whether operations are fused. Observers that read values need [`Fusion::Off`].
    pub fusion: Fusion,
    /// CPU threads; `None` takes one per core this process may use, not one per hardware thread.
    pub n_threads: Option<usize>,
    /// Takes what the user should know while the device serves, such as that graphs stopped working. What is known at the
    /// start is in [`BackendInfo::notices`](crate::BackendInfo::notices). Called between two launches, so it must not wait.
    pub notice: fn(&str),
}

impl EngineConfig {
    /// Sets the device, with the batch size and the steps in flight that suit it.
    ///
    /// A GPU gets larger prefill batches, so that its matrix units have work, and a second step in flight: the host
    /// prepares a step while the one before it runs.
    #[must_use]
    pub fn on(self, device: Device) -> EngineConfig {
        let (max_batch_tokens, steps_in_flight) = match device {
            Device::Cpu => (256, 1),
            Device::Gpu(_) => (2048, 2),
        };
        EngineConfig {
            device,
            max_batch_tokens,
            steps_in_flight,
            ..self
        }
    }

    /// Sequences that answer at a time at most, for the order of weights: any number if one is computed like many.
    pub(crate) fn answers_at_once(&self) -> usize {
        match &self.device {
            Device::Gpu(gpu) if gpu.batch_invariant => usize::MAX,
            Device::Cpu | Device::Gpu(_) => self.max_seqs,
        }
    }
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            n_ctx: None,
            context_policy: ContextPolicy::Stop,
            max_seqs: 64,
            kv_tokens: KvTokens::OneContext,
            page: 32,
            kv_types: KvTypes::default(),
            max_batch_tokens: 256,
            step_target: None,
            prefix_sharing: PrefixSharing::On,
            max_draft: 0,
            steps_in_flight: 1,
            device: Device::Cpu,
            isa: rocmforge_cpu::Isa::detect(),
            fusion: Fusion::On,
            n_threads: None,
            notice: |_| {},
        }
    }
}

/// The size of the KV cache in tokens. It holds at least one full context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvTokens {
    #[default]
    OneContext,
    Exactly(usize),
    /// As many as fit in memory, up to this number.
    AtMost(usize),
}

/// The device that runs a model.
#[derive(Debug, Clone, Default)]
pub enum Device {
    #[default]
    Cpu,
    Gpu(GpuConfig),
}

/// What to do with a sequence whose context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextPolicy {
    /// End it, with `FinishReason::Context`.
    #[default]
    Stop,
    /// Drop the older half of the tokens after the first `n_sinks`, and continue.
    Shift { n_sinks: usize },
}

impl ContextPolicy {
    /// The number of sinks that Xiao et al. 2023 found sufficient.
    pub const DEFAULT_SINKS: usize = 4;

    /// Checks that a context of `n_ctx` tokens can shift: at least two tokens must follow the sinks.
    ///
    /// # Errors
    /// [`ConfigError::TooManySinks`].
    pub fn check(self, n_ctx: usize) -> Result<(), ConfigError> {
        match self {
            ContextPolicy::Shift { n_sinks } if n_sinks.saturating_add(2) > n_ctx => {
                Err(ConfigError::TooManySinks { n_sinks, n_ctx })
            }
            _ => Ok(()),
        }
    }
}

/// Whether requests share KV-cache blocks with equal prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixSharing {
    On,
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifting_needs_two_tokens_after_the_sinks() {
        let shift = |n_sinks| ContextPolicy::Shift { n_sinks };
        assert!(shift(4).check(6).is_ok() && ContextPolicy::Stop.check(1).is_ok());
        for (n_sinks, n_ctx) in [(4, 5), (4, 1), (100, 64), (usize::MAX, 64)] {
            let message = shift(n_sinks).check(n_ctx).unwrap_err().to_string();
            assert!(message.contains("fewer sinks"), "{message}");
        }
    }
}
