//! Parameters of operations that plans, models and kernels share.

/// What a product does with the output's old values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutMode {
    /// Replaces them.
    Store,
    /// Is added to them (the residual stream).
    Add,
}

/// The nonlinearity of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)` (Elfwing et al. 2018).
    Silu,
    /// GELU with the tanh in place of the error function (Hendrycks and Gimpel 2016):
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// Which values of a head make a pair; `i` counts pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Neighbours: `2i` and `2i + 1` (llama).
    Norm,
    /// Halves: `i` and `i + n_rot / 2` (qwen2, phi3, gemma).
    Neox,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Experts of each token; at least 1 and at most as many as there are.
    pub n_used: usize,
    /// Whether the weights of a token's experts are brought to a sum of 1. Otherwise they are
    /// those of a softmax over all experts.
    pub weights: ExpertWeights,
    /// Factor on the weights.
    pub scale: f32,
}

/// What the weights of a token's experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// Their share in a softmax over all experts.
    Softmax,
    /// The same, divided by their sum.
    Normalized,
}

/// What the rows of activations stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// A row for each token, which goes to all its experts.
    Tokens,
    /// A row for each token and expert, in the order of a [`Routing`].
    Choices,
}
