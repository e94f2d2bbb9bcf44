//! The functions of [`rocmforge_plan::Activation`]: each by its definition in f64, and for vectors of f32.

use crate::generic::lanes::exp;
use crate::generic::simd::Simd;

/// A function of one value, which a gate multiplies with a function of the other projection.
pub(super) trait Curve: Copy {
    /// Computes the function by its definition.
    fn scalar(self, x: f64) -> f64;

    /// Computes the function for each lane.
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32;

    /// What a gate multiplies the function with.
    fn up(self, up: f32) -> f32 {
        up
    }

    /// As [`Curve::up`], for each lane.
    #[inline(always)]
    fn vector_up<S: Simd>(self, _: S, up: S::F32) -> S::F32 {
        up
    }
}

/// `x / (1 + e^exponent)`.
#[inline(always)]
fn quotient<S: Simd>(s: S, x: S::F32, exponent: S::F32) -> S::F32 {
    s.div(x, s.add(s.splat(1.0), exp(s, exponent)))
}

/// `min(max(x, -limit), limit)`. `x` is second because a comparison with NaN yields the second operand.
#[inline(always)]
fn clamped<S: Simd>(s: S, x: S::F32, limit: f32) -> S::F32 {
    s.min(s.splat(limit), s.max(s.splat(-limit), x))
}

#[derive(Clone, Copy)]
pub(super) struct Silu;

impl Curve for Silu {
    fn scalar(self, x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        quotient(s, x, s.sub(s.splat(0.0), x))
    }
}

#[derive(Clone, Copy)]
pub(super) struct GeluTanh;

/// sqrt(2 / pi).
const GELU_FACTOR: f64 = 0.797_884_560_802_865_4;
const GELU_CUBIC: f64 = 0.044_715;

impl Curve for GeluTanh {
    fn scalar(self, x: f64) -> f64 {
        x / 2.0 * (1.0 + (GELU_FACTOR * (x + GELU_CUBIC * x * x * x)).tanh())
    }

    /// `(1 + tanh(u)) / 2 = 1 / (1 + e^-2u)`, which does not cancel where the tanh is close to -1.
    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        let cubic = s.splat((-2.0 * GELU_FACTOR * GELU_CUBIC) as f32);
        let factor = s.mul_add(s.mul(x, x), cubic, s.splat((-2.0 * GELU_FACTOR) as f32));
        quotient(s, x, s.mul(x, factor))
    }
}

#[derive(Clone, Copy)]
pub(super) struct GeluErf;

/// Coefficients of `ln(erfc(z) / t) + z^2` in powers of `t = 1 / (1 + z / 2)`, from the highest; the relative error of
/// erfc is below 1.2e-7 for any z >= 0 (Press et al. 1992, Numerical Recipes, section 6.2).
const ERFC: [f64; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_87,
    -1.135_203_98,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_68,
    -1.265_512_23,
];

