// Activation functions of feed-forward networks and gates; `Activation` in src/operands.rs.
#pragma once
#include "gpu.h"

// The factor of x in t, and that of x^3 over it, where an activation is x / (1 + e^t).
constexpr float GELU_FACTOR = -1.5957691216f, GELU_CUBIC = -0.0713548163f;
// Limit of gate and up, and the factor within the sigmoid (gpt-oss).
constexpr float OAI_LIMIT = 7.0f, OAI_FACTOR = -1.702f;

// These keep NaN, which fmin and fmax would lose.
DEV float at_most(float x, float limit) { return x > limit ? limit : x; }
DEV float clamped(float x, float limit) { return x < -limit ? -limit : at_most(x, limit); }

DEV float silu(float x) { return x / (1.0f + exp_of(-x)); }
// The same in few instructions, with an error of about |x| units in the last place.
DEV float silu_fast(float x) { return x * inverse_fast(1.0f + exp2_fast(x * -1.44269502f)); }
// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which loses no precision where tanh is close to -1.
DEV float gelu_tanh(float x) { return x / (1.0f + exp_of(x * fma(x * x, GELU_CUBIC, GELU_FACTOR))); }

// max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2)), which does not cancel for negative x. ln(erfc(z) / t) + z^2 is a polynomial
// of t = 1 / (1 + z / 2); the relative error of erfc is below 1.2e-7 (Press et al. 1992, section 6.2).
DEV float gelu_erf(float x) {
    constexpr float C[] = {-0.82215223f, 1.48851587f,  -1.13520398f, 0.27886807f, -0.18628806f,
                           0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    // Beyond 20, erfc is 0; a bound keeps infinity times 0 out.
    const float size = at_most(__builtin_fabsf(x), 20.0f), z = size * 0.707106781f;
    const float t = 1.0f / fma(z, 0.5f, 1.0f);
    float power = 0.17087277f;
#pragma unroll
    for (u32 i = 0; i < 9; i++) power = fma(power, t, C[i]);
    return (x < 0.0f ? 0.0f : x) - size * 0.5f * t * exp_of(power - z * z);
}

// ln(1 + e^x).
DEV float softplus(float x) {
    const float e = exp_of(-__builtin_fabsf(x));
    // A logarithm of 1 + e would lose the precision of a small e. ln(1 + e) = 2 atanh(z) with z = e / (2 + e), at most 1/3.
    const float z = e / (2.0f + e), zz = z * z;
    float sum = 1.0f / 15.0f;
    sum = fma(sum, zz, 1.0f / 13.0f);
    sum = fma(sum, zz, 1.0f / 11.0f);
    sum = fma(sum, zz, 1.0f / 9.0f);
    sum = fma(sum, zz, 1.0f / 7.0f);
    sum = fma(sum, zz, 0.2f);
    sum = fma(sum, zz, 1.0f / 3.0f);
    sum = fma(sum, zz, 1.0f);
    return (x < 0.0f ? 0.0f : x) + 2.0f * z * sum;
}

// e^x - 1 for x <= 0.
DEV float exp_minus_one(float x) {
    if (x < -0.5f) return exp_of(x) - 1.0f;
    // The terms of the series up to x^8.
    float sum = 2.48015873e-5f;
    sum = fma(sum, x, 1.98412698e-4f);
    sum = fma(sum, x, 1.38888889e-3f);
    sum = fma(sum, x, 8.33333333e-3f);
    sum = fma(sum, x, 4.16666667e-2f);
    sum = fma(sum, x, 0.166666667f);
    sum = fma(sum, x, 0.5f);
    sum = fma(sum, x, 1.0f);
    return sum * x;
}

// The kinds of `Activation`, and their numbers: the limit, or alpha_n, alpha_p, beta and eps.
enum ActivationKind : u32 {
    SILU = 0,
    GELU_TANH = 1,
    GELU_ERF = 2,
    RELU_SQUARED = 3,
    SIGMOID_GATE = 4,
    SOFTPLUS = 5,
    SWIGLU_OAI = 6,
    SILU_CLAMPED = 7,
    XIELU = 8,
    RELU = 9
};

// f(x) of an activation.
DEV float activated(ActivationKind kind, const float (&numbers)[4], float x) {
    switch (kind) {
        case SILU: return silu(x);
        case GELU_TANH: return gelu_tanh(x);
        case GELU_ERF: return gelu_erf(x);
        case RELU_SQUARED: return x < 0.0f ? 0.0f : x * x;
        case SIGMOID_GATE: return 1.0f / (1.0f + exp_of(-x));
        case SOFTPLUS: return softplus(x);
        case SWIGLU_OAI: {
            const float y = at_most(x, OAI_LIMIT);
            return y / (1.0f + exp_of(y * OAI_FACTOR));
        }
        case SILU_CLAMPED: return at_most(silu(x), numbers[0]);
        case RELU: return x < 0.0f ? 0.0f : x;
        default: {
            const float curved = x > 0.0f ? numbers[1] * x * x
                                          : numbers[0] * (exp_minus_one(at_most(x, numbers[3])) - x);
            return fma(numbers[2], x, curved);
        }
    }
}

// What a gate multiplies f(gate) with.
DEV float of_up(ActivationKind kind, const float (&numbers)[4], float up) {
    if (kind == SWIGLU_OAI) return clamped(up, OAI_LIMIT) + 1.0f;
    return kind == SILU_CLAMPED ? clamped(up, numbers[0]) : up;
}
