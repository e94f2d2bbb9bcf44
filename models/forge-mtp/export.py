#!/usr/bin/env python3
"""Writes the weights of train.py as GGUF files in F16, with forge-mini's tokens (needs the package `gguf`).

Usage: export.py FORGE_MINI.gguf WEIGHTS OUT

WEIGHTS is the folder that train.py filled. OUT gets forge-mtp-F16.gguf, forge-draft-F16.gguf and prompts.json: the
ids of the first tokens of some texts that nothing was trained on.
"""

import json
import sys

import gguf
import numpy as np
from train import EPS, HEAD_DIM, INTERVAL, N_CONV, N_EMBD, N_FF, N_HEADS, N_K_HEADS, N_KV_HEADS, N_LAYERS, N_ROT
from train import N_V_HEADS, ROPE_BASE, STATE

N_CTX = 2048
N_PROMPTS, PROMPT_LEN = 16, 64


def write(path, arch, name, source, n_layers, weights):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    writer.add_license("MIT OR Apache-2.0")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(n_layers)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    if arch == "qwen35":
        writer.add_rope_dimension_count(N_ROT)
        # Parts of the rotation for positions in time, height and width, which are the same in text.
        writer.add_rope_dimension_sections([6, 5, 5, 0])
        writer.add_nextn_predict_layers(1)
        writer.add_full_attention_interval(INTERVAL)
        writer.add_ssm_conv_kernel(N_CONV)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_group_count(N_K_HEADS)
        writer.add_ssm_time_step_rank(N_V_HEADS)
        writer.add_ssm_inner_size(N_V_HEADS * STATE)
    else:
        writer.add_rope_dimension_count(HEAD_DIM)
    for field in source.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            of_items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, of_items)
    for name, weight in weights.items():
        # Convolutions and vectors stay in F32.
        is_matrix = weight.ndim == 2 and "conv1d" not in name
        writer.add_tensor(name, weight.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    mini, weights, out = sys.argv[1:]
    source = gguf.GGUFReader(mini)
    load = lambda *names: {k: v for name in names for k, v in np.load(f"{weights}/{name}.npz").items()}
    write(f"{out}/forge-mtp-F16.gguf", "qwen35", "forge-mtp", source, N_LAYERS + 1, load("mtp-0", "mtp-1"))
    write(f"{out}/forge-draft-F16.gguf", "llama", "forge-draft", source, 1, load("draft"))
    prompts = np.load(f"{weights}/heldout.npy")[:N_PROMPTS, :PROMPT_LEN].tolist()
    with open(f"{out}/prompts.json", "w") as file:
        json.dump(prompts, file, separators=(",", ":"))
        file.write("\n")


main()
