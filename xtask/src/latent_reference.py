"""latent_reference.py MODEL: computes logits of a small deepseek2 model in F32 in f64, with each expert that a nearly
tied router could choose, and runs llama.cpp; prints them and the margin between these experts as JSON on stdout."""
import json
import math
import sys

import gguf
import llama_cpp
import numpy as np

# The position of the committed logits, after which the prompt ends, and the layer of the tie.
POSITION, TIED_LAYER = 586, 1
N_LOGITS = 128

reader = gguf.GGUFReader(sys.argv[1])
keys = {key.removeprefix("deepseek2."): field.contents() for key, field in reader.fields.items()}
weights = {}
for tensor in reader.tensors:
    shape = [int(dim) for dim in tensor.shape][::-1]
    weights[tensor.name] = np.array(tensor.data).astype(np.float64).reshape(shape)
# The prompt of `gen-model`.
ids = [(((i + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 33) % 512 for i in range(POSITION + 1)]
n, n_heads, n_rot = len(ids), keys["attention.head_count"], keys["rope.dimension_count"]
kv_rank, k_dim = keys["attention.kv_lora_rank"], keys["attention.key_length_mla"]
n_plain, eps = k_dim - n_rot, keys["attention.layer_norm_rms_epsilon"]
n_used = keys["expert_used_count"]
positions = np.arange(n)
future = positions[None, :] > positions[:, None]

# YaRN. The multiplier is 0.1 times the `mscale_all_dim` of DeepSeek's own code, where it equals `mscale`: rotated values
# keep their size, and scores get the square of the factor.
base, factor = keys["rope.freq_base"], keys["rope.scaling.factor"]
original = keys["rope.scaling.original_context_length"]


def boundary(turns):
    return n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))


low, high = max(math.floor(boundary(32)), 0), min(math.ceil(boundary(1)), n_rot - 1)
ramp = np.clip((np.arange(n_rot // 2) - low) / (high - low), 0, 1)
frequencies = base ** (-np.arange(0, n_rot, 2) / n_rot) * (1 - ramp + ramp / factor)
angles = positions[:, None] * frequencies
cos, sin = np.cos(angles), np.sin(angles)
scale = (1 + keys["rope.scaling.yarn_log_multiplier"] * math.log(factor)) ** 2 / math.sqrt(k_dim)


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[weight]


def rotate(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def gated(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def logits(other):
    """The logits of POSITION, and the router's margin there; `other` takes the expert after the chosen ones instead of
    the last of them."""
    margin = None
    x = weights["token_embd.weight"][ids]
    for layer in range(keys["block_count"]):
        def name(part):
            return f"blk.{layer}.{part}.weight"

        h = norm(x, name("attn_norm"))
        q = (h @ weights[name("attn_q")].T).reshape(n, n_heads, k_dim)
        c = h @ weights[name("attn_kv_a_mqa")].T
        rotated = rotate(c[:, kv_rank:], cos, sin)
        c = norm(c[:, :kv_rank], name("attn_kv_a_norm"))
        # Keys and values of every head.
        k = np.einsum("tc,hcd->thd", c, weights[name("attn_k_b")])
        v = np.einsum("tc,hdc->thd", c, weights[name("attn_v_b")])
        scores = np.einsum("thd,shd->hts", q[..., :n_plain], k)
        scores += np.einsum("thd,sd->hts", rotate(q[..., n_plain:], cos[:, None], sin[:, None]), rotated)
        scores = np.where(future, -np.inf, scores * scale)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hts,shd->thd", scores, v).reshape(n, -1) @ weights[name("attn_output")].T
        h = norm(x, name("ffn_norm"))
        if name("ffn_gate") in weights:
            x = x + gated(h, *(weights[name(part)] for part in ["ffn_gate", "ffn_up", "ffn_down"]))
            continue
        router = h @ weights[name("ffn_gate_inp")].T
        share = np.exp(router - router.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        order = np.argsort(-share, -1, kind="stable")
        chosen = order[:, :n_used]
        if layer == TIED_LAYER:
            last, next_ = order[POSITION, n_used - 1 : n_used + 1]
            margin = share[POSITION, last] - share[POSITION, next_]
            if other:
                chosen[POSITION, -1] = next_
        out = gated(h, *(weights[name(f"ffn_{part}_shexp")] for part in ["gate", "up", "down"]))
        for expert in range(router.shape[1]):
            tokens, _ = np.nonzero(chosen == expert)
            matrices = [weights[name(f"ffn_{part}_exps")][expert] for part in ["gate", "up", "down"]]
            weight = share[tokens, expert][:, None] * keys["expert_weights_scale"]
            out[tokens] += gated(h[tokens], *matrices) * weight
        x = x + out
    return norm(x[POSITION], "output_norm.weight") @ weights["output.weight"].T, margin


model = llama_cpp.Llama(sys.argv[1], n_ctx=n, n_batch=n, n_ubatch=n, logits_all=True, verbose=False, n_threads=2,
                        n_threads_batch=2, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
model.eval(ids)
chosen, margin = logits(False)
found = {"chosen": chosen, "other": logits(True)[0], "llama_cpp": model.scores[n - 1]}
rows = {name: [float(f"{value:.9g}") for value in row[:N_LOGITS]] for name, row in found.items()}
print(json.dumps({"ids": ids, "margin": margin, **rows}))
