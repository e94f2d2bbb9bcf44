//! Router steps of MoE models: logits of several kinds, and the expected choices by plain loops in f64.

use rocmforge_gpu::Gpu;
use rocmforge_gpu::ops::{
    self, ExpertGroups, ExpertScores, ExpertVectors, ExpertWeights, Router, RoutingBuffer,
    SharedWeight,
};

use super::weights::Random;

/// Stands for no sequence, no expert or no row.
pub(crate) const NONE: u32 = u32::MAX;

/// The inputs of a step's routing.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// With a shared one, as are those of a token.
    pub(crate) n_experts: usize,
    pub(crate) n_used: usize,
    pub(crate) router: Router,
    /// The weights `[n_tokens]` of a shared expert, the last one.
    pub(crate) shared: Option<SharedWeight<Vec<f32>>>,
    /// `[n_experts]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// `[n_experts]`.
    pub(crate) scales: Option<Vec<f32>>,
    /// `[n_tokens, n_experts]`, without a shared expert.
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
                scores: ExpertScores::Softmax,
                weights: ExpertWeights::Normalized,
                groups: None,
                scale: 1.0,
            },
            shared: None,
            bias: None,
            scales: None,
            logits,
            seq_of_row: (0..n_tokens as u32).collect(),
        }
    }

    /// The same with one more expert, which all tokens choose.
    pub(crate) fn with_shared(self, weight: SharedWeight<Vec<f32>>) -> Step {
        Step {
            n_experts: self.n_experts + 1,
            n_used: self.n_used + 1,
            shared: Some(weight),
            ..self
        }
    }

    /// The number of the router's experts.
    fn n_routed(&self) -> usize {
        self.n_experts - usize::from(self.shared.is_some())
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
        let n_routed = self.n_routed();
        let tokens = self.logits.chunks(n_routed).zip(&self.seq_of_row);
        for (token, (logits, &seq)) in tokens.enumerate() {
            if seq == NONE {
                choices.experts.extend(vec![NONE; self.n_used]);
                choices.weights.extend(vec![0.0; self.n_used]);
                continue;
            }
            let numbers: Vec<f64> = logits.iter().map(|&x| without_nan(x.into())).collect();
            let max = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let by_logits = self.bias.is_none() && self.router.groups.is_none();
            let is_ratio = by_logits && self.router.weights == ExpertWeights::Normalized;
            let total: f64 = match is_ratio {
                true => 1.0,
                false => logits.iter().map(|&x| (f64::from(x) - max).exp()).sum(),
            };
            let score = |&i: &usize| {
                let x = f64::from(logits[i]);
                match self.router.scores {
                    ExpertScores::Softmax => (x - max).exp() / total,
                    ExpertScores::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                    ExpertScores::SqrtSoftplus => (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt(),
                }
            };
            let bias = |i: usize| self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
            let keys: Vec<f64> = (0..n_routed)
                .map(|i| match by_logits {
                    true => numbers[i],
                    false => without_nan(score(&i) + bias(i)),
                })
                .collect();
            let mut order = self.candidates(&keys);
            // A stable sort: the first of equals stays first.
            order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
            let chosen = &order[..self.router.n_used];
            let sum: f64 = match self.router.weights {
                ExpertWeights::Scores => 1.0,
                ExpertWeights::Normalized => chosen.iter().map(score).sum(),
            };
            let scale = f64::from(self.router.scale);
            let of_expert = |i: usize| self.scales.as_ref().map_or(1.0, |it| f64::from(it[i]));
            let weights = chosen
                .iter()
                .map(|i| score(i) / sum * scale * of_expert(*i));
            choices.weights.extend(weights);
            choices.experts.extend(chosen.iter().map(|&i| i as u32));
            if let Some(shared) = &self.shared {
                choices.experts.push(n_routed as u32);
                choices.weights.push(match shared {
                    SharedWeight::One => 1.0,
                    SharedWeight::Sigmoid(gates) => 1.0 / (1.0 + (-f64::from(gates[token])).exp()),
                });
            }
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

    /// The experts of the groups with the largest sums of their best two keys.
    fn candidates(&self, keys: &[f64]) -> Vec<usize> {
        let Some(ExpertGroups { n, n_used }) = self.router.groups else {
            return (0..keys.len()).collect();
        };
        let length = keys.len() / n;
        let mut sums: Vec<(usize, f64)> = keys
            .chunks(length)
            .map(|keys| {
                let mut keys = keys.to_vec();
                keys.sort_by(|a, b| b.total_cmp(a));
                without_nan(keys[0] + keys[1])
            })
            .enumerate()
            .collect();
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        let groups = &sums[..n_used];
        let takes_part = |i: &usize| groups.iter().any(|(group, _)| *group == i / length);
        (0..keys.len()).filter(takes_part).collect()
    }

    pub(crate) fn route(&self, gpu: &Gpu) -> RoutingBuffer {
        // Room for larger steps.
        let buffer =
            RoutingBuffer::new(gpu, [self.n_experts, self.n_used], self.n_tokens() + 3).unwrap();
        let buffer = buffer.with_shared(self.n_experts - self.n_routed());
        let logits = gpu.upload(&self.logits).unwrap();
        let seq_of_row = gpu.upload(&self.seq_of_row).unwrap();
        let vectors = [&self.bias, &self.scales].map(|vector| {
            let vector = vector.as_ref();
            vector.map(|vector| gpu.upload(vector).unwrap())
        });
        let [bias, scales] = [0, 1].map(|i| vectors[i].as_ref().map(|it| it.as_slice()));
        let gates = self.shared.as_ref().map(|shared| match shared {
            SharedWeight::One => SharedWeight::One,
            SharedWeight::Sigmoid(gates) => SharedWeight::Sigmoid(gpu.upload(gates).unwrap()),
        });
        let shared = gates.as_ref().map(|gates| match gates {
            SharedWeight::One => SharedWeight::One,
            SharedWeight::Sigmoid(gates) => SharedWeight::Sigmoid(gates.as_slice()),
        });
        let routing = buffer.of(self.n_tokens());
        ops::route(
            gpu,
            (logits.as_slice(), ExpertVectors { bias, scales }),
            (self.router, shared),
            seq_of_row.as_slice(),
            &routing,
        )
        .unwrap();
        buffer
    }
}

fn without_nan(x: f64) -> f64 {
    if x.is_nan() { f64::NEG_INFINITY } else { x }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Logits {
    Random,
    Ties,
    Crowd,
    Odd,
}
