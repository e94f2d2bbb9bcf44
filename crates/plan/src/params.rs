//! Parameters of operations, shared by plans, models and kernels.

/// Whether a product replaces the output's values or adds to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutMode {
    /// Replaces the old values.
    Store,
    /// Adds to the old values (the residual stream).
    Add,
}

/// The nonlinearity of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)` (Elfwing et al. 2018).
    Silu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel 2016):
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
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
    /// How the weights of a token's experts are computed.
    pub weights: ExpertWeights,
    /// Factor on the weights.
    pub scale: f32,
}

/// How the weights of a token's experts are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over all experts, then divided by the sum over the chosen ones.
    Normalized,
}

/// What the rows of activations for experts stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// One row per token, read by all its experts.
    Tokens,
    /// One row per token and chosen expert, in the order of the routing.
    Choices,
}
