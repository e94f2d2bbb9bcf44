//! Mixture-of-experts (MoE) layers: routing of tokens to experts, the experts' products, and the weighted sum (Shazeer
//! et al. 2017; the softmax routing of Mixtral, Jiang et al. 2024; bias and groups of DeepSeek-V3, DeepSeek-AI 2024).
//!
//! Each pair of a token and one of its experts is a row. Rows are sorted by expert, then by token, so that each expert
//! has a contiguous run of rows and its product is an ordinary matrix product with the kernels of `matmul`. Only
//! weights of chosen experts are read, and one dispatch runs the products of all experts.
//!
//! A token's result depends on its own logits and activations only: ties go to the expert with the lower index, and the
//! sum runs in order of choice. Bits therefore do not depend on the batch or the number of threads.

use std::cmp::Reverse;
use std::ops::Range;

use rocmforge_plan::{
    ActFormat, ExpertGroups, ExpertScores, ExpertStack, ExpertVectors, ExpertWeights, OutMode,
    Router, RowsOf, SharedWeight, Weighed, Weight, act_format,
};

use crate::acts::Acts;
use crate::arch::Kernel;
use crate::generic::simd::Simd;
use crate::isa::Isa;
use crate::job::Job;
use crate::matmul::{run_tile, task_shape};
use crate::ops::rows_per_task;
use crate::pool::Pool;

/// An expert chosen by a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    pub expert: u32,
    pub weight: f32,
    /// Index of the row of this token and expert.
    pub row: u32,
}

/// The rows of one expert.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    expert: usize,
    rows: Range<usize>,
}

/// The experts of all tokens of a step. A reusable buffer: it keeps its memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    n_used: usize,
    /// [n_tokens, n_used], best first.
    choices: Vec<Choice>,
    /// The token of each row.
    tokens: Vec<u32>,
    /// Experts with rows, the most rows first.
    groups: Vec<Group>,
}

impl Routing {
    /// Creates an empty buffer.
    pub fn new() -> Routing {
        Routing::default()
    }

    /// Chooses the experts with the largest scores of `logits` [n_tokens, n_experts], of equal ones the first. Vectors
    /// are [n_experts]. With a weight for it, a shared expert is the last choice of every token: number `n_experts`.
    ///
    /// # Panics
    /// If `logits` is not whole rows, `n_used` is 0 or more than `n_experts`, groups are not of equal size, or the shared
    /// expert's gates are not [n_tokens].
    pub fn route(
        &mut self,
        pool: &Pool,
        (router, shared): (&Router, Option<SharedWeight<&[f32]>>),
        logits: &[f32],
        (n_experts, vectors): (usize, ExpertVectors<&[f32]>),
    ) {
        let n_used = router.n_used;
        assert!(
            (1..=n_experts).contains(&n_used),
            "{n_used} of {n_experts} experts"
        );
        let are_whole = vectors.map(|vector| vector.len() == n_experts);
        assert!(
            are_whole.bias != Some(false) && are_whole.scales != Some(false),
            "a number for each expert"
        );
        if let Some(ExpertGroups { n, n_used: of }) = router.groups {
            let fits = (1..=n).contains(&of) && n_experts.is_multiple_of(n);
            assert!(fits && n_experts / n * of >= n_used, "{of} of {n} groups");
        }
        assert!(
            logits.len().is_multiple_of(n_experts),
            "logits are [n_tokens, n_experts]"
        );
        let n_tokens = logits.len() / n_experts;
        let gates = shared.and_then(SharedWeight::gate);
        assert!(
            gates.is_none_or(|gates| gates.len() == n_tokens),
            "gates are [n_tokens]"
        );
        let n_shared = usize::from(shared.is_some());
        let n_choices = n_used + n_shared;
        self.n_used = n_choices;
        self.choices.resize(n_tokens * n_choices, Choice::default());
        let per_task = rows_per_task(pool, n_tokens, 8 * n_experts);
        pool.for_each_rows(&mut self.choices, n_choices, per_task, &|first, choices| {
            let logits = logits[first * n_experts..].chunks_exact(n_experts);
            let tokens = choices.chunks_exact_mut(n_choices).zip(logits);
            for (token, (choices, logits)) in (first..).zip(tokens) {
                let (chosen, rest) = choices.split_at_mut(n_used);
                choose(router, vectors, logits, chosen);
                if let Some(last) = rest.first_mut() {
                    last.expert = n_experts as u32;
                    last.weight = gates.map_or(1.0, |gates| sigmoid(gates[token]));
                }
            }
        });
        self.sort(n_experts + n_shared);
    }

