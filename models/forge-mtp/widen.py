#!/usr/bin/env python3
"""Writes forge-mtp with wider and more layers that compute the same (needs the package `gguf`).

Usage: widen.py forge-mtp-Q6_K.gguf FACTOR LAYERS OUT.gguf

All widths but those of heads are multiplied by FACTOR, and there are LAYERS layers before the one that predicts further
tokens. What is added to a matrix is zero, and what is added to vectors of heads is their first value; so the texts are
almost those of forge-mtp, and the time is that of a large model. The mean square of a wider row is FACTOR times smaller, so
weights of norms are divided by the root of FACTOR, and epsilon by FACTOR: that of all norms, also those of heads.
"""

import sys

import gguf
import numpy as np

# Values of a block of Q6_K.
BLOCK = 256


def main():
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    source, factor, n_layers, out = gguf.GGUFReader(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    value = lambda key: source.fields[f"qwen35.{key}"].contents()
    n_before, interval = value("block_count") - 1, value("full_attention_interval")
    n_k_heads, n_v_heads, state = value("ssm.group_count"), value("ssm.time_step_rank"), value("ssm.state_size")
    if n_layers < n_before or n_layers % interval:
        raise SystemExit(f"LAYERS has to be a multiple of {interval}, and at least {n_before}")

    # Where rows and columns go. A head of values takes the head of keys with its index modulo their number.
    v_heads = np.array([h // n_k_heads * n_k_heads * factor + h % n_k_heads for h in range(n_v_heads)])
    rows_of = lambda heads, width: (heads[:, None] * width + np.arange(width)).reshape(-1)
    v_rows = rows_of(v_heads, state)
    n_k = n_k_heads * state
    k_rows = np.arange(n_k)
    qkv_rows = np.concatenate([k_rows, n_k * factor + k_rows, 2 * n_k * factor + v_rows])
    rows = {
        "attn_qkv": qkv_rows,
        "ssm_conv1d": qkv_rows,
        "attn_gate": v_rows,
        "ssm_alpha": v_heads,
        "ssm_beta": v_heads,
        "ssm_a": v_heads,
        "ssm_dt": v_heads,
    }
    # Those of columns are blocks.
    columns = {"ssm_out": v_rows[::BLOCK] // BLOCK, "nextn.eh_proj": np.array([0, factor])}
    of_heads = ("attn_q_norm", "attn_k_norm", "ssm_norm")

    def kind_of(name):
        return name.removesuffix(".weight").removesuffix(".bias").split(".", 2 if name.startswith("blk.") else 0)[-1]

    def widened(tensor, is_real):
        kind, old = kind_of(tensor.name), tensor.data
        if kind in of_heads:
            return old
        if kind.endswith("norm"):
            added = np.ones(len(old) * (factor - 1))
            return np.concatenate([old / np.sqrt(factor), added]).astype(np.float32)
        to = rows.get(kind, np.arange(len(old)))
        if old.ndim == 1:
            new = np.full(len(old) * factor, old[0])
            new[to] = old
            return new
        of_rows, of_columns = (1 if kind == name else factor for name in ("token_embd", "ssm_conv1d"))
        new = np.zeros((len(old) * of_rows, old.shape[1] * of_columns), old.dtype)
        if kind == "ssm_conv1d":
            new[to] = old
        elif is_real:
            n_blocks = int(tensor.shape[0]) // BLOCK
            blocks = columns.get(kind, np.arange(n_blocks))
            new[to[:, None], rows_of(blocks, old.shape[1] // n_blocks)] = old
        return new

    writer = gguf.GGUFWriter(out, "qwen35")
    scaled = ("embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv")
    scaled += ("ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")
    for field in source.fields.values():
        key = field.name.removeprefix("qwen35.")
        if field.name.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        of_items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        content = field.contents()
        if key in scaled:
            content *= factor
        elif key == "block_count":
            content = n_layers + 1
        elif key == "attention.layer_norm_rms_epsilon":
            content /= factor
        elif key == "general.name":
            content = f"forge-mtp, {factor} times as wide"
        writer.add_key_value(field.name, content, kind, of_items)

    tensors = {tensor.name: tensor for tensor in source.tensors}
    of_layer = lambda layer: [each for name, each in tensors.items() if name.startswith(f"blk.{layer}.")]
    plan = [(each.name, each, True) for name, each in tensors.items() if not name.startswith("blk.")]
    for layer in range(n_layers + 1):
        is_last = layer == n_layers
        like = n_before if is_last else layer if layer < n_before else layer % interval
        is_real = is_last or layer < n_before
        plan += [(each.name.replace(f"blk.{like}.", f"blk.{layer}."), each, is_real) for each in of_layer(like)]
    for name, tensor, is_real in plan:
        writer.add_tensor(name, widened(tensor, is_real), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
