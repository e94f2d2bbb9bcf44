"""gelu_reference.py MODEL: computes the last logits of a Gemma 2 model in f64, with GELU and with llama.cpp's table of
it, and runs llama.cpp; prints the three as JSON on stdout.

llama.cpp's CPU backend rounds the argument of GELU and its value to f16 (`ggml_vec_geglu_f32`).
"""
import json
import math
import sys

import gguf
import llama_cpp
import numpy as np

N_LOGITS = 128

reader = gguf.GGUFReader(sys.argv[1])
keys = {key: field.contents() for key, field in reader.fields.items() if key.startswith("gemma2.")}
weights = {tensor.name: np.array(tensor.data).astype(np.float64) for tensor in reader.tensors}
ids = [(7 * i * i + 3 * i + 5) % 500 + 3 for i in range(24)]
n_layers, n_embd = keys["gemma2.block_count"], keys["gemma2.embedding_length"]
n_heads, n_kv = keys["gemma2.attention.head_count"], keys["gemma2.attention.head_count_kv"]
width, n = n_embd // n_heads, len(ids)
eps = keys["gemma2.attention.layer_norm_rms_epsilon"]
score_cap, logits_cap = keys["gemma2.attn_logit_softcapping"], keys["gemma2.final_logit_softcapping"]
# All positions lie in the window.
assert n < keys["gemma2.attention.sliding_window"]
positions = np.arange(n)
angles = positions[:, None] * keys["gemma2.rope.freq_base"] ** (-np.arange(0, width, 2) / width)
magnitude = keys["gemma2.rope.scaling.attn_factor"]
cos, sin = magnitude * np.cos(angles)[:, None], magnitude * np.sin(angles)[:, None]
future = positions[None, :] > positions[:, None]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def table(x):
    rounded = x.astype(np.float32).astype(np.float16).astype(np.float64)
    value = gelu(rounded).astype(np.float16).astype(np.float64)
    return np.where(x <= -10, 0, np.where(x >= 10, x, value))


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x):
    a, b = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def last_logits(activation):
    x = weights["token_embd.weight"][ids] * math.sqrt(n_embd)
    for layer in range(n_layers):
        def w(name):
            return weights[f"blk.{layer}.{name}.weight"]

        h = norm(x, w("attn_norm"))
        q = rotate((h @ w("attn_q").T).reshape(n, n_heads, width)) / math.sqrt(width)
        k = rotate((h @ w("attn_k").T).reshape(n, n_kv, width)).repeat(n_heads // n_kv, 1)
        v = (h @ w("attn_v").T).reshape(n, n_kv, width).repeat(n_heads // n_kv, 1)
        scores = score_cap * np.tanh(np.einsum("thd,shd->hts", q, k) / score_cap)
        scores = np.where(future, -np.inf, scores)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        out = np.einsum("hts,shd->thd", scores, v).reshape(n, -1) @ w("attn_output").T
        x = x + norm(out, w("post_attention_norm"))
        h = norm(x, w("ffn_norm"))
        out = (activation(h @ w("ffn_gate").T) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        x = x + norm(out, w("post_ffw_norm"))
    x = norm(x[-1], weights["output_norm.weight"])
    return logits_cap * np.tanh(weights["token_embd.weight"] @ x / logits_cap)


model = llama_cpp.Llama(sys.argv[1], n_ctx=n, n_batch=n, n_ubatch=n, logits_all=True, verbose=False, n_threads=2,
                        n_threads_batch=2, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
model.eval(ids)
found = {"exact": last_logits(gelu), "table": last_logits(table), "llama_cpp": model.scores[n - 1]}
rows = {name: [float(f"{value:.9g}") for value in row[:N_LOGITS]] for name, row in found.items()}
print(json.dumps({"ids": ids, **rows}))