    /// Creates a routing from existing choices of experts and weights `[n_tokens, n_used]`, best first. `None` if an
    /// expert does not exist, or the choices are not whole tokens.
    pub fn of_choices(
        n_experts: usize,
        n_used: usize,
        choices: impl IntoIterator<Item = (u32, f32)>,
    ) -> Option<Routing> {
        let choices = choices.into_iter().map(|(expert, weight)| Choice {
            expert,
            weight,
            row: 0,
        });
        let mut routing = Routing {
            n_used,
            choices: choices.collect(),
            ..Routing::default()
        };
        let are_known = routing
            .choices
            .iter()
            .all(|choice| (choice.expert as usize) < n_experts);
        if !are_known || n_used == 0 || !routing.choices.len().is_multiple_of(n_used) {
            return None;
        }
        routing.sort(n_experts);
        Some(routing)
    }

    /// The routing of every token to each of `n_heads` heads, whose matrices are then like those of experts.
    pub fn of_heads(n_heads: usize, n_tokens: usize) -> Routing {
        let choices = (0..n_tokens).flat_map(|_| (0..n_heads as u32).map(|head| (head, 1.0)));
        Routing::of_choices(n_heads, n_heads, choices).expect("all heads exist")
    }

    /// The weight of each row.
    fn weights_of_rows(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.n_rows()];
        for choice in &self.choices {
            weights[choice.row as usize] = choice.weight;
        }
        weights
    }

    /// The rows of each expert that has any, the most rows first.
    pub fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        self.groups.iter().map(|group| group.rows.clone())
    }

    /// Assigns a row to every choice.
    fn sort(&mut self, n_experts: usize) {
        let mut ends = vec![0usize; n_experts];
        for choice in &self.choices {
            ends[choice.expert as usize] += 1;
        }
        self.groups.clear();
        let mut start = 0;
        for (expert, end) in ends.iter_mut().enumerate() {
            let rows = start..start + *end;
            // From here on, the index of the expert's next row.
            *end = start;
            start = rows.end;
            if !rows.is_empty() {
                self.groups.push(Group { expert, rows });
            }
        }
        self.groups.sort_by_key(|group| Reverse(group.rows.len()));
        self.tokens.resize(self.choices.len(), 0);
        for (i, choice) in self.choices.iter_mut().enumerate() {
            let next = &mut ends[choice.expert as usize];
            self.tokens[*next] = (i / self.n_used) as u32;
            choice.row = *next as u32;
            *next += 1;
        }
    }

    /// The experts of `token`, best first.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn choices(&self, token: usize) -> &[Choice] {
        &self.choices[token * self.n_used..][..self.n_used]
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.choices.len() / self.n_used.max(1)
    }

    /// Number of rows: `n_used` per token.
    pub fn n_rows(&self) -> usize {
        self.choices.len()
    }
}

/// The sum that divides weights is at least this, the smallest normal number of F16, as in llama.cpp.
const MIN_WEIGHT_SUM: f64 = 6.103_515_625e-5;

