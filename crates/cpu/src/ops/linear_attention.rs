//! Linear attention with a state of each sequence: the gated delta rule (Yang et al. 2024, "Gated Delta Networks"), also with
//! a decay of each channel (Kimi Team 2025, "Kimi Linear"), and the scans of Mamba-2 (Dao and Gu 2024) and Mamba-1 (Gu and
//! Dao 2023), token by token.
//!
//! The columns of a head's state do not depend on each other, so a block of them takes all tokens before the next block
//! does and stays in the fastest cache. Tokens follow each other in the same order however a prompt is divided, and the
//! state is f32 between them, so the bits are the same for any chunks.

use rocmforge_plan::{Decay, LinearHeads, LinearInputs, StateRule};

use super::linear_token::{OfChannels, OfHead, OfValues, Token, columns, pass};
use super::rows_per_task;
use super::state::{StateSeq, begin, check};
use crate::arch::Kernel;
use crate::generic::lanes::exp;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// `S <- e^decay S + k d^T; out = S^T q` for each row of each sequence and each head, where `d` is `beta (v - e^decay S^T k)`
/// or `beta v`, by the rule. The last of the three says what each factor multiplies.
///
/// - `inputs`: see [`LinearInputs`], each [n_rows, ..]
/// - `states` [n_slots, heads.state_len()]; see [`LinearHeads::columns`]
/// - rates [heads.state_len()]
/// - `out` [n_rows, n_heads * v_dim]
///
/// # Panics
/// If the shapes do not match, a slot does not exist, or each value has a factor of its own in the delta rule.
pub fn linear_attention(
    isa: Isa,
    pool: &Pool,
    (heads, rule, of): (&LinearHeads, StateRule, Decay<&[f32]>),
    seqs: &[StateSeq<'_>],
    inputs: LinearInputs<&[f32]>,
    states: &mut [f32],
    out: &mut [f32],
) {
    let LinearHeads {
        n_heads,
        n_k_heads,
        k_dim,
        v_dim,
        ..
    } = *heads;
    assert!(n_heads.is_multiple_of(n_k_heads), "heads share keys");
    let width = n_heads * v_dim;
    let n_rows = out.len() / width;
    assert_eq!(
        out.len(),
        n_rows * width,
        "out is [n_rows, n_heads * v_dim]"
    );
    let [n_k, n_v] = [n_rows * n_k_heads * k_dim, n_rows * width];
    let LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    } = inputs;
    assert_eq!(
        [q.len(), k.len(), v.len()],
        [n_k, n_k, n_v],
        "rows of heads"
    );
    let n_factors = of.widths(heads).map(|width| n_rows * width);
    assert_eq!([decay.len(), beta.len()], n_factors, "rows of factors");
    if let Decay::Value(rates) = of {
        assert_eq!(rates.len(), heads.state_len(), "rates of all values");
        assert_eq!(rule, StateRule::Add, "values decay on their own");
    }
    check(seqs, n_rows);
    begin(seqs, heads.state_len(), states);

    // By sequence, head and row, so that each task writes consecutive values.
    let mut by_head = vec![0.0; out.len()];
    let mut tasks = tasks(heads, seqs, states, &mut by_head);
    let of_task = n_rows.div_ceil(seqs.len().max(1)) * k_dim * v_dim * 4;
    let per_task = rows_per_task(pool, tasks.len(), of_task);
    pool.for_each_rows(&mut tasks, 1, per_task, &|_, tasks| {
        for task in tasks {
            task.run(isa, (heads, rule, of), inputs);
        }
    });
    drop(tasks);
    let mut rest = &by_head[..];
    for seq in seqs {
        let of_seq;
        (of_seq, rest) = rest.split_at(seq.n_rows * width);
        let rows = &mut out[seq.first_row * width..][..seq.n_rows * width];
        let per_task = rows_per_task(pool, seq.n_rows, width);
        pool.for_each_rows(rows, width, per_task, &|first, rows| {
            for (row, out) in (first..).zip(rows.chunks_exact_mut(width)) {
                for (head, out) in out.chunks_exact_mut(v_dim).enumerate() {
                    out.copy_from_slice(&of_seq[(head * seq.n_rows + row) * v_dim..][..v_dim]);
                }
            }
        });
    }
}

/// One head of one sequence.
struct HeadTask<'a> {
    first_row: usize,
    head: usize,
    /// `[n_blocks, k_dim, columns]`.
    state: &'a mut [f32],
    /// Copies of the state, after so many rows.
    kept: Vec<(usize, &'a mut [f32])>,
    /// `[n_rows, v_dim]`.
    out: &'a mut [f32],
}

