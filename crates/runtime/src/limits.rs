//! Limits of an engine: resolves the context and the KV-cache size against the model and the free memory, once at
//! start.

use std::time::Duration;

use crate::config::{ContextPolicy, Device, EngineConfig, KvTokens, PrefixSharing};
use crate::error::ConfigError;
use rocmforge_gpu::ops::MAX_ANSWER_ROWS;
use rocmforge_model::Model;
use rocmforge_plan::{Fixed, Plan};
use rocmforge_plan::{KvSpec, KvTypes, ParameterError, Values};

/// Default context when the model was trained for more.
const DEFAULT_CTX: usize = 8192;
/// Memory left free when the cache size is chosen: at most this, and at most a quarter of what is free.
const RESERVE_BYTES: u64 = 512 << 20;
/// Rows of logits per step: 64 rows of 150,000 tokens are 38 MB.
const MAX_LOGITS_ROWS: usize = 64;
/// Slots for states per sequence: its own, one after its prompt, one in its answer, and one where sequences part.
const SLOTS_PER_SEQUENCE: usize = 4;
/// Sequences that have slots for the states of their drafts. Drafts seldom pay where many sequences generate.
const DRAFTING_SEQUENCES: usize = 4;
/// Cache slots have 32-bit numbers.
const MAX_TOKENS: usize = u32::MAX as usize / 2;

/// The limits of a started engine.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Positions of one sequence.
    pub n_ctx: usize,
    /// Sequences served at once.
    pub max_seqs: usize,
    /// Tokens per step.
    pub max_tokens: usize,
    /// Rows of logits per step.
    pub max_logits: usize,
    /// The time that a step should take at most while sequences generate.
    pub step_target: Option<Duration>,
    pub prefix_sharing: PrefixSharing,
    /// If steps are of prompts or of answers only: the most rows of a step of answers.
    pub max_answer_rows: Option<usize>,
    /// The policy of requests that set none.
    pub context_policy: ContextPolicy,
    /// Why contexts cannot shift; `None` if they can.
    pub fixed_by: Option<Fixed>,
    /// What requests can ask for.
    pub output: Output,
    /// Whether each sequence must be computed whole, in one step, because its tokens see those after them.
    pub whole_sequences: bool,
}

impl Limits {
    /// Returns how many of a sequence's first `n` tokens may be shared with other sequences, `n_prompt` of which are its
    /// prompt: what steps of answers compute may have other bits than what steps of prompts compute.
    pub fn n_shareable(&self, n: usize, n_prompt: usize) -> usize {
        match self.max_answer_rows {
            None => n,
            Some(_) => n.min(n_prompt),
        }
    }

    /// Returns how many rows of a step may be sampled.
    pub(crate) fn max_sampled(&self) -> usize {
        self.output.max_sampled(self.max_logits)
    }
}

/// What a model computes for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Logits,
    /// Hidden values, or scores, of a model for embeddings.
    Hidden,
}

impl Output {
    /// Returns how many of `max_logits` rows may be sampled.
    pub(crate) fn max_sampled(self, max_logits: usize) -> usize {
        match self {
            Output::Logits => max_logits,
            Output::Hidden => 0,
        }
    }

    /// Returns what `model` computes.
    pub fn of(model: &Model) -> Output {
        match model.config.embedding {
            None => Output::Logits,
            Some(_) => Output::Hidden,
        }
    }
}

/// The limits of an engine and the number of its KV-cache blocks.
#[derive(Debug)]
pub struct Resolved {
    pub limits: Limits,
    pub n_blocks: usize,
    /// Slots for states of sequences; 0 if no layer keeps one.
    pub n_slots: usize,
}

