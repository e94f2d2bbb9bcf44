//! What one step of the engine computes, as plain data that the engine hands to the device.
//!
//! Prefill, decode, mixed steps and scoring are all the same [`Batch`].

use std::sync::Arc;

use rocmforge_gguf::TokenId;

use crate::breakers::Breakers;
use crate::constraint::TokenMask;
use crate::kv::KvShift;
use crate::sampling::SamplingParams;

/// One token of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputToken {
    Id(TokenId),
    /// The token sampled for output row `row` of the previous step. The device has it before the engine does.
    Sampled {
        row: usize,
    },
}

/// The rows of one sequence in a batch: `n_rows` consecutive tokens at `first_pos, first_pos + 1, ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSeq {
    /// Index in `Batch::tokens` of the sequence's first row.
    pub first_row: usize,
    pub n_rows: usize,
    /// Position of the first row in the sequence.
    pub first_pos: usize,
    /// The cache block of each page of the sequence, by page number; covers all rows of this batch. Shared with the
    /// engine, which replaces it when the sequence gets another block.
    pub block_table: Arc<Vec<u32>>,
    /// Where its state is; `None` if no layer keeps one.
    pub state: Option<SeqState>,
}

/// Where the state of a sequence is, in every layer that keeps one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeqState {
    /// The slot that holds it after this step. No other sequence of the step reads or writes it.
    pub slot: u32,
    pub start: StateStart,
    /// Copies of the state on the way, in order.
    pub kept: Vec<KeptState>,
}

/// The state before a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateStart {
    /// Zeros: no token came before.
    Empty,
    /// That of this slot. Several sequences may begin from one that none of them writes.
    Slot(u32),
}

/// A copy of the state after some rows of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptState {
    /// Rows of the sequence in this step that come before.
    pub n_rows: usize,
    pub slot: u32,
}

/// How to choose a token from a row of logits. Plain data, so that a device can do the sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRow {
    pub params: Arc<SamplingParams>,
    /// Number of tokens generated before this one; together with the seed it determines the random number.
    pub index: u64,
    /// Tokens in the penalty window, by ascending id, with their number of occurrences. For a row whose input is
    /// [`InputToken::Sampled`], the device adds that token.
    pub counts: Vec<(TokenId, u32)>,
    /// The token history that DRY searches; `None` if DRY is off.
    pub dry: Option<DryHistory>,
    /// Mirostat's state after the last token. For a row whose input is [`InputToken::Sampled`], the device uses
    /// the state of the previous step instead.
    pub mu: Option<f32>,
    /// Whether to report the log-probability of the token, and of how many best tokens. Biases, samplers and masks do
    /// not change log-probabilities.
    pub logprobs: Option<usize>,
    /// The tokens that may be chosen; `None` allows all. May be set while the step runs.
    pub mask: Option<Arc<TokenMask>>,
}

/// The last tokens of a sequence, in which DRY looks for repetitions.
#[derive(Debug, Clone, PartialEq)]
pub struct DryHistory {
    /// Oldest first. For a row whose input is [`InputToken::Sampled`], the device adds that token.
    pub tokens: Vec<TokenId>,
    pub breakers: Arc<Breakers>,
}

/// A sampled token and the sampler state after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    pub id: TokenId,
    /// Mirostat's state, if it is on: the surprise in bits above which tokens are dropped.
    pub mu: Option<f32>,
}

/// What to compute from a row's logits.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    Sample(SampleRow),
    /// The log-probability of `target`, and the `top` most likely tokens.
    Score {
        target: TokenId,
        top: usize,
    },
    /// The logits themselves.
    Logits,
    /// The hidden values of a plan for embeddings, which has them in place of logits.
    Hidden,
}

/// A row of the batch whose logits are needed.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitsRow {
    /// Index in `Batch::tokens`.
    pub row: usize,
    pub want: Want,
}

/// Which rows a step has. A device whose kernels add in an order that depends on the number of rows gives a row the same bits
/// in all steps of prompts, and in all steps of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StepRows {
    /// Any, with the fastest kernels for them.
    #[default]
    Any,
    /// Tokens of prompts.
    Prompt,
    /// Generated tokens.
    Answer,
}

/// One step: tokens of any number of sequences.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Number of the step; its [`StepOutput`] repeats it.
    pub step: u64,
    pub rows: StepRows,
    /// Cache shifts to apply, in order, before anything else.
    pub shifts: Vec<KvShift>,
    pub tokens: Vec<InputToken>,
    /// Position of each token in its sequence.
    pub positions: Vec<u32>,
    /// The cache slot for each token's K and V: `block * page + offset`.
    pub slots: Vec<u32>,
    pub seqs: Vec<BatchSeq>,
    pub logits: Vec<LogitsRow>,
    /// What the plan's [`Op::Import`](crate::Op::Import) takes, `[n_tokens, width]`; empty if it has none.
    pub imports: Vec<f32>,
    /// Whether to return what the plan's [`Op::Export`](crate::Op::Export) reads, if it has one.
    pub exports: bool,
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct TokenLogprob {
    pub id: TokenId,
    pub logprob: f32,
}

/// The result of one [`LogitsRow`].
#[derive(Debug, Clone, PartialEq)]
pub enum RowOutput {
    Sampled {
        sampled: Sampled,
        /// The log-probability of the token, if [`SampleRow::logprobs`] asks for it.
        logprob: Option<f32>,
        /// The best tokens, best first.
        top: Vec<TokenLogprob>,
    },
    Scored {
        logprob: f32,
        top: Vec<TokenLogprob>,
    },
    /// `[n_vocab]`, as computed.
    Logits(Vec<f32>),
    /// All of them finite.
    Hidden(Vec<f32>),
    /// No logit is a finite number, so nothing can be sampled or scored; or a hidden value is not.
    NotFinite,
    /// The mask of the row could not be computed.
    NoMask,
}

/// The result of a step: one entry for each of `Batch::logits`, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    pub step: u64,
    pub rows: Vec<RowOutput>,
    /// `[n_tokens, width]` if [`Batch::exports`] asks for it and the plan has any; else empty.
    pub exports: Vec<f32>,
}