impl Curve for GeluErf {
    /// `max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2))`, which does not cancel for negative values.
    fn scalar(self, x: f64) -> f64 {
        let z = x.abs() * std::f64::consts::FRAC_1_SQRT_2;
        let t = 1.0 / (1.0 + 0.5 * z);
        let power = ERFC.iter().fold(0.0, |sum, c| sum * t + c) - z * z;
        // `f64::max` would lose NaN.
        let positive = if x < 0.0 { 0.0 } else { x };
        match x.is_infinite() {
            true => positive,
            false => positive - x.abs() * 0.5 * t * power.exp(),
        }
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        let zero = s.splat(0.0);
        // Beyond 20, erfc is 0 in f32; a bound keeps infinity times 0 out.
        let size = s.min(s.splat(20.0), s.max(s.sub(zero, x), x));
        let z = s.mul(size, s.splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = s.div(s.splat(1.0), s.mul_add(z, s.splat(0.5), s.splat(1.0)));
        let mut power = s.splat(ERFC[0] as f32);
        for c in &ERFC[1..] {
            power = s.mul_add(power, t, s.splat(*c as f32));
        }
        let erfc = s.mul(t, exp(s, s.sub(power, s.mul(z, z))));
        let half = s.mul(size, s.splat(0.5));
        s.sub(s.max(zero, x), s.mul(half, erfc))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Relu;

impl Curve for Relu {
    fn scalar(self, x: f64) -> f64 {
        if x < 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        s.max(s.splat(0.0), x)
    }
}

#[derive(Clone, Copy)]
pub(super) struct ReluSquared;

impl Curve for ReluSquared {
    fn scalar(self, x: f64) -> f64 {
        if x < 0.0 { 0.0 } else { x * x }
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        let positive = s.max(s.splat(0.0), x);
        s.mul(positive, positive)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Sigmoid;

impl Curve for Sigmoid {
    fn scalar(self, x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        quotient(s, s.splat(1.0), s.sub(s.splat(0.0), x))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Softplus;

impl Curve for Softplus {
    fn scalar(self, x: f64) -> f64 {
        let positive = if x < 0.0 { 0.0 } else { x };
        positive + (-x.abs()).exp().ln_1p()
    }

    /// Lane by lane: it gates heads of attention, which are few.
    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        by_lane(s, x, |x| self.scalar(x))
    }
}

#[derive(Clone, Copy)]
pub(super) struct SwigluOai;

/// Limit of gate and up, and the factor within the sigmoid (gpt-oss).
const OAI_LIMIT: f32 = 7.0;
const OAI_ALPHA: f32 = 1.702;

impl Curve for SwigluOai {
    fn scalar(self, x: f64) -> f64 {
        let x = if x > f64::from(OAI_LIMIT) {
            f64::from(OAI_LIMIT)
        } else {
            x
        };
        x / (1.0 + (-f64::from(OAI_ALPHA) * x).exp())
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        let x = s.min(s.splat(OAI_LIMIT), x);
        quotient(s, x, s.mul(x, s.splat(-OAI_ALPHA)))
    }

    fn up(self, up: f32) -> f32 {
        up.clamp(-OAI_LIMIT, OAI_LIMIT) + 1.0
    }

    #[inline(always)]
    fn vector_up<S: Simd>(self, s: S, up: S::F32) -> S::F32 {
        s.add(clamped(s, up, OAI_LIMIT), s.splat(1.0))
    }
}

#[derive(Clone, Copy)]
pub(super) struct SiluClamped {
    pub(super) limit: f32,
}

impl Curve for SiluClamped {
    fn scalar(self, x: f64) -> f64 {
        let y = Silu.scalar(x);
        if y > f64::from(self.limit) {
            f64::from(self.limit)
        } else {
            y
        }
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        s.min(s.splat(self.limit), Silu.vector(s, x))
    }

    fn up(self, up: f32) -> f32 {
        up.clamp(-self.limit, self.limit)
    }

    #[inline(always)]
    fn vector_up<S: Simd>(self, s: S, up: S::F32) -> S::F32 {
        clamped(s, up, self.limit)
    }
}

/// `alpha_n`, `alpha_p`, `beta` and `eps`.
#[derive(Clone, Copy)]
pub(super) struct Xielu(pub(super) [f64; 4]);

impl Curve for Xielu {
    fn scalar(self, x: f64) -> f64 {
        let Xielu([alpha_n, alpha_p, beta, eps]) = self;
        let curved = match x > 0.0 {
            true => alpha_p * x * x,
            false => alpha_n * (if x > eps { eps } else { x }.exp_m1() - x),
        };
        curved + beta * x
    }

    /// Lane by lane: no vector form has the precision near 0.
    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        by_lane(s, x, |x| self.scalar(x))
    }
}

/// The longest vector.
const MAX_LANES: usize = 16;

#[inline(always)]
fn by_lane<S: Simd>(s: S, x: S::F32, f: impl Fn(f64) -> f64) -> S::F32 {
    let mut lanes = [0.0f32; MAX_LANES];
    let lanes = &mut lanes[..S::LANES];
    s.store(x, lanes);
    for lane in &mut *lanes {
        *lane = f(f64::from(*lane)) as f32;
    }
    s.load(lanes)
}