/// Returns the tasks of all sequences: `states` [n_slots, n_heads, ..], `out` [n_rows of each sequence, by head].
fn tasks<'a>(
    heads: &LinearHeads,
    seqs: &[StateSeq<'_>],
    states: &'a mut [f32],
    mut out: &'a mut [f32],
) -> Vec<HeadTask<'a>> {
    let len = heads.state_len();
    let mut slots: Vec<Option<&mut [f32]>> = Vec::new();
    slots.resize_with(states.len() / len, || None);
    let is_written = {
        let mut is_written = vec![false; slots.len()];
        for slot in seqs.iter().flat_map(StateSeq::written) {
            let is_written = &mut is_written[slot as usize];
            assert!(!*is_written, "one sequence writes slot {slot}");
            *is_written = true;
        }
        is_written
    };
    let all = slots.iter_mut().zip(states.chunks_exact_mut(len));
    for ((slot, values), is_written) in all.zip(is_written) {
        *slot = is_written.then_some(values);
    }
    let mut take = |slot: u32| {
        let values = slots[slot as usize].take();
        let values = values.expect("each written slot is taken once");
        values.chunks_exact_mut(heads.head_len())
    };
    let mut tasks = Vec::with_capacity(seqs.len() * heads.n_heads);
    for seq in seqs {
        let own = take(seq.state.slot);
        let mut kept: Vec<_> = { seq.state.kept.iter() }
            .map(|kept| (kept.n_rows, take(kept.slot)))
            .collect();
        for (head, state) in own.enumerate() {
            let of_head;
            (of_head, out) = out.split_at_mut(seq.n_rows * heads.v_dim);
            let kept = kept.iter_mut().map(|(n_rows, heads)| {
                let values = heads.next();
                (*n_rows, values.expect("a state has all heads"))
            });
            tasks.push(HeadTask {
                first_row: seq.first_row,
                head,
                state,
                kept: kept.collect(),
                out: of_head,
            });
        }
    }
    tasks
}

impl HeadTask<'_> {
    fn run(
        &mut self,
        isa: Isa,
        (heads, rule, of): (&LinearHeads, StateRule, Decay<&[f32]>),
        inputs: LinearInputs<&[f32]>,
    ) {
        let LinearHeads { k_dim, v_dim, .. } = *heads;
        let columns = heads.columns();
        let of = of.map(|rates| &rates[self.head * heads.head_len()..][..heads.head_len()]);
        let n_channels = match of {
            Decay::Channel => k_dim,
            Decay::Head | Decay::Value(_) => 0,
        };
        let mut channels = vec![0.0; n_channels];
        let n_rows = self.out.len() / v_dim;
        for block in 0..v_dim.div_ceil(columns) {
            let at = block * k_dim * columns;
            let mut first = 0;
            let ends = self.kept.iter().map(|(n_rows, _)| *n_rows);
            let ends: Vec<usize> = ends.chain([n_rows]).collect();
            for (i, end) in ends.into_iter().enumerate() {
                let tokens = Tokens {
                    heads,
                    rule,
                    of: of.map(|rates| &rates[at..][..k_dim * columns]),
                    inputs,
                    head: self.head,
                    row: self.first_row + first,
                    block,
                    channels: &mut channels,
                    state: &mut self.state[at..][..k_dim * columns],
                    out: &mut self.out[first * v_dim..end * v_dim],
                };
                match isa.vector() {
                    None => tokens.scalar(),
                    Some(isa) => isa.run(tokens),
                }
                if let Some((_, kept)) = self.kept.get_mut(i) {
                    let values = &self.state[at..][..k_dim * columns];
                    kept[at..][..k_dim * columns].copy_from_slice(values);
                }
                first = end;
            }
        }
    }
}

/// Consecutive tokens that pass through a block of a head's state.
struct Tokens<'a> {
    heads: &'a LinearHeads,
    rule: StateRule,
    /// What the factors multiply; the rates of the block.
    of: Decay<&'a [f32]>,
    inputs: LinearInputs<&'a [f32]>,
    head: usize,
    /// The first token.
    row: usize,
    block: usize,
    /// Room for the factors of channels.
    channels: &'a mut [f32],
    /// `[k_dim, columns]`.
    state: &'a mut [f32],
    /// `[n_tokens, v_dim]`.
    out: &'a mut [f32],
}

impl<'a> Tokens<'a> {
    /// The block's columns of a head of values.
    fn range(&self) -> std::ops::Range<usize> {
        let columns = self.heads.columns();
        let first = self.block * columns;
        first..self.heads.v_dim.min(first + columns)
    }

