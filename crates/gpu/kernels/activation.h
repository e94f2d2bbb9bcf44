// Activation functions of feed-forward networks; `Activation` in src/operands.rs.
#pragma once
#include "gpu.h"

// Both are x / (1 + e^-t) for some t(x).
struct Silu {
    DEV_MEMBER static float of(float x) { return x / (1.0f + exp_of(-x)); }
};

struct GeluTanh {
    // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which loses no precision where tanh is close to -1.
    DEV_MEMBER static float of(float x) {
        constexpr float FACTOR = -1.5957691216f, CUBIC = -0.0713548163f;
        return x / (1.0f + exp_of(x * fma(x * x, CUBIC, FACTOR)));
    }
};
