//! Router steps of MoE models: logits of several kinds, and the expected choices by plain loops in f64.

use rocmforge_gpu::Gpu;
use rocmforge_gpu::ops::{self, ExpertWeights, Router, RoutingBuffer};

use super::weights::Random;

/// Stands for no sequence, no expert or no row.
pub(crate) const NONE: u32 = u32::MAX;

/// The inputs of a step's routing.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) n_experts: usize,
    pub(crate) n_used: usize,
    pub(crate) router: Router,
    /// `[n_tokens, n_experts]`.
    pub(crate) logits: Vec<f32>,
    /// `[n_tokens]`.
    pub(crate) seq_of_row: Vec<u32>,
}

/// The experts chosen for a step.
#[derive(Debug, PartialEq)]
pub(crate) struct Choices {
    /// `[n_tokens, n_used]`.
    pub(crate) experts: Vec<u32>,
    pub(crate) weights: Vec<f64>,
    pub(crate) rows: Vec<u32>,
    /// The token and expert of each row.
    pub(crate) of_row: Vec<(u32, u32)>,
}

impl Step {
    /// Makes a step with logits of this kind.
    pub(crate) fn new(
        [n_tokens, n_experts, n_used]: [usize; 3],
        kind: Logits,
        random: &mut Random,
    ) -> Step {
        let mut logits = random.values(n_tokens * n_experts);
        for (i, logit) in logits.iter_mut().enumerate() {
            let (token, expert) = (i / n_experts, i % n_experts);
            *logit = match kind {
                Logits::Random => *logit * 5.0,
                // Multiples of a half and both zeros: many ties.
                Logits::Ties => (*logit * 3.0).round() / 2.0,
                // All tokens go to the second expert and none to the first.
                Logits::Crowd => match expert {
                    0 => -9.0,
                    1 => 9.0,
                    _ => *logit,
                },
                Logits::Odd => match (token + expert) % 5 {
                    0 => f32::NAN,
                    1 => f32::NEG_INFINITY,
                    _ => *logit * 200.0,
                },
            };
        }
        Step {
            n_experts,
            n_used,
            router: Router {
                n_used,
                weights: ExpertWeights::Normalized,
                scale: 1.0,
            },
            logits,
            seq_of_row: (0..n_tokens as u32).collect(),
        }
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.seq_of_row.len()
    }

    /// The choices by definition.
    pub(crate) fn choices(&self) -> Choices {
        let mut choices = Choices {
            experts: Vec::new(),
            weights: Vec::new(),
            rows: Vec::new(),
            of_row: Vec::new(),
        };
        for (logits, &seq) in self.logits.chunks(self.n_experts).zip(&self.seq_of_row) {
            if seq == NONE {
                choices.experts.extend(vec![NONE; self.n_used]);
                choices.weights.extend(vec![0.0; self.n_used]);
                continue;
            }
            let key = |&i: &usize| match logits[i] {
                x if x.is_nan() => f32::NEG_INFINITY,
                x => x,
            };
            let mut order: Vec<usize> = (0..self.n_experts).collect();
            // A stable sort: the first of equals stays first.
            order.sort_by(|a, b| key(b).total_cmp(&key(a)));
            let chosen = &order[..self.n_used];
            let max = f64::from(key(&order[0]));
            let share = |&i: &usize| (f64::from(logits[i]) - max).exp();
            let total: f64 = match self.router.weights {
                ExpertWeights::Softmax => order.iter().map(share).sum(),
                ExpertWeights::Normalized => chosen.iter().map(share).sum(),
            };
            let scale = f64::from(self.router.scale);
            let weights = chosen.iter().map(|i| share(i) / total * scale);
            choices.weights.extend(weights);
            choices.experts.extend(chosen.iter().map(|&i| i as u32));
        }
        let mut of_row: Vec<(u32, usize)> = choices.experts.iter().copied().zip(0..).collect();
        of_row.retain(|(expert, _)| *expert != NONE);
        of_row.sort_unstable();
        choices.rows = vec![NONE; choices.experts.len()];
        for (row, &(expert, choice)) in of_row.iter().enumerate() {
            choices.rows[choice] = row as u32;
            choices.of_row.push(((choice / self.n_used) as u32, expert));
        }
        choices
    }

    pub(crate) fn route(&self, gpu: &Gpu) -> RoutingBuffer {
        // Room for larger steps.
        let buffer =
            RoutingBuffer::new(gpu, [self.n_experts, self.n_used], self.n_tokens() + 3).unwrap();
        let logits = gpu.upload(&self.logits).unwrap();
        let seq_of_row = gpu.upload(&self.seq_of_row).unwrap();
        let routing = buffer.of(self.n_tokens());
        ops::route(
            gpu,
            logits.as_slice(),
            self.router,
            seq_of_row.as_slice(),
            &routing,
        )
        .unwrap();
        buffer
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Logits {
    Random,
    Ties,
    Crowd,
    Odd,
}