/// Chooses the experts of one token. NaN logits give NaN weights.
fn choose(
    router: &Router,
    ExpertVectors { bias, scales }: ExpertVectors<&[f32]>,
    logits: &[f32],
    choices: &mut [Choice],
) {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let share = |i: usize| (f64::from(logits[i]) - f64::from(max)).exp();
    let by_logits = bias.is_none() && router.groups.is_none();
    let all: f64 = match (router.scores, router.weights) {
        // The sum over all experts cancels out.
        (ExpertScores::Softmax, ExpertWeights::Normalized) if by_logits => 1.0,
        (ExpertScores::Softmax, _) => (0..logits.len()).map(share).sum(),
        (ExpertScores::Sigmoid | ExpertScores::SqrtSoftplus, _) => 1.0,
    };
    let score = |i: usize| {
        let logit = f64::from(logits[i]);
        match router.scores {
            ExpertScores::Softmax => share(i) / all,
            ExpertScores::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            ExpertScores::SqrtSoftplus => {
                // `f64::max` would lose NaN.
                let positive = if logit < 0.0 { 0.0 } else { logit };
                (positive + (-logit.abs()).exp().ln_1p()).sqrt()
            }
        }
    };
    // Scores grow with logits, and equal scores of different logits would hide the better one.
    let key = |i: usize| match by_logits {
        true => logits[i],
        false => score(i) as f32 + bias.map_or(0.0, |bias| bias[i]),
    };
    let keys: Vec<f32> = (0..logits.len()).map(|i| without_nan(key(i))).collect();
    let takes_part = groups_of(router.groups, &keys);
    let group_len = logits.len() / takes_part.len();
    for k in 0..choices.len() {
        let (chosen, rest) = choices.split_at_mut(k);
        let free = |i: &usize| {
            takes_part[i / group_len] && chosen.iter().all(|choice| choice.expert as usize != *i)
        };
        let best = best_of((0..keys.len()).filter(free), &keys);
        rest[0].expert = best.expect("there are as many experts as choices") as u32;
    }
    let sum: f64 = match router.weights {
        ExpertWeights::Scores => 1.0,
        ExpertWeights::Normalized => {
            let chosen = choices.iter().map(|choice| score(choice.expert as usize));
            let sum: f64 = chosen.sum();
            if sum < MIN_WEIGHT_SUM {
                MIN_WEIGHT_SUM
            } else {
                sum
            }
        }
    };
    for choice in choices {
        let expert = choice.expert as usize;
        let of_expert = scales.map_or(1.0, |scales| f64::from(scales[expert]));
        let weight = score(expert) / sum * f64::from(router.scale) * of_expert;
        choice.weight = weight as f32;
    }
}

fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// NaN counts as negative infinity where experts are chosen.
fn without_nan(x: f32) -> f32 {
    if x.is_nan() { f32::NEG_INFINITY } else { x }
}

/// Returns the candidate with the largest key, of equal ones the first.
fn best_of(candidates: impl DoubleEndedIterator<Item = usize>, keys: &[f32]) -> Option<usize> {
    // `max_by` returns the last of equals, so iterate in reverse.
    candidates
        .rev()
        .max_by(|&a, &b| keys[a].total_cmp(&keys[b]))
}

/// Returns which groups of experts take part in the choice: those with the largest sums of their best two keys.
fn groups_of(groups: Option<ExpertGroups>, keys: &[f32]) -> Vec<bool> {
    let Some(ExpertGroups { n, n_used }) = groups else {
        return vec![true];
    };
    let sums = keys.chunks_exact(keys.len() / n).map(|group| {
        let best = best_of(0..group.len(), group).expect("groups have experts");
        let second = best_of((0..group.len()).filter(|&i| i != best), group);
        without_nan(group[best] + second.map_or(0.0, |second| group[second]))
    });
    let sums: Vec<f32> = sums.collect();
    let mut takes_part = vec![false; n];
    for _ in 0..n_used {
        let best = best_of((0..n).filter(|&i| !takes_part[i]), &sums);
        takes_part[best.expect("there are as many groups as take part")] = true;
    }
    takes_part
}

/// Activations of the rows of a [`Routing`], by expert. A reusable buffer.
#[derive(Clone, Debug, Default)]
pub struct ExpertActs {
    format: Option<ActFormat>,
    n_in: usize,
    /// One for each group of the routing, and unused ones of larger routings.
    groups: Vec<Acts>,
    n_groups: usize,
}

