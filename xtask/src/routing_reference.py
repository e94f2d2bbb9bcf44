"""routing_reference.py MODEL: computes logits of a small qwen3moe model in Q5_1 in f64, with activations rounded as this
engine does and as llama.cpp does, and runs llama.cpp; prints them and the chosen experts as JSON on stdout.

Both round activations to int8 with a scale per 32, in f16. A product with a minimum per block also needs the sum of the
block's activations: here the sum of the codes times the rounded scale; in llama.cpp (`quantize_row_q8_1`) the sum of the
codes times the scale before it was rounded, and the product rounded to f16.
"""
import json
import math
import sys

import gguf
import llama_cpp
import numpy as np

# The position of the committed logits, and every position of the prompt up to it.
POSITION = 164
N_LOGITS = 128
Q5_1_BYTES = 24

reader = gguf.GGUFReader(sys.argv[1])
keys = {key.removeprefix("qwen3moe."): field.contents() for key, field in reader.fields.items()}
weights, minimums = {}, {}
for tensor in reader.tensors:
    shape = [int(dim) for dim in tensor.shape][::-1]
    weights[tensor.name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64).reshape(shape)
    if tensor.tensor_type == gguf.GGMLQuantizationType.Q5_1:
        blocks = np.array(tensor.data).reshape(-1, Q5_1_BYTES)
        found = blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
        minimums[tensor.name] = found.reshape(shape[:-1] + [shape[-1] // 32])
# The prompt of `gen-model`.
ids = [(((i + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 33) % 512 for i in range(POSITION + 1)]
n_layers, n_embd = keys["block_count"], keys["embedding_length"]
n_heads, n_kv = keys["attention.head_count"], keys["attention.head_count_kv"]
n_used, eps = keys["expert_used_count"], keys["attention.layer_norm_rms_epsilon"]
width, n = n_embd // n_heads, len(ids)
positions = np.arange(n)
angles = positions[:, None] * keys["rope.freq_base"] ** (-np.arange(0, width, 2) / width)
cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
future = positions[None, :] > positions[:, None]


def f16(x):
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x):
    a, b = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def logits(sums, forced):
    """The logits of POSITION and its experts by layer; `sums` is "scaled" or "rounded", `forced` has experts by layer."""

    def product(x, name, expert=...):
        blocks = x.reshape(x.shape[:-1] + (-1, 32))
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        codes = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
        values = (codes * f16(scale)).reshape(x.shape)
        out = values @ weights[name][expert].T
        if sums == "rounded":
            theirs = f16((codes.sum(-1, keepdims=True) * scale)[..., 0])
            out += (theirs - values.reshape(blocks.shape).sum(-1)) @ minimums[name][expert].T
        return out

    routes = []
    x = weights["token_embd.weight"][ids]
    for layer in range(n_layers):
        def name(part):
            return f"blk.{layer}.{part}.weight"

        h = norm(x, weights[name("attn_norm")])
        q = product(h, name("attn_q")).reshape(n, n_heads, width)
        k = product(h, name("attn_k")).reshape(n, n_kv, width)
        q = rotate(norm(q, weights[name("attn_q_norm")])) / math.sqrt(width)
        k = rotate(norm(k, weights[name("attn_k_norm")])).repeat(n_heads // n_kv, 1)
        v = product(h, name("attn_v")).reshape(n, n_kv, width).repeat(n_heads // n_kv, 1)
        scores = np.where(future, -np.inf, np.einsum("thd,shd->hts", q, k))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + product(np.einsum("hts,shd->thd", scores, v).reshape(n, -1), name("attn_output"))
        h = norm(x, weights[name("ffn_norm")])
        router = h @ weights[name("ffn_gate_inp")].T
        chosen = np.argsort(-router, -1, kind="stable")[:, :n_used]
        if layer in forced:
            chosen[POSITION] = forced[layer]
        routes.append(sorted(int(expert) for expert in chosen[POSITION]))
        share = np.exp(router - router.max(-1, keepdims=True))
        share = np.take_along_axis(share, chosen, -1)
        share /= share.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(router.shape[1]):
            tokens, ranks = np.nonzero(chosen == expert)
            gate = product(h[tokens], name("ffn_gate_exps"), expert)
            up = product(h[tokens], name("ffn_up_exps"), expert)
            down = product(gate / (1 + np.exp(-gate)) * up, name("ffn_down_exps"), expert)
            out[tokens] += down * share[tokens, ranks][:, None]
        x = x + out
    x = norm(x, weights["output_norm.weight"])
    return product(x, "output.weight")[POSITION], routes


model = llama_cpp.Llama(sys.argv[1], n_ctx=n, n_batch=n, n_ubatch=n, logits_all=True, verbose=False, n_threads=2,
                        n_threads_batch=2, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
model.eval(ids)
scaled, experts = logits("scaled", {})
rounded, other_experts = logits("rounded", {})
forced, _ = logits("scaled", dict(enumerate(other_experts)))
found = {"scaled_sums": scaled, "rounded_sums": rounded, "scaled_sums_other_experts": forced,
         "llama_cpp": model.scores[n - 1]}
rows = {name: [float(f"{value:.9g}") for value in row[:N_LOGITS]] for name, row in found.items()}
print(json.dumps({"ids": ids, "experts": experts, "other_experts": other_experts, **rows}))
