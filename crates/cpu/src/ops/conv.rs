//! Causal convolution of each value of a row with its last values (the short convolutions of Mamba, gated delta nets and
//! LFM2).

use rocmforge_plan::ConvForm;

use super::rows_per_task;
use super::state::{StateSeq, begin, check};
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// Weights of a causal convolution.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// `[n, width]`: row `i` is for the value `n - 1 - i` rows back.
    pub weight: &'a [f32],
    /// `[width]`.
    pub bias: Option<&'a [f32]>,
    pub form: ConvForm,
    pub width: usize,
}

/// The inputs of the convolution in one row: `x`, or `b * x`.
#[derive(Clone, Copy)]
struct Input<'a> {
    x: &'a [f32],
    by: Option<&'a [f32]>,
}

impl Conv<'_> {
    /// Rows that each output depends on.
    fn n_taps(&self) -> usize {
        self.weight.len() / self.width
    }

    fn input<'a>(&self, x: &'a [f32], row: usize) -> Input<'a> {
        let width = self.width;
        match self.form {
            ConvForm::Plain => Input {
                x: &x[row * width..][..width],
                by: None,
            },
            ConvForm::Gated => {
                let row = &x[3 * row * width..][..3 * width];
                Input {
                    x: &row[2 * width..],
                    by: Some(&row[..width]),
                }
            }
        }
    }
}

/// `out[t] = sum(weight[i] * x[t - n + 1 + i]) + bias` over the rows of each sequence, or `c * conv(b * x)`; see
/// [`ConvForm`]. Rows before the step are in the sequence's state.
///
/// - `x` [n_rows, width], or [n_rows, 3 * width] with b, c and x
/// - `states` [n_slots, n - 1, width]
/// - `out` [n_rows, width]
///
/// # Panics
/// If the shapes do not match, or a slot does not exist.
pub fn causal_conv(
    isa: Isa,
    pool: &Pool,
    conv: &Conv<'_>,
    seqs: &[StateSeq<'_>],
    x: &[f32],
    states: &mut [f32],
    out: &mut [f32],
) {
    let width = conv.width;
    assert!(
        width > 0 && conv.weight.len().is_multiple_of(width) && conv.n_taps() > 0,
        "weights are [n, width]"
    );
    assert!(
        conv.bias.is_none_or(|bias| bias.len() == width),
        "bias is [width]"
    );
    assert!(out.len().is_multiple_of(width), "out is [n_rows, width]");
    let n_rows = out.len() / width;
    check(seqs, n_rows);
    let len = (conv.n_taps() - 1) * width;
    begin(seqs, len, states);

    // The sequence of each row.
    let mut seq_of = vec![None; n_rows];
    for seq in seqs {
        seq_of[seq.first_row..][..seq.n_rows].fill(Some(seq));
    }
    let before = &*states;
    let per_task = rows_per_task(pool, n_rows, conv.n_taps() * width);
    pool.for_each_rows(out, width, per_task, &|first, out| {
        for (row, out) in (first..).zip(out.chunks_exact_mut(width)) {
            match seq_of[row] {
                Some(seq) => conv_row(isa, conv, (seq, row), x, before, out),
                None => out.fill(0.0),
            }
        }
    });
    for seq in seqs {
        let old = states[seq.state.slot as usize * len..][..len].to_vec();
        for kept in &seq.state.kept {
            let to = &mut states[kept.slot as usize * len..][..len];
            last_inputs(conv, seq, kept.n_rows, x, &old, to);
        }
        let to = &mut states[seq.state.slot as usize * len..][..len];
        last_inputs(conv, seq, seq.n_rows, x, &old, to);
    }
}

/// Computes one row of the output.
fn conv_row(
    isa: Isa,
    conv: &Conv<'_>,
    (seq, row): (&StateSeq<'_>, usize),
    x: &[f32],
    states: &[f32],
    out: &mut [f32],
) {
    let (width, n_before) = (conv.width, conv.n_taps() - 1);
    let state = &states[seq.state.slot as usize * n_before * width..][..n_before * width];
    let at = row - seq.first_row;
    let input = |i: usize| match (at + i).checked_sub(n_before) {
        Some(of_step) => conv.input(x, seq.first_row + of_step),
        None => Input {
            x: &state[(at + i) * width..][..width],
            by: None,
        },
    };
    let taps = conv.weight.chunks_exact(width).enumerate();
    let taps: Vec<(&[f32], Input<'_>)> = taps.map(|(i, weight)| (weight, input(i))).collect();
    let conv_row = ConvRow {
        taps: &taps,
        bias: conv.bias,
        by: match conv.form {
            ConvForm::Plain => None,
            ConvForm::Gated => Some(&x[(3 * row + 1) * width..][..width]),
        },
        out,
    };
    match isa.vector() {
        None => conv_row.scalar(),
        Some(isa) => isa.run(conv_row),
    }
}

/// Writes the last inputs before the row `end` of a sequence to `state`; earlier ones are in `old`.
fn last_inputs(
    conv: &Conv<'_>,
    seq: &StateSeq<'_>,
    end: usize,
    x: &[f32],
    old: &[f32],
    state: &mut [f32],
) {
    let (width, n_before) = (conv.width, conv.n_taps() - 1);
    for (i, to) in state.chunks_exact_mut(width).enumerate() {
        match (end + i).checked_sub(n_before) {
            None => to.copy_from_slice(&old[(end + i) * width..][..width]),
            Some(of_step) => {
                let Input { x, by } = conv.input(x, seq.first_row + of_step);
                to.copy_from_slice(x);
                if let Some(by) = by {
                    to.iter_mut().zip(by).for_each(|(to, by)| *to *= by);
                }
            }
        }
    }
}

/// A row to be computed.
struct ConvRow<'a> {
    taps: &'a [(&'a [f32], Input<'a>)],
    bias: Option<&'a [f32]>,
    by: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl ConvRow<'_> {
    fn scalar(self) {
        for (i, out) in self.out.iter_mut().enumerate() {
            let terms = self.taps.iter().map(|(weight, input)| {
                // Products are rounded, since the state holds them.
                let x = input.by.map_or(input.x[i], |by| input.x[i] * by[i]);
                f64::from(weight[i]) * f64::from(x)
            });
            let bias = self.bias.map_or(0.0, |bias| f64::from(bias[i]));
            let by = self.by.map_or(1.0, |by| f64::from(by[i]));
            *out = ((terms.sum::<f64>() + bias) * by) as f32;
        }
    }
}

impl Kernel for ConvRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.out.len();
        for first in (0..width).step_by(S::LANES) {
            let end = width.min(first + S::LANES);
            let load = |x: &[f32]| s.load_part(&x[first..end], 0.0);
            let mut sum = self.bias.map_or(s.splat(0.0), load);
            for (weight, input) in self.taps {
                let x = match input.by {
                    None => load(input.x),
                    Some(by) => s.mul(load(input.x), load(by)),
                };
                sum = s.mul_add(load(weight), x, sum);
            }
            if let Some(by) = self.by {
                sum = s.mul(sum, load(by));
            }
            s.store_part(sum, &mut self.out[first..end]);
        }
    }
}