/// Free bytes of one memory, and the bytes a model needs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// Weights still to be loaded, with their staging buffers.
    pub(crate) weight_bytes: u64,
    /// Buffers of the largest step, and the state of one sequence.
    pub(crate) step_bytes: u64,
    /// The state of another sequence.
    pub(crate) state_bytes: u64,
    /// Cache bytes per token.
    pub(crate) bytes_per_token: u64,
    /// Free bytes; `None` if the system does not report them.
    pub(crate) free_bytes: Option<u64>,
}

impl MemoryBudget {
    /// Returns the budget of a device that runs `plan` and already has its weights.
    pub(crate) fn for_plan(
        (plan, output): (&Plan, Output),
        config: &EngineConfig,
        free_bytes: Option<u64>,
    ) -> MemoryBudget {
        let (max_tokens, max_logits) = step_rows(config, output);
        MemoryBudget {
            weight_bytes: 0,
            step_bytes: plan
                .buffer_bytes(max_tokens, max_logits)
                .saturating_add(plan.state_bytes()),
            state_bytes: plan.state_bytes(),
            bytes_per_token: plan.kv_bytes_per_token(config.kv_types).max(1),
            free_bytes,
        }
    }

    /// Adds the needs of another device that shares this memory.
    pub(crate) fn shared_with(self, other: MemoryBudget) -> MemoryBudget {
        MemoryBudget {
            weight_bytes: self.weight_bytes.saturating_add(other.weight_bytes),
            step_bytes: self.step_bytes.saturating_add(other.step_bytes),
            state_bytes: self.state_bytes.saturating_add(other.state_bytes),
            bytes_per_token: self.bytes_per_token.saturating_add(other.bytes_per_token),
            free_bytes: self.free_bytes,
        }
    }

    /// Returns the bytes for step buffers and cache: what is free, less weights and reserve.
    fn available_bytes(&self) -> Result<u64, ConfigError> {
        let Some(free) = self.free_bytes else {
            return Ok(u64::MAX);
        };
        let left = free.checked_sub(self.weight_bytes);
        let left = left.ok_or(ConfigError::NoMemoryForWeights {
            needed_mib: self.weight_bytes >> 20,
            free_mib: free >> 20,
        })?;
        Ok(left - RESERVE_BYTES.min(left / 4))
    }

    /// Returns the bytes that must be free for a cache of `n_tokens` tokens in whole blocks: weights, step buffers,
    /// cache and reserve.
    pub(crate) fn required_bytes(&self, n_tokens: usize, page: usize) -> u64 {
        let n_tokens = n_tokens.div_ceil(page).saturating_mul(page) as u64;
        let cache = self.bytes_per_token.saturating_mul(n_tokens);
        let taken = self.step_bytes.saturating_add(cache);
        // The inverse of `available_bytes`, rounded up.
        let reserve = match taken.checked_sub(1) {
            None => 0,
            Some(below) => RESERVE_BYTES.min(below / 3),
        };
        self.weight_bytes
            .saturating_add(taken)
            .saturating_add(reserve)
    }

    /// Returns whether a cache of `n_tokens` tokens fits.
    pub(crate) fn fits(&self, n_tokens: usize, page: usize) -> bool {
        self.free_bytes
            .is_none_or(|free| self.required_bytes(n_tokens, page) <= free)
    }
}

/// Returns the most rows of a step and of its logits. The embedding of a text may need a row of each of its tokens.
pub(crate) fn step_rows(config: &EngineConfig, output: Output) -> (usize, usize) {
    let max_tokens = config.max_batch_tokens.max(config.max_seqs);
    let max_logits = match output {
        Output::Logits => MAX_LOGITS_ROWS.max(config.max_seqs),
        Output::Hidden => max_tokens,
    };
    (max_tokens, max_logits)
}

impl EngineConfig {
    /// Returns the context to use if memory allows it: what is set, or at most what the model was trained for.
    pub fn usual_ctx(&self, model: &Model) -> usize {
        let usual = model.config.n_ctx_train.min(DEFAULT_CTX);
        self.n_ctx.unwrap_or(usual)
    }