impl ExpertActs {
    /// Creates an empty buffer.
    pub fn new() -> ExpertActs {
        ExpertActs::default()
    }

    /// Wraps activations that are already converted, one buffer for each group of [`Routing::groups`].
    ///
    /// # Panics
    /// If groups differ in format or width.
    pub fn of_groups(groups: Vec<Acts>) -> ExpertActs {
        let Some(first) = groups.first() else {
            return ExpertActs::new();
        };
        let (format, n_in) = (first.format(), first.n_in());
        assert!(
            groups
                .iter()
                .all(|acts| (acts.format(), acts.n_in()) == (format, n_in)),
            "groups of one format"
        );
        ExpertActs {
            format: Some(format),
            n_in,
            n_groups: groups.len(),
            groups,
        }
    }

    /// The rows of each expert that has any, the most rows first.
    pub fn groups(&self) -> &[Acts] {
        &self.groups[..self.n_groups]
    }

    /// Converts `x` [n_tokens or n_rows, n_in] like [`Acts::quantize`].
    ///
    /// # Panics
    /// If `x` has the wrong shape, or a row is not whole blocks of `format`.
    pub fn quantize(
        &mut self,
        isa: Isa,
        pool: &Pool,
        routing: &Routing,
        (x, rows_of): (&[f32], RowsOf),
        format: ActFormat,
    ) {
        let n_rows = match rows_of {
            RowsOf::Tokens | RowsOf::WeighedTokens => routing.n_tokens(),
            RowsOf::Choices => routing.n_rows(),
        };
        if n_rows == 0 {
            self.n_groups = 0;
            return;
        }
        assert!(x.len().is_multiple_of(n_rows), "x holds whole rows");
        let n_in = x.len() / n_rows;
        let weights = match rows_of {
            RowsOf::WeighedTokens => Some(routing.weights_of_rows()),
            RowsOf::Tokens | RowsOf::Choices => None,
        };
        let groups = self.reset(routing.groups.len(), n_in, format);
        // Within a task the pool runs inline.
        pool.for_each_rows(groups, 1, 1, &|first, acts| {
            let rows = routing.groups[first].rows.clone();
            let acts = &mut acts[0];
            match rows_of {
                RowsOf::Choices => {
                    let x = &x[rows.start * n_in..rows.end * n_in];
                    acts.quantize(isa, pool, x, [rows.len(), n_in], format);
                }
                RowsOf::Tokens | RowsOf::WeighedTokens => {
                    let tokens = routing.tokens[rows.clone()].iter();
                    let mut gathered: Vec<f32> = tokens
                        .flat_map(|&token| &x[token as usize * n_in..][..n_in])
                        .copied()
                        .collect();
                    if let Some(weights) = &weights {
                        let weighed = gathered.chunks_exact_mut(n_in).zip(&weights[rows.clone()]);
                        for (row, weight) in weighed {
                            row.iter_mut().for_each(|x| *x *= weight);
                        }
                    }
                    acts.quantize(isa, pool, &gathered, [rows.len(), n_in], format);
                }
            }
        });
    }

    /// Converts `n_in` values of each head of `x` [n_tokens, n_heads * head_dim], from `start` on, like
    /// [`Acts::quantize`]: a group for each head, as in [`Routing::of_heads`].
    ///
    /// # Panics
    /// If `x` has the wrong shape, or a row is not whole blocks of `format`.
    pub fn quantize_heads(
        &mut self,
        isa: Isa,
        pool: &Pool,
        (x, n_tokens): (&[f32], usize),
        [n_heads, start, n_in]: [usize; 3],
        format: ActFormat,
    ) {
        if n_tokens == 0 {
            self.n_groups = 0;
            return;
        }
        assert!(
            n_heads > 0 && x.len().is_multiple_of(n_tokens * n_heads),
            "x holds whole heads"
        );
        let width = x.len() / n_tokens;
        let head_dim = width / n_heads;
        assert!(start + n_in <= head_dim, "the values are in a head");
        let groups = self.reset(n_heads, n_in, format);
        // Within a task the pool runs inline.
        pool.for_each_rows(groups, 1, 1, &|head, acts| {
            let rows = x.chunks_exact(width);
            let gathered: Vec<f32> = rows
                .flat_map(|row| &row[head * head_dim + start..][..n_in])
                .copied()
                .collect();
            acts[0].quantize(isa, pool, &gathered, [n_tokens, n_in], format);
        });
    }

