//! Compares the sampling kernels of a GPU with the samplers of the CPU.

use std::sync::Arc;

use rocmforge_cpu::Isa;
use rocmforge_gpu::ops::{self, Candidates, SCRATCH_WORDS, SampleStep};
use rocmforge_plan::{Batch, InputToken, LogitsRow, SampleRow, SamplingParams, Want};

use crate::error::RuntimeError;
use crate::gpu::Choices;
use crate::gpu_config::GpuConfig;
use crate::sampler;

/// More tokens than any part of a sampling kernel takes at a time.
const N_VOCAB: usize = 20_000;
/// Tokens drawn with each set of parameters.
const N_DRAWS: u64 = 8;

/// The result of [`sampling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingCheck {
    pub n_tokens: usize,
    /// Tokens that differ from the CPU's.
    pub n_wrong: usize,
}

/// Draws tokens from random logits on a GPU and on the CPU: the best, from the best ones, and from all, with and without
/// biases and penalties.
///
/// # Errors
/// Errors of the GPU.
pub fn sampling(config: &GpuConfig) -> Result<SamplingCheck, RuntimeError> {
    let gpu = config.open()?;
    let wanted = wanted();
    let n_rows = wanted.len();
    let batch = Batch {
        tokens: vec![InputToken::Id(0); n_rows],
        logits: { wanted.iter().enumerate() }
            .map(|(row, sample)| LogitsRow {
                row,
                want: Want::Sample(sample.clone()),
            })
            .collect(),
        ..Batch::default()
    };
    let choices = Choices::of(&batch);
    assert!(choices.host_rows.is_empty(), "the GPU samples these rows");
    let logits = logits(n_rows);
    let on_gpu = gpu.upload(&logits)?;
    let rows = gpu.upload(&choices.rows)?;
    let entries = gpu.upload(&choices.entries)?;
    let tokens = gpu.upload(&[0u32])?;
    let scratch = gpu.alloc::<u64>(n_rows * SCRATCH_WORDS)?;
    let ids = gpu.alloc::<u32>(n_rows)?;
    let step = SampleStep {
        rows: rows.as_slice(),
        entries: entries.as_slice(),
        tokens: tokens.as_slice(),
        scratch: scratch.as_slice(),
    };
    let to = ids.as_slice();
    ops::sample(&gpu, on_gpu.as_slice(), &step, Candidates::Mixed, to)?;
    let ids = gpu.read(to)?;
    let rows = { wanted.iter().zip(&ids) }.zip(logits.chunks(N_VOCAB));
    let is_wrong = |((sample, &id), logits): ((&SampleRow, &u32), &[f32])| {
        let mut logits = logits.to_vec();
        sampler::sample(Isa::Scalar, &mut logits, sample, None).id != id
    };
    Ok(SamplingCheck {
        n_tokens: n_rows,
        n_wrong: rows.filter(|&row| is_wrong(row)).count(),
    })
}

/// Returns the rows: several draws with each set of parameters.
fn wanted() -> Vec<SampleRow> {
    let usual = SamplingParams::default();
    let all = [
        SamplingParams {
            temperature: 0.0,
            ..usual.clone()
        },
        usual.clone(),
        SamplingParams {
            top_k: 1000,
            min_p: 0.0,
            temperature: 1.3,
            ..usual.clone()
        },
        SamplingParams {
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 1.0,
            ..usual.clone()
        },
        SamplingParams {
            logit_bias: vec![(5, 20.0), (6, f32::NEG_INFINITY)],
            repeat_penalty: 1.3,
            frequency_penalty: 0.2,
            presence_penalty: 0.1,
            ..usual
        },
    ];
    let draws = |params: SamplingParams| {
        let params = Arc::new(params);
        (0..N_DRAWS).map(move |index| SampleRow {
            params: Arc::clone(&params),
            index,
            counts: vec![(5, 2), (7, 1), (11, 3)],
            dry: None,
            mu: None,
            logprobs: None,
            mask: None,
        })
    };
    all.into_iter().flat_map(draws).collect()
}

/// Returns logits between -8 and 8.
fn logits(n_rows: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 20) as f32 - 8.0
    };
    (0..n_rows * N_VOCAB).map(|_| next()).collect()
}
