//! What one step of the engine computes, as plain data: it crosses from the engine to a device's thread.
//!
//! Prefill, decode, mixtures of both and scoring are shapes of the same [`Batch`].

use std::sync::Arc;

use crate::kv::KvShift;
use crate::{Breakers, SamplingParams};
use rocmforge_gguf::TokenId;

/// One token of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputToken {
    Id(TokenId),
    /// What output row `row` of the previous step sampled; known to the device before it is known here.
    Sampled {
        row: usize,
    },
}

/// The rows of one sequence in a batch: `n_rows` consecutive tokens at `first_pos, first_pos + 1, ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSeq {
    /// Index of its first row in `Batch::tokens`.
    pub first_row: usize,
    pub n_rows: usize,
    /// Position of its first row in the sequence.
    pub first_pos: usize,
    /// Cache block of each page of the sequence, by page number; covers all rows of this batch.
    pub block_table: Vec<u32>,
}

/// How to choose a token from a row of logits. Plain data, so that a device can do it.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRow {
    pub params: Arc<SamplingParams>,
    /// How many tokens the sequence has generated before; with the seed it fixes the random number.
    pub index: u64,
    /// Tokens in the penalty window, by ascending id, and how often each occurs. A row whose input is
    /// [`InputToken::Sampled`] has that token added where it is known.
    pub counts: Vec<(TokenId, u32)>,
    /// What DRY looks at, where it is on.
    pub dry: Option<DryHistory>,
    /// Mirostat's state as the last token left it. A row whose input is [`InputToken::Sampled`] has it from
    /// there instead.
    pub mu: Option<f32>,
    /// How many of the best log-probabilities to report.
    pub top_logprobs: usize,
}

/// The end of a sequence, in which DRY looks for repetitions.
#[derive(Debug, Clone, PartialEq)]
pub struct DryHistory {
    /// Oldest first. A row whose input is [`InputToken::Sampled`] has that token added where it is known.
    pub tokens: Vec<TokenId>,
    pub breakers: Arc<Breakers>,
}

/// A sampled token, and what the choice of the next one depends on besides it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    pub id: TokenId,
    /// Mirostat's state, where it is on: the surprise in bits from which tokens are left out.
    pub mu: Option<f32>,
}

/// What is wanted of a row's logits.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    Sample(SampleRow),
    /// The log-probability of `target`, and the `top` best tokens.
    Score {
        target: TokenId,
        top: usize,
    },
    /// The logits themselves.
    Logits,
}

/// A row of the batch whose logits are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitsRow {
    /// Index in `Batch::tokens`.
    pub row: usize,
    pub want: Want,
}

/// One step: tokens of any number of sequences.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Number of the step, repeated in its [`StepOutput`].
    pub step: u64,
    /// What happens to the cache before anything else, one after the other.
    pub shifts: Vec<KvShift>,
    pub tokens: Vec<InputToken>,
    /// Position of each token in its sequence.
    pub positions: Vec<u32>,
    /// Where each token's K and V go: `block * page + offset`.
    pub slots: Vec<u32>,
    pub seqs: Vec<BatchSeq>,
    pub logits: Vec<LogitsRow>,
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct TokenLogprob {
    pub id: TokenId,
    pub logprob: f32,
}

/// Result of one [`LogitsRow`].
#[derive(Debug, Clone, PartialEq)]
pub enum RowOutput {
    Sampled {
        sampled: Sampled,
        top: Vec<TokenLogprob>,
    },
    Scored {
        logprob: f32,
        top: Vec<TokenLogprob>,
    },
    /// `[n_vocab]`, as computed.
    Logits(Vec<f32>),
    /// Nothing can be chosen or scored: no logit is a number.
    NotFinite,
}

/// Result of a step: one entry for each of `Batch::logits`, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    pub step: u64,
    pub rows: Vec<RowOutput>,
}