    /// Sets the shape; returns the groups, with old values.
    fn reset(&mut self, n_groups: usize, n_in: usize, format: ActFormat) -> &mut [Acts] {
        (self.format, self.n_in) = (Some(format), n_in);
        self.n_groups = n_groups;
        if self.groups.len() < n_groups {
            self.groups.resize_with(n_groups, Acts::new);
        }
        &mut self.groups[..n_groups]
    }
}

/// The matrices of a layer's experts.
#[derive(Clone, Copy)]
pub struct ExpertMatrices<'a> {
    /// [n_matrices * n_out, n_in]: one after the other.
    pub w: Weight<'a>,
    /// `[n_experts]`: a factor on the products of each expert.
    pub scales: Option<&'a [f32]>,
    /// `[n_experts * n_out]`.
    pub bias: Option<&'a [f32]>,
    /// Which of them are the experts'.
    pub stack: ExpertStack,
    /// `[n_out, n_in]`, of the same type: that of the expert after them. Then there are no scales and no biases.
    pub shared: Option<Weight<'a>>,
}

/// Computes `out[row] = acts[row] * w[e]^T * scales[e] + bias[e]`, `e` the expert of the row; `out` [n_rows, n_out].
///
/// Every element has the same bits for any number of tokens, rows and threads.
///
/// # Panics
/// If shapes do not match, or `acts` do not have the format of [`act_format`].
pub fn expert_matmul(
    isa: Isa,
    pool: &Pool,
    ExpertMatrices {
        w,
        scales,
        bias,
        stack,
        shared,
    }: ExpertMatrices<'_>,
    routing: &Routing,
    acts: &ExpertActs,
    out: &mut [f32],
) {
    if routing.n_rows() == 0 {
        return;
    }
    let row_bytes = w.check();
    assert!(
        stack.n_matrices() > 0 && w.n_out.is_multiple_of(stack.n_matrices()),
        "weights are [n_matrices * n_out, n_in]"
    );
    let n_out = w.n_out / stack.n_matrices();
    assert!(
        bias.is_none_or(|bias| bias.len() == stack.n_experts * n_out),
        "bias is [n_experts * n_out]"
    );
    assert!(
        scales.is_none_or(|scales| scales.len() == stack.n_experts),
        "scales are [n_experts]"
    );
    if let Some(shared) = &shared {
        shared.check();
        assert_eq!(
            (shared.ty, [shared.n_out, shared.n_in]),
            (w.ty, [n_out, w.n_in]),
            "the shared expert's matrix is like the others"
        );
        assert!(scales.is_none() && bias.is_none(), "only products");
    }
    assert_eq!(acts.n_in, w.n_in, "acts are [n_rows, n_in]");
    assert_eq!(acts.format, Some(act_format(w.ty)), "{}", w.ty.name());
    assert_eq!(
        out.len(),
        routing.n_rows() * n_out,
        "out is [n_rows, n_out]"
    );
    let expert_bytes = n_out * row_bytes;
    let experts: Vec<Weight<'_>> = routing
        .groups
        .iter()
        .map(|group| match shared {
            Some(shared) if group.expert == stack.n_experts => shared,
            _ => Weight {
                n_out,
                data: &w.data[stack.matrix_of(group.expert) * expert_bytes..][..expert_bytes],
                ..w
            },
        })
        .collect();
    let mut parts: Vec<(usize, Range<usize>)> = Vec::new();
    let mut cols_per_task = n_out;
    for (i, (group, w)) in routing.groups.iter().zip(&experts).enumerate() {
        let (rows_per_task, cols) = task_shape(pool, w.n_out, &acts.groups[i], row_bytes);
        cols_per_task = cols_per_task.min(cols);
        for start in group.rows.clone().step_by(rows_per_task) {
            parts.push((i, start..(start + rows_per_task).min(group.rows.end)));
        }
    }
    let ranges: Vec<Range<usize>> = parts.iter().map(|(_, rows)| rows.clone()).collect();
    pool.for_each_range(out, n_out, &ranges, cols_per_task, &|part, tile| {
        let group = parts[part].0;
        let expert = routing.groups[group].expert;
        let job = Job {
            w: experts[group],
            acts: &acts.groups[group],
            scale: scales.map_or(1.0, |scales| scales[expert]),
            bias: bias.map(|bias| &bias[expert * n_out..][..n_out]),
            mode: OutMode::Store,
        };
        let first = routing.groups[group].rows.start;
        run_tile(isa, &job, &mut tile.counted_from(first));
    });
}

