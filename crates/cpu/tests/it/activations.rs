//! The definitions of activations in f64.

use rocmforge_plan::Activation;

/// Every activation, with numbers that matter.
pub(crate) const ACTIVATIONS: [Activation; 10] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Sigmoid,
    Activation::Softplus,
    Activation::SwigluOai,
    Activation::SiluClamped { limit: 2.5 },
    Activation::Xielu {
        alpha_n: 0.8,
        alpha_p: 0.3,
        beta: 0.5,
        eps: -1e-6,
    },
];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `1 - erf(z)` of z >= 0: the series of erf, and for larger z the continued fraction of Laplace.
fn erfc(z: f64) -> f64 {
    if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
    }
    let fraction = (1..80).rev().fold(z, |x, n| z + f64::from(n) / 2.0 / x);
    (-z * z).exp() / std::f64::consts::PI.sqrt() / fraction
}

/// `f(x)` of an activation.
pub(crate) fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            // (1 + tanh(u)) / 2 without cancellation.
            x * sigmoid(2.0 * inner)
        }
        Activation::GeluErf => {
            let tail = erfc(x.abs() / 2f64.sqrt()) / 2.0;
            if x < 0.0 { x * tail } else { x * (1.0 - tail) }
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(x),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Activation::SwigluOai => x.min(7.0) * sigmoid(f64::from(1.702f32) * x.min(7.0)),
        Activation::SiluClamped { limit } => (x * sigmoid(x)).min(limit.into()),
        Activation::Xielu {
            alpha_n,
            alpha_p,
            beta,
            eps,
        } => {
            let [alpha_n, alpha_p, beta, eps] = [alpha_n, alpha_p, beta, eps].map(f64::from);
            let curved = match x > 0.0 {
                true => alpha_p * x * x,
                false => alpha_n * (x.min(eps).exp_m1() - x),
            };
            curved + beta * x
        }
    }
}

/// What a gate multiplies `f(gate)` with.
pub(crate) fn of_up(activation: Activation, up: f64) -> f64 {
    match activation {
        Activation::SwigluOai => up.clamp(-7.0, 7.0) + 1.0,
        Activation::SiluClamped { limit } => up.clamp(-f64::from(limit), limit.into()),
        _ => up,
    }
}