    /// Allows as many tokens per step as the context has, if `model` reads each text whole, in one step.
    #[must_use]
    pub fn with_whole_texts(self, model: &Model) -> EngineConfig {
        match model.plan.looks_ahead() {
            true => EngineConfig {
                max_batch_tokens: self.usual_ctx(model),
                ..self
            },
            false => self,
        }
    }
}

/// Returns the smallest cache that will do for sequences of `n_ctx` positions, in tokens.
pub(crate) fn cache_tokens(config: &EngineConfig, n_ctx: usize) -> usize {
    match config.kv_tokens {
        KvTokens::Exactly(n) => n.max(n_ctx),
        KvTokens::OneContext | KvTokens::AtMost(_) => n_ctx,
    }
}

/// Resolves `config` for `model` with `available` bytes of free memory; `None` if the system does not report them.
pub(crate) fn resolve(
    model: &Model,
    config: &EngineConfig,
    available: Option<u64>,
) -> Result<Resolved, ConfigError> {
    resolve_in(
        model,
        config,
        &[MemoryBudget::for_plan(
            (&model.plan, Output::of(model)),
            config,
            available,
        )],
    )
}

/// Like [`resolve`], for several memories: the one in which the fewest tokens fit decides.
pub(crate) fn resolve_in(
    model: &Model,
    config: &EngineConfig,
    budgets: &[MemoryBudget],
) -> Result<Resolved, ConfigError> {
    check(model, config)?;
    let output = Output::of(model);
    let (max_tokens, max_logits) = step_rows(config, output);
    let n_slots = n_slots(model, config, budgets)?;

    // Tokens that fit, bytes per token and bytes left in the memory that decides.
    let (mut fitting, mut per_token, mut left) = (usize::MAX, 1, u64::MAX);
    for budget in budgets {
        let free = budget.available_bytes()?;
        let step = budget.step_bytes;
        let per_token_here = budget.bytes_per_token;
        let states = { budget.state_bytes }.saturating_mul(n_slots.saturating_sub(1) as u64);
        let left_here = free.saturating_sub(step).saturating_sub(states);
        let fitting_here = usize::try_from(left_here / per_token_here).unwrap_or(usize::MAX);
        let fitting_here = fitting_here / config.page * config.page;
        if fitting_here == 0 {
            let block = per_token_here.saturating_mul(config.page as u64);
            return Err(ConfigError::NoMemoryAtAll {
                needed_mib: step.saturating_add(block) >> 20,
                free_mib: free >> 20,
            });
        }
        if fitting_here < fitting {
            (fitting, per_token, left) = (fitting_here, per_token_here, left_here);
        }
    }

    let n_ctx = match config.n_ctx {
        Some(n_ctx) => n_ctx,
        None => config.usual_ctx(model).min(fitting),
    };
    if let Some(n_positions) = model.config.n_positions.filter(|&n| n_ctx > n) {
        return Err(ConfigError::TooFewPositions { n_ctx, n_positions });
    }
    config.context_policy.check(n_ctx)?;
    let whole_sequences = model.plan.looks_ahead();
    let fixed_by = model.plan.fixed_by();
    if config.context_policy != ContextPolicy::Stop {
        check_shift(fixed_by)?;
    }
    let n_kv_tokens = match config.kv_tokens {
        KvTokens::AtMost(n) => n.min(fitting).max(n_ctx),
        KvTokens::OneContext | KvTokens::Exactly(_) => cache_tokens(config, n_ctx),
    };
    if n_kv_tokens > fitting {
        return Err(ConfigError::NoMemory {
            n_ctx: n_kv_tokens,
            needed_mib: (n_kv_tokens as u64).saturating_mul(per_token) >> 20,
            free_mib: left >> 20,
            fitting,
        });
    }
    Ok(Resolved {
        limits: Limits {
            n_ctx,
            // Each has a slot.
            max_seqs: match n_slots {
                0 => config.max_seqs,
                n => config.max_seqs.min(n),
            },
            max_tokens,
            max_logits,
            step_target: config.step_target,
            // What comes after a prefix changes its values.
            prefix_sharing: match whole_sequences {
                true => PrefixSharing::Off,
                false => config.prefix_sharing,
            },
            max_answer_rows: match &config.device {
                Device::Gpu(gpu) if gpu.batch_invariant => {
                    Some(config.max_seqs.max(MAX_ANSWER_ROWS))
                }
                Device::Cpu | Device::Gpu(_) => None,
            },
            context_policy: config.context_policy,
            fixed_by,
            output,
            whole_sequences,
        },
        n_blocks: n_kv_tokens.div_ceil(config.page),
        n_slots,
    })
}