/// Computes `out[token] = sum(weight * x[row])` over the experts of each token, best first; `sum(x[row])` if the weights
/// multiplied the inputs.
///
/// - `x` [n_rows, width]
/// - `out` [n_tokens, width]
///
/// # Panics
/// If shapes do not match.
pub fn combine_experts(
    isa: Isa,
    pool: &Pool,
    (routing, weighed): (&Routing, Weighed),
    x: &[f32],
    out: &mut [f32],
) {
    let n_tokens = routing.n_tokens();
    if n_tokens == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(n_tokens), "out holds whole rows");
    let width = out.len() / n_tokens;
    assert_eq!(x.len(), routing.n_rows() * width, "x is [n_rows, width]");
    if width == 0 {
        return;
    }
    let per_task = rows_per_task(pool, n_tokens, width * routing.n_used);
    pool.for_each_rows(out, width, per_task, &|first, out| {
        let sum = WeightedSum {
            x,
            choices: &routing.choices[first * routing.n_used..],
            n_used: routing.n_used,
            weighed,
            width,
            out,
        };
        match isa.vector() {
            None => sum.scalar(),
            Some(isa) => isa.run(sum),
        }
    });
}

/// The factor on the output of a token's expert.
fn factor_of(choice: &Choice, weighed: Weighed) -> f32 {
    match weighed {
        Weighed::Outputs => choice.weight,
        Weighed::Inputs => 1.0,
    }
}

struct WeightedSum<'a> {
    x: &'a [f32],
    /// The choices of the first token of `out` and the following ones.
    choices: &'a [Choice],
    n_used: usize,
    weighed: Weighed,
    width: usize,
    out: &'a mut [f32],
}

impl WeightedSum<'_> {
    fn scalar(self) {
        let tokens = self.out.chunks_exact_mut(self.width);
        for (out, choices) in tokens.zip(self.choices.chunks_exact(self.n_used)) {
            for (i, out) in out.iter_mut().enumerate() {
                let parts = choices.iter().map(|choice| {
                    let x = self.x[choice.row as usize * self.width + i];
                    f64::from(factor_of(choice, self.weighed)) * f64::from(x)
                });
                *out = parts.sum::<f64>() as f32;
            }
        }
    }
}

impl Kernel for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tokens = self.out.chunks_exact_mut(self.width);
        for (out, choices) in tokens.zip(self.choices.chunks_exact(self.n_used)) {
            out.fill(0.0);
            for choice in choices {
                let x = &self.x[choice.row as usize * self.width..][..self.width];
                let weight = s.splat(factor_of(choice, self.weighed));
                let (xs, x_tail) = S::chunks(x);
                let (outs, out_tail) = S::chunks_mut(out);
                for (x, out) in xs.iter().zip(outs) {
                    s.store_chunk(s.mul_add(s.load_chunk(x), weight, s.load_chunk(out)), out);
                }
                if !out_tail.is_empty() {
                    let old = s.load_part(out_tail, 0.0);
                    s.store_part(s.mul_add(s.load_part(x_tail, 0.0), weight, old), out_tail);
                }
            }
        }
    }
}
