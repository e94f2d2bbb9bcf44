//! Parameters of operations, shared by plans, models and kernels.

use crate::op::WeightId;

/// Whether a product replaces the output's values or adds to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutMode {
    /// Replaces the old values.
    Store,
    /// Adds to the old values (the residual stream).
    Add,
}

/// The nonlinearity `f` of a feed-forward network or of a gate: `f(x)` alone, `f(gate) * up` as a gate. Those with a limit
/// also change `up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + e^-x)` (Elfwing et al. 2018).
    Silu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel 2016):
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (So et al. 2021).
    ReluSquared,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`.
    Softplus,
    /// gpt-oss: with `g = min(x, 7)`, `g / (1 + e^(-1.702 g))`; as a gate times `min(max(up, -7), 7) + 1`.
    SwigluOai,
    /// `min(x / (1 + e^-x), limit)`; as a gate times `min(max(up, -limit), limit)`. `limit` is positive.
    SiluClamped { limit: f32 },
    /// xIELU (Huang and Schlag 2024): `alpha_p x^2 + beta x` above 0, else
    /// `alpha_n (e^min(x, eps) - 1 - x) + beta x`.
    Xielu {
        alpha_n: f32,
        alpha_p: f32,
        beta: f32,
        eps: f32,
    },
}

impl Activation {
    /// Whether kernels compute it together with the products of gate and up.
    pub fn joins_products(self) -> bool {
        matches!(
            self,
            Activation::Silu | Activation::GeluTanh | Activation::SwigluOai
        )
    }
}

/// The factor of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// One number for all values.
    Constant(f32),
    /// A number for each value of a row.
    Vector(WeightId),
}

/// Which values of a head form the pairs that RoPE rotates; `i` counts pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Neighbours: `2i` and `2i + 1` (llama).
    Norm,
    /// Halves: `i` and `i + n_rot / 2` (qwen2, phi3, gemma).
    Neox,
}

/// How the router of a mixture-of-experts (MoE) layer chooses and weights experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Experts per token; at least 1 and at most the number of experts.
    pub n_used: usize,
    /// What a router's logits become.
    pub scores: ExpertScores,
    /// How the weights of a token's experts follow from their scores.
    pub weights: ExpertWeights,
    /// Limits the choice to some groups of experts.
    pub groups: Option<ExpertGroups>,
    /// Factor on the weights.
    pub scale: f32,
}

/// The vectors of a router, each with a number for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertVectors<T> {
    /// Added to the scores for the choice only.
    pub bias: Option<T>,
    /// Factors on the weights.
    pub scales: Option<T>,
}

impl<T> ExpertVectors<T> {
    pub const NONE: ExpertVectors<T> = ExpertVectors {
        bias: None,
        scales: None,
    };

    /// Returns what `f` makes of each vector.
    pub fn map<U>(self, f: impl Fn(T) -> U) -> ExpertVectors<U> {
        ExpertVectors {
            bias: self.bias.map(&f),
            scales: self.scales.map(&f),
        }
    }
}

/// The weight of the shared expert, which every token chooses after the experts that the router chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedWeight<T> {
    One,
    /// `1 / (1 + e^-x)` of a number for each token, `[n_tokens, 1]`.
    Sigmoid(T),
}

impl<T> SharedWeight<T> {
    /// Returns the numbers, if there are any.
    pub fn gate(self) -> Option<T> {
        match self {
            SharedWeight::One => None,
            SharedWeight::Sigmoid(gate) => Some(gate),
        }
    }

    pub(crate) fn gate_mut(&mut self) -> Option<&mut T> {
        match self {
            SharedWeight::One => None,
            SharedWeight::Sigmoid(gate) => Some(gate),
        }
    }

    /// Returns what `f` makes of the numbers.
    pub fn map<U>(self, f: impl Fn(T) -> U) -> SharedWeight<U> {
        self.gate()
            .map_or(SharedWeight::One, |gate| SharedWeight::Sigmoid(f(gate)))
    }
}

/// What the logits of a router become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScores {
    /// Softmax over all experts.
    Softmax,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `sqrt(ln(1 + e^x))`.
    SqrtSoftplus,
}

/// How the weights of a token's experts follow from their scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// The scores.
    Scores,
    /// The scores, divided by the sum over the chosen experts. For softmax this is the softmax over the chosen ones.
    Normalized,
}

/// What the weights of a token's experts multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighed {
    /// The experts' outputs.
    Outputs,
    /// The experts' inputs (Llama 4).
    Inputs,
}

/// Groups of consecutive experts, of equal size and at least two each (DeepSeek-AI 2024, DeepSeek-V3). The groups with
/// the largest sums of their best two experts take part in the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub n: usize,
    /// Groups that take part; together they have as many experts as a token uses.
    pub n_used: usize,
}

/// The matrices of experts in one tensor, one after the other: `n_parts` of each expert, of which a product takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertStack {
    pub n_experts: usize,
    pub n_parts: usize,
    pub part: usize,
}

impl ExpertStack {
    /// One matrix of each expert.
    pub const fn whole(n_experts: usize) -> ExpertStack {
        ExpertStack {
            n_experts,
            n_parts: 1,
            part: 0,
        }
    }

    /// Returns the number of matrices in the tensor.
    pub const fn n_matrices(&self) -> usize {
        self.n_experts * self.n_parts
    }

    /// Returns the index of an expert's matrix among those of the tensor.
    pub const fn matrix_of(&self, expert: usize) -> usize {
        expert * self.n_parts + self.part
    }
}

/// What the rows of activations for experts stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// One row per token, read by all its experts.
    Tokens,
    /// As `Tokens`, times the weight of each of its experts.
    WeighedTokens,
    /// One row per token and chosen expert, in the order of the routing.
    Choices,
}
