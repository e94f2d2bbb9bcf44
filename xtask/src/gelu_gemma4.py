"""gelu_gemma4.py MODEL: computes the last logits of a Gemma 4 model in F32 in f64, with GELU and with llama.cpp's table of
it, and runs llama.cpp; prints the three as JSON on stdout.

llama.cpp's CPU backend rounds the argument of GELU and its value to f16 (`ggml_vec_geglu_f32`, `ggml_vec_gelu_f32`).
"""
import json
import math
import sys

import gguf
import llama_cpp
import numpy as np

N_LOGITS = 128

reader = gguf.GGUFReader(sys.argv[1])
keys = {key.removeprefix("gemma4."): field.contents() for key, field in reader.fields.items()}
weights = {tensor.name: np.array(tensor.data).astype(np.float64) for tensor in reader.tensors}
ids = [(7 * i * i + 3 * i + 5) % 500 + 3 for i in range(40)]
n, n_layers, n_embd = len(ids), keys["block_count"], keys["embedding_length"]
n_heads, n_kv_heads = keys["attention.head_count"], keys["attention.head_count_kv"]
n_own = n_layers - keys["attention.shared_kv_layers"]
has_window, window = keys["attention.sliding_window_pattern"], keys["attention.sliding_window"]
n_inputs, n_used = keys["embedding_length_per_layer_input"], keys.get("expert_used_count", 0)
eps = keys["attention.layer_norm_rms_epsilon"]
positions = np.arange(n)
distance = positions[:, None] - positions[None, :]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def table(x):
    rounded = x.astype(np.float32).astype(np.float16).astype(np.float64)
    value = gelu(rounded).astype(np.float16).astype(np.float64)
    return np.where(x <= -10, 0, np.where(x >= 10, x, value))


def norm(x, weight=1.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, layer):
    width = x.shape[-1]
    base = keys["rope.freq_base_swa" if has_window[layer] else "rope.freq_base"]
    frequencies = base ** (-np.arange(0, width, 2) / width)
    if not has_window[layer]:
        frequencies = frequencies / weights["rope_freqs.weight"]
    angles = (positions[:, None] * frequencies)[:, None]
    a, b = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def experts(x, normed, w, activation):
    scale = weights[w("ffn_gate_inp.scale")]
    scores = (norm(x) / math.sqrt(n_embd) * scale) @ weights[w("ffn_gate_inp.weight")].T
    both, down = weights[w("ffn_gate_up_exps.weight")], weights[w("ffn_down_exps.weight")]
    n_ff = both.shape[1] // 2
    out = np.zeros_like(x)
    for t in range(n):
        chosen = np.argsort(-scores[t], kind="stable")[:n_used]
        for expert, share in zip(chosen, softmax(scores[t, chosen])):
            h = both[expert] @ normed[t]
            h = down[expert] @ (activation(h[:n_ff]) * h[n_ff:])
            out[t] += share * weights[w("ffn_down_exps.scale")][expert] * h
    return out


def last_logits(activation):
    x = weights["token_embd.weight"][ids] * math.sqrt(n_embd)
    inputs = None
    if n_inputs:
        of_tokens = weights["per_layer_token_embd.weight"][ids].reshape(n, n_layers, n_inputs) * math.sqrt(n_inputs)
        projected = (x @ weights["per_layer_model_proj.weight"].T / math.sqrt(n_embd)).reshape(n, n_layers, n_inputs)
        inputs = (norm(projected, weights["per_layer_proj_norm.weight"]) + of_tokens) / math.sqrt(2)
    caches = []
    for layer in range(n_layers):
        def w(name):
            return f"blk.{layer}.{name}"

        def part(name):
            return weights.get(w(f"{name}.weight"))

        h = norm(x, part("attn_norm"))
        width = len(part("attn_q_norm"))
        group = n_heads // n_kv_heads[layer]
        q = rotate(norm((h @ part("attn_q").T).reshape(n, n_heads, width), part("attn_q_norm")), layer)
        if layer < n_own:
            k = (h @ part("attn_k").T).reshape(n, -1, width)
            v = k if part("attn_v") is None else (h @ part("attn_v").T).reshape(n, -1, width)
            caches.append((rotate(norm(k, part("attn_k_norm")), layer), norm(v)))
        else:
            # Of the last layer of the same kind that has a cache.
            caches.append(caches[max(i for i in range(n_own) if has_window[i] == has_window[layer])])
        k, v = (part.repeat(group, 1) for part in caches[layer])
        seen = (distance >= 0) & (distance < (window if has_window[layer] else n))
        scores = softmax(np.where(seen, np.einsum("thd,shd->hts", q, k), -np.inf))
        out = np.einsum("hts,shd->thd", scores, v).reshape(n, -1) @ part("attn_output").T
        x = x + norm(out, part("post_attention_norm"))
        h = norm(x, part("ffn_norm"))
        out = (activation(h @ part("ffn_gate").T) * (h @ part("ffn_up").T)) @ part("ffn_down").T
        if part("ffn_gate_inp") is not None:
            of_experts = experts(x, norm(x, part("pre_ffw_norm_2")), w, activation)
            out = norm(out, part("post_ffw_norm_1")) + norm(of_experts, part("post_ffw_norm_2"))
        x = x + norm(out, part("post_ffw_norm"))
        if n_inputs:
            gated = activation(x @ part("inp_gate").T) * inputs[:, layer]
            x = x + norm(gated @ part("proj").T, part("post_norm"))
        x = x * part("layer_output_scale")
    x = norm(x[-1], weights["output_norm.weight"])
    cap = keys["final_logit_softcapping"]
    return cap * np.tanh(weights["token_embd.weight"] @ x / cap)


model = llama_cpp.Llama(sys.argv[1], n_ctx=n, n_batch=n, n_ubatch=n, logits_all=True, verbose=False, n_threads=2,
                        n_threads_batch=2, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
model.eval(ids)
found = {"exact": last_logits(gelu), "table": last_logits(table), "llama_cpp": model.scores[n - 1]}
rows = {name: [float(f"{value:.9g}") for value in row[:N_LOGITS]] for name, row in found.items()}
print(json.dumps({"ids": ids, **rows}))
