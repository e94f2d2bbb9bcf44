//! Linear attention with a state of each sequence: the gated delta rule (Yang et al. 2024, "Gated Delta Networks") and the
//! scan of Mamba-2 (Dao and Gu 2024), token by token.
//!
//! The columns of a head's state do not depend on each other, so a block of them takes all tokens before the next block
//! does and stays in the fastest cache. Tokens follow each other in the same order however a prompt is divided, and the
//! state is f32 between them, so the bits are the same for any chunks.

use rocmforge_plan::{LinearHeads, LinearInputs, StateRule};

use super::rows_per_task;
use super::state::{StateSeq, begin, check};
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::pool::Pool;

/// `S <- e^decay S + k d^T; out = S^T q` for each row of each sequence and each head, where `d` is `beta (v - e^decay S^T k)`
/// or `beta v`, by `rule`.
///
/// - `inputs`: see [`LinearInputs`], each [n_rows, ..]
/// - `states` [n_slots, heads.state_len()]; see [`LinearHeads::columns`]
/// - `out` [n_rows, n_heads * v_dim]
///
/// # Panics
/// If the shapes do not match, or a slot does not exist.
pub fn linear_attention(
    isa: Isa,
    pool: &Pool,
    (heads, rule): (&LinearHeads, StateRule),
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
    let n_factors = n_rows * n_heads;
    assert_eq!([decay.len(), beta.len()], [n_factors; 2], "rows of factors");
    check(seqs, n_rows);
    begin(seqs, heads.state_len(), states);

    // By sequence, head and row, so that each task writes consecutive values.
    let mut by_head = vec![0.0; out.len()];
    let mut tasks = tasks(heads, seqs, states, &mut by_head);
    let of_task = n_rows.div_ceil(seqs.len().max(1)) * k_dim * v_dim * 4;
    let per_task = rows_per_task(pool, tasks.len(), of_task);
    pool.for_each_rows(&mut tasks, 1, per_task, &|_, tasks| {
        for task in tasks {
            task.run(isa, (heads, rule), inputs);
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
        (heads, rule): (&LinearHeads, StateRule),
        inputs: LinearInputs<&[f32]>,
    ) {
        let LinearHeads { k_dim, v_dim, .. } = *heads;
        let columns = heads.columns();
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
                    inputs,
                    head: self.head,
                    row: self.first_row + first,
                    block,
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
    inputs: LinearInputs<&'a [f32]>,
    head: usize,
    /// The first token.
    row: usize,
    block: usize,
    /// `[k_dim, columns]`.
    state: &'a mut [f32],
    /// `[n_tokens, v_dim]`.
    out: &'a mut [f32],
}

/// What a block of a state gets from one token.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    /// The values of the block.
    v: &'a [f32],
    /// The factor on the state.
    factor: f32,
    beta: f32,
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
        let key = (row * n_k_heads + self.heads.key_head(self.head)) * k_dim;
        let head = row * n_heads + self.head;
        Token {
            q: &self.inputs.q[key..][..k_dim],
            k: &self.inputs.k[key..][..k_dim],
            v: &self.inputs.v[head * v_dim..][..v_dim][self.range()],
            factor: f64::from(self.inputs.decay[head]).exp() as f32,
            beta: self.inputs.beta[head],
        }
    }

    fn scalar(self) {
        let (columns, range) = (self.heads.columns(), self.range());
        let rows = self.out.chunks_exact(self.heads.v_dim).len();
        for at in 0..rows {
            let token = self.token(self.row + at);
            let out = &mut self.out[at * self.heads.v_dim..][range.clone()];
            let (factor, beta) = (f64::from(token.factor), f64::from(token.beta));
            for (column, (out, &v)) in out.iter_mut().zip(token.v).enumerate() {
                let of_column = |state: &[f32], x: &[f32]| -> f64 {
                    let column = state.iter().skip(column).step_by(columns);
                    let pairs = column.zip(x);
                    pairs.map(|(s, x)| f64::from(*s) * f64::from(*x)).sum()
                };
                let known = match self.rule {
                    StateRule::Delta => factor * of_column(self.state, token.k),
                    StateRule::Add => 0.0,
                };
                let d = beta * (f64::from(v) - known);
                let states = self.state.iter_mut().skip(column).step_by(columns);
                for (s, &k) in states.zip(token.k) {
                    *s = (factor * f64::from(*s) + f64::from(k) * d) as f32;
                }
                *out = of_column(self.state, token.q) as f32;
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
            let (state, _) = S::chunks_mut(self.state);
            pass::<S, N>(s, self.rule, token, state.as_chunks_mut().0, out);
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

/// Passes one token through a block of a state, `[k_dim]` rows of `N` vectors. Sums have two parts, of even and of odd rows,
/// which hides the latency of additions.
#[inline(always)]
fn pass<S: Simd, const N: usize>(
    s: S,
    rule: StateRule,
    token: Token<'_>,
    state: &mut [[S::Chunk; N]],
    out: &mut [f32],
) {
    let zero = [s.splat(0.0); N];
    let factor = s.splat(token.factor);
    let mut d = zero;
    for (d, v) in d.iter_mut().zip(token.v.chunks(S::LANES)) {
        *d = s.load_part(v, 0.0);
    }
    if rule == StateRule::Delta {
        let mut known = [zero; 2];
        for (at, (row, &k)) in state.iter().zip(token.k).enumerate() {
            let (k, known) = (s.splat(k), &mut known[at % 2]);
            for (known, x) in known.iter_mut().zip(row) {
                *known = s.mul_add(s.load_chunk(x), k, *known);
            }
        }
        for (i, d) in d.iter_mut().enumerate() {
            let known = s.add(known[0][i], known[1][i]);
            *d = s.sub(*d, s.mul(factor, known));
        }
    }
    let beta = s.splat(token.beta);
    for d in &mut d {
        *d = s.mul(*d, beta);
    }
    let mut sums = [zero; 2];
    let keys = token.k.iter().zip(token.q);
    for (at, (row, (&k, &q))) in state.iter_mut().zip(keys).enumerate() {
        let (k, q, sums) = (s.splat(k), s.splat(q), &mut sums[at % 2]);
        for (i, (sum, x)) in sums.iter_mut().zip(row).enumerate() {
            let new = s.mul_add(k, d[i], s.mul(factor, s.load_chunk(x)));
            s.store_chunk(new, x);
            *sum = s.mul_add(new, q, *sum);
        }
    }
    for (i, out) in out.chunks_mut(S::LANES).enumerate() {
        s.store_part(s.add(sums[0][i], sums[1][i]), out);
    }
}