/// Checks that contexts can shift.
///
/// # Errors
/// [`ConfigError::FixedPositions`], [`ConfigError::FixedStates`].
pub fn check_shift(fixed_by: Option<Fixed>) -> Result<(), ConfigError> {
    match fixed_by {
        None => Ok(()),
        Some(Fixed::States) => Err(ConfigError::FixedStates),
        Some(Fixed::Positions | Fixed::LooksAhead) => Err(ConfigError::FixedPositions),
    }
}

/// Returns the slots for states: a few for each sequence, so that prefixes can be shared, in a quarter of the memory that
/// is free beside a step; at least one.
fn n_slots(
    model: &Model,
    config: &EngineConfig,
    budgets: &[MemoryBudget],
) -> Result<usize, ConfigError> {
    if model.plan.states.is_empty() {
        return Ok(0);
    }
    let n_drafts = { config.max_draft }.saturating_mul(config.max_seqs.min(DRAFTING_SEQUENCES));
    let mut n_slots = SLOTS_PER_SEQUENCE.saturating_mul(config.max_seqs);
    n_slots = n_slots.saturating_add(n_drafts);
    for budget in budgets.iter().filter(|budget| budget.state_bytes > 0) {
        let free = budget.available_bytes()?.saturating_sub(budget.step_bytes);
        let others = usize::try_from(free / 4 / budget.state_bytes).unwrap_or(usize::MAX);
        n_slots = n_slots.min(others.saturating_add(1));
    }
    Ok(n_slots)
}

/// Rejects a cache type whose quantization blocks do not divide the model's heads, and two types where values are parts of
/// keys.
fn check_heads(model: &Model, types: KvTypes) -> Result<(), ConfigError> {
    let layers = &model.plan.kv;
    let is_latent = |spec: &KvSpec| spec.values == Values::InKeys;
    if layers.iter().any(is_latent) && types.same().is_none() {
        return Err(ConfigError::KvTypesOfLatent { kv_types: types });
    }
    let mut heads =
        { layers.iter() }.flat_map(|spec| [(types.keys, spec.k_dim), (types.values, spec.v_dim)]);
    match heads.find(|&(kv_type, dim)| !dim.is_multiple_of(kv_type.block_len(dim))) {
        None => Ok(()),
        Some((kv_type, head_dim)) => Err(ConfigError::KvTypeHeadDim {
            kv_type: kv_type.name(),
            block_len: kv_type.block_len(head_dim),
            head_dim,
        }),
    }
}

/// Rejects settings that no machine could serve, at all or with this model.
pub(crate) fn check(model: &Model, config: &EngineConfig) -> Result<(), ConfigError> {
    check_config(config)?;
    check_heads(model, config.kv_types)
}