    fn token(&self, row: usize) -> Token<'a> {
        let LinearHeads {
            n_heads,
            n_k_heads,
            k_dim,
            v_dim,
            ..
        } = *self.heads;
        let LinearInputs {
            q,
            k,
            v,
            decay,
            beta,
        } = self.inputs;
        let key = (row * n_k_heads + self.heads.key_head(self.head)) * k_dim;
        let head = row * n_heads + self.head;
        let columns = |values: &'a [f32]| &values[head * v_dim..][..v_dim][self.range()];
        let (decay, beta) = match self.of {
            Decay::Head => (&decay[head..][..1], &beta[head..][..1]),
            Decay::Channel => (&decay[head * k_dim..][..k_dim], &beta[head..][..1]),
            Decay::Value(_) => (columns(decay), columns(beta)),
        };
        Token {
            q: &q[key..][..k_dim],
            k: &k[key..][..k_dim],
            v: columns(v),
            decay,
            beta,
        }
    }

    fn scalar(self) {
        let (columns, range) = (self.heads.columns(), self.range());
        let rows = self.out.chunks_exact(self.heads.v_dim).len();
        for at in 0..rows {
            let token = self.token(self.row + at);
            let out = &mut self.out[at * self.heads.v_dim..][range.clone()];
            for (column, (out, &v)) in out.iter_mut().zip(token.v).enumerate() {
                let factor = |row: usize| -> f64 {
                    let decay = match self.of {
                        Decay::Head => f64::from(token.decay[0]),
                        Decay::Channel => f64::from(token.decay[row]),
                        Decay::Value(rates) => {
                            let rate = rates[row * columns + column];
                            f64::from(token.decay[column]) * f64::from(rate)
                        }
                    };
                    f64::from(decay.exp() as f32)
                };
                let beta = f64::from(
                    token.beta[match self.of {
                        Decay::Head | Decay::Channel => 0,
                        Decay::Value(_) => column,
                    }],
                );
                let of_column = self.state.iter_mut().skip(column).step_by(columns);
                let mut of_column: Vec<&mut f32> = of_column.collect();
                let known = match self.rule {
                    StateRule::Delta => {
                        let rows = of_column.iter().zip(token.k).enumerate();
                        let rows =
                            rows.map(|(i, (s, k))| factor(i) * f64::from(**s) * f64::from(*k));
                        rows.sum()
                    }
                    StateRule::Add => 0.0,
                };
                let d = beta * (f64::from(v) - known);
                let mut sum = 0.0;
                for (i, (s, (&k, &q))) in of_column
                    .iter_mut()
                    .zip(token.k.iter().zip(token.q))
                    .enumerate()
                {
                    **s = (factor(i) * f64::from(**s) + f64::from(k) * d) as f32;
                    sum += f64::from(**s) * f64::from(q);
                }
                *out = sum as f32;
            }
        }
    }

    /// As [`Kernel::run`], of a block of `N` vectors of columns.
    #[inline(always)]
    fn run_block<S: Simd, const N: usize>(self, s: S) {
        let range = self.range();
        let v_dim = self.heads.v_dim;
        for at in 0..self.out.len() / v_dim {
            let token = self.token(self.row + at);
            let out = &mut self.out[at * v_dim..][range.clone()];
            let state = S::chunks_mut(self.state).0.as_chunks_mut().0;
            let (rule, decay) = (self.rule, token.decay);
            match self.of {
                Decay::Head => {
                    let factor = f64::from(decay[0]).exp() as f32;
                    let factors = OfHead(factor, token.beta[0]);
                    pass::<S, N>(s, (rule, factors), token, state, out);
                }
                Decay::Channel => {
                    let chunks = self.channels.chunks_mut(S::LANES);
                    for (to, from) in chunks.zip(decay.chunks(S::LANES)) {
                        s.store_part(exp(s, s.load_part(from, 0.0)), to);
                    }
                    let factors = OfChannels(self.channels, token.beta[0]);
                    pass::<S, N>(s, (rule, factors), token, state, out);
                }
                Decay::Value(rates) => {
                    let rates = S::chunks(rates).0.as_chunks().0;
                    let factors = OfValues(rates, [decay, token.beta].map(|x| columns(s, x)));
                    pass::<S, N>(s, (rule, factors), token, state, out);
                }
            }
        }
    }
}

impl Kernel for Tokens<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.heads.columns() / S::LANES {
            1 => self.run_block::<S, 1>(s),
            2 => self.run_block::<S, 2>(s),
            4 => self.run_block::<S, 4>(s),
            n => unreachable!("{n} vectors of columns"),
        }
    }
}