/// Rejects values out of range. The error names the setting.
fn check_config(config: &EngineConfig) -> Result<(), ConfigError> {
    let check = |ok: bool, name: &'static str, value: usize, wanted: &'static str| {
        if ok {
            Ok(())
        } else {
            Err(ParameterError {
                name,
                value: value.to_string(),
                wanted,
            }
            .into())
        }
    };
    let tokens = |n: Option<usize>| n.is_none_or(|n| (1..=MAX_TOKENS).contains(&n));
    let threads = |n: usize| (1..=rocmforge_cpu::MAX_THREADS).contains(&n);
    check(
        matches!(config.page, 16 | 32 | 64),
        "the page size",
        config.page,
        "16, 32 or 64",
    )?;
    check(
        config.max_seqs > 0,
        "the number of sequences",
        config.max_seqs,
        "1 or more",
    )?;
    check(
        config.max_batch_tokens > 0,
        "the tokens of a step",
        config.max_batch_tokens,
        "1 or more",
    )?;
    check(
        matches!(config.steps_in_flight, 1 | 2),
        "the number of steps in flight",
        config.steps_in_flight,
        "1 or 2",
    )?;
    const { assert!(rocmforge_cpu::MAX_THREADS == 1024, "the message says so") };
    check(
        config.n_threads.is_none_or(threads),
        "the number of threads",
        config.n_threads.unwrap_or(0),
        "between 1 and 1024",
    )?;
    const { assert!(MAX_TOKENS == 2_147_483_647, "the messages say so") };
    check(
        tokens(config.n_ctx),
        "the context",
        config.n_ctx.unwrap_or(0),
        "between 1 and 2147483647",
    )?;
    let n_kv_tokens = match config.kv_tokens {
        KvTokens::OneContext => None,
        KvTokens::Exactly(n) | KvTokens::AtMost(n) => Some(n),
    };
    check(
        tokens(n_kv_tokens),
        "the size of the cache",
        n_kv_tokens.unwrap_or(0),
        "between 1 and 2147483647 tokens",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use rocmforge_gguf::{GgmlType, Gguf, LoadMode};
    use rocmforge_plan::KvType;
    use rocmforge_testkit::models::families;

    use super::*;
    use crate::start::few_slots;

    /// Loads forge-mini: trained for 2048 positions; 10 layers of 2 heads of 64 + 64 values are 5120 bytes per token in
    /// f16.
    fn model() -> Model {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
        Model::load(Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap())).unwrap()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn default_context_is_the_minimum_of_trained_default_and_fitting() {
        let model = model();
        let resolve = |config: &EngineConfig, available| {
            let resolved = resolve(&model, config, available).unwrap();
            (resolved.limits.n_ctx, resolved.n_blocks)
        };
        let config = EngineConfig::default();
        assert_eq!(resolve(&config, None), (2048, 64));
        assert_eq!(resolve(&config, Some(8192 * MIB)), (2048, 64));

        let step = model.plan.buffer_bytes(256, 64);
        assert!((4 * MIB..16 * MIB).contains(&step), "{step}");
        // Three quarters of the free memory, less the step buffers.
        let tokens = |available: u64| ((available / 4 * 3 - step) / 5120 / 32 * 32) as usize;
        let tight = tokens(20 * MIB);
        assert!((32..2048).contains(&tight), "{tight}");
        assert_eq!(resolve(&config, Some(20 * MIB)), (tight, tight / 32));

        let wide = EngineConfig {
            kv_types: KvType::F32.into(),
            ..config.clone()
        };
        assert_eq!(resolve(&wide, Some(20 * MIB)).0, tight / 2 / 32 * 32);
        let narrow = EngineConfig {
            kv_types: KvType::Q8_0.into(),
            ..config.clone()
        };
        // 34 bytes instead of 64.
        let narrow = resolve(&narrow, Some(20 * MIB)).0;
        assert_eq!(narrow, (tight * 64 / 34).min(2048) / 32 * 32);
        let mixed = EngineConfig {
            kv_types: KvTypes {
                keys: KvType::F32,
                values: KvType::F16,
            },
            ..config.clone()
        };
        // 6 bytes instead of 4.
        let mixed = resolve(&mixed, Some(20 * MIB)).0;
        assert_eq!(mixed, tight * 2 / 3 / 32 * 32);
        let float = EngineConfig {
            kv_types: KvType::F8E4M3.into(),
            ..config.clone()
        };
        // A byte for each value and two for each head: 66 instead of 128.
        let float = resolve(&float, Some(20 * MIB)).0;
        let fitting = (20 * MIB / 4 * 3 - step) / 2640 / 32 * 32;
        assert_eq!(float, fitting.min(2048) as usize);
        let asked = EngineConfig {
            n_ctx: Some(5000),
            kv_tokens: KvTokens::Exactly(100),
            ..config
        };
        assert_eq!(resolve(&asked, None), (5000, 5000usize.div_ceil(32)));
        // As many as fit, but at least one context.
        for (at_most, available, expected) in [
            (8192, None, (2048, 256)),
            (100, None, (2048, 64)),
            (8192, Some(20 * MIB), (tight, tight / 32)),
        ] {
            let config = EngineConfig {
                kv_tokens: KvTokens::AtMost(at_most),
                ..EngineConfig::default()
            };
            assert_eq!(resolve(&config, available), expected);
        }
    }

    /// States take at most a quarter of the memory beside a step, and limit how many sequences run.
    #[test]
    fn slots_for_states_leave_memory_for_the_cache() {
        let writer = families::model("qwen35_wide", GgmlType::Q8_0).unwrap();
        let gguf = Gguf::from_vec(writer.unwrap().to_vec().unwrap()).unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        // Three layers, each with 6 states of 128 x 128 and three rows of 2 x 256 + 768 inputs of the convolution.
        let state = 3 * 4 * (6 * 128 * 128 + 3 * 1280);
        assert_eq!(model.plan.state_bytes(), state);
        let config = EngineConfig {
            max_seqs: 8,
            ..EngineConfig::default()
        };
        let slots = |available: Option<u64>| {
            let resolved = resolve(&model, &config, available).unwrap();
            let max_seqs = resolved.limits.max_seqs;
            let notice = few_slots(&model, &config, &resolved);
            assert_eq!(notice.is_some(), max_seqs < 8, "{notice:?}");
            (resolved.n_slots, max_seqs)
        };
        assert_eq!(slots(None), (32, 8));
        assert_eq!(slots(Some(8192 * MIB)), (32, 8));
        // Three quarters of the memory are for steps and caches; there is always one slot.
        let step = model.plan.buffer_bytes(256, 64) + state;
        let tight = (step + 5 * 4 * state) / 3 * 4;
        assert_eq!(slots(Some(tight)), (6, 6));
        assert_eq!(slots(Some((step + state) / 3 * 4)), (1, 1));
        let message = resolve(&model, &config, Some(step / 3 * 4)).unwrap_err();
        assert!(matches!(message, ConfigError::NoMemoryAtAll { .. }));
        let shift = EngineConfig {
            context_policy: ContextPolicy::Shift { n_sinks: 4 },
            ..config
        };
        let refused = resolve(&model, &shift, None).unwrap_err();
        assert!(matches!(refused, ConfigError::FixedStates), "{refused}");
    }

    #[test]
    fn rejects_cache_types_whose_blocks_do_not_divide_the_heads() {
        let mut model = model();
        let config = EngineConfig {
            kv_types: KvType::Q8_0.into(),
            ..EngineConfig::default()
        };
        assert!(resolve(&model, &config, None).is_ok());
        // A head smaller than a block is one block.
        model.plan.kv[3].v_dim = 8;
        assert!(resolve(&model, &config, None).is_ok());
        model.plan.kv[3].v_dim = 80;
        let message = resolve(&model, &config, None).unwrap_err().to_string();
        assert!(message.contains("heads of 80 values"), "{message}");
        assert!(message.contains("blocks of 32 values"), "{message}");
        assert!(message.contains("f16 or fp8"), "{message}");
        for kv_type in [KvType::F16, KvType::F32, KvType::F8E4M3] {
            let config = EngineConfig {
                kv_types: kv_type.into(),
                ..EngineConfig::default()
            };
            assert!(resolve(&model, &config, None).is_ok());
        }
        // The heads of 80 values are values.
        let with = |keys, values| EngineConfig {
            kv_types: KvTypes { keys, values },
            ..EngineConfig::default()
        };
        assert!(resolve(&model, &with(KvType::Q8_0, KvType::F16), None).is_ok());
        let refused = resolve(&model, &with(KvType::F16, KvType::Q8_0), None).unwrap_err();
        assert!(refused.to_string().contains("of type q8_0"), "{refused}");
    }

    #[test]
    fn values_in_keys_have_the_type_of_keys() {
        let writer = rocmforge_testkit::models::model("deepseek2", GgmlType::F32);
        let writer = writer.unwrap().unwrap();
        let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        for (keys, values, is_ok) in [
            (KvType::Q8_0, KvType::Q8_0, true),
            (KvType::Q8_0, KvType::Q4_0, false),
        ] {
            let config = EngineConfig {
                kv_types: KvTypes { keys, values },
                ..EngineConfig::default()
            };
            match resolve(&model, &config, None) {
                Ok(_) => assert!(is_ok),
                Err(error) => {
                    assert!(!is_ok, "{error}");
                    let message = error.to_string();
                    assert!(message.contains("one type, but q8_0/q4_0"), "{message}");
                }
            }
        }
    }

    #[test]
    fn rejects_models_that_do_not_fit_in_memory() {
        let mut model = model();
        let message = |model: &Model, config: &EngineConfig, available| {
            resolve(model, config, available).unwrap_err().to_string()
        };
        let asked = EngineConfig {
            n_ctx: Some(1 << 20),
            ..EngineConfig::default()
        };
        let text = message(&model, &asked, Some(1024 * MIB));
        assert!(text.contains("needs 5120 MiB of KV cache"), "{text}");

        let config = EngineConfig::default();
        let text = message(&model, &config, Some(MIB));
        assert!(text.contains("in addition to its weights"), "{text}");
        // Step buffers far larger than the file.
        model.plan.buffers[0].width = 1 << 24;
        let text = message(&model, &config, Some(4096 * MIB));
        assert!(text.contains("needs 163"), "{text}");
        model.plan.buffers[0].width = usize::MAX;
        assert!(resolve(&model, &config, None).is_err());
    }

    #[test]
    fn rejects_settings_out_of_range_by_name() {
        let model = model();
        let base = EngineConfig::default();
        let cases: [(EngineConfig, &str); 9] = [
            (
                EngineConfig {
                    page: 0,
                    ..base.clone()
                },
                "the page size is 0",
            ),
            (
                EngineConfig {
                    page: 48,
                    ..base.clone()
                },
                "16, 32 or 64",
            ),
            (
                EngineConfig {
                    max_seqs: 0,
                    ..base.clone()
                },
                "the number of sequences",
            ),
            (
                EngineConfig {
                    max_batch_tokens: 0,
                    ..base.clone()
                },
                "the tokens of a step",
            ),
            (
                EngineConfig {
                    steps_in_flight: 3,
                    ..base.clone()
                },
                "1 or 2",
            ),
            (
                EngineConfig {
                    n_threads: Some(0),
                    ..base.clone()
                },
                "the number of threads is 0",
            ),
            (
                EngineConfig {
                    n_threads: Some(1025),
                    ..base.clone()
                },
                "between 1 and 1024",
            ),
            (
                EngineConfig {
                    n_ctx: Some(0),
                    ..base.clone()
                },
                "the context is 0",
            ),
            (
                EngineConfig {
                    kv_tokens: KvTokens::Exactly(usize::MAX),
                    ..base.clone()
                },
                "the size of the cache",
            ),
        ];
        for (config, part) in cases {
            let message = resolve(&model, &config, None).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
