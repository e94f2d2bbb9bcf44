"""llama_mixes.py: prints the tensor types that llama.cpp's quantizer chooses, as JSON on stdout.

It quantizes files of tiny random tensors, with the names, layer counts and metadata of real models, to every file type
and reads the types back: a letter per layer, or one letter if all layers have the same type.
"""
import ctypes
import json
import os
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

FILE_TYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q2_K_S": 21,
    "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
    "IQ4_NL": 25, "IQ4_XS": 30, "MXFP4_MOE": 38, "Q1_0": 40, "IQ1_S": 24, "IQ1_M": 31, "TQ1_0": 36, "TQ2_0": 37, "Q2_0": 41,
    "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ2_M": 29, "IQ3_XXS": 23, "IQ3_XS": 22, "IQ3_S": 26, "IQ3_M": 27,
}
LETTERS = {
    "F32": "f", "F16": "h", "BF16": "b", "Q4_0": "4", "Q4_1": "1", "Q5_0": "5", "Q5_1": "u", "Q8_0": "8", "Q2_K": "B",
    "Q3_K": "C", "Q4_K": "D", "Q5_K": "E", "Q6_K": "F", "IQ4_NL": "n", "IQ4_XS": "x", "MXFP4": "m", "Q1_0": "s",
    "IQ1_S": "p", "IQ1_M": "q", "IQ2_XXS": "r", "IQ2_XS": "t", "IQ2_S": "v", "IQ3_XXS": "w", "IQ3_S": "y", "TQ1_0": "z",
    "TQ2_0": "Z", "Q2_0": "S",
}

# The package gguf does not know Q2_0.
Q2_0 = int.__new__(gguf.GGMLQuantizationType, 42)
Q2_0._name_, Q2_0._value_ = "Q2_0", 42
gguf.GGMLQuantizationType._value2member_map_[42] = Q2_0
gguf.GGML_QUANT_SIZES[Q2_0] = (64, 18)

ATTENTION = ["attn_norm.weight 256", "attn_q.weight 256 2", "attn_k.weight 256 2", "attn_v.weight 256 2",
             "attn_output.weight 256 2"]
DENSE = ATTENTION + ["ffn_norm.weight 256", "ffn_gate.weight 256 2", "ffn_up.weight 256 2", "ffn_down.weight 256 2"]
EXPERTS = ATTENTION + ["ffn_norm.weight 256", "ffn_gate_inp.weight 256 2", "ffn_gate_exps.weight 256 2 2",
                       "ffn_up_exps.weight 256 2 2", "ffn_down_exps.weight 256 2 2"]
OUTPUT = ["token_embd.weight 256 2", "output_norm.weight 256", "output.weight 256 2"]
TIED = OUTPUT[:2]


def model(arch, layers, heads, kv_heads, block, once, experts=0, importance=False):
    return dict(arch=arch, layers=layers, heads=heads, kv_heads=kv_heads, experts=experts, importance=importance,
                tensors=once + ["blk.*." + name for name in block])


def narrow(tensors, width):
    """Makes the rows of all matrices but every third `width` long."""
    return [t if t.count(" ") < 2 or i % 3 == 0 else t.replace(" 256 ", f" {width} ") for i, t in enumerate(tensors)]


FUSED = ["attn_norm.weight 256", "attn_norm.bias 256", "attn_qkv.weight 256 2", "attn_qkv.bias 256",
         "attn_output.weight 256 2", "ffn_norm.weight 256", "ffn_up.weight 256 2", "ffn_down.weight 256 2"]
ODD = ["ssm_conv1d.weight 4 256", "ssm_in.weight 256 2", "ssm_out.weight 256 2", "time_mix_w1.weight 256 2",
       "shortconv.conv.weight 256 2", "attn_rel_b.weight 256 2", "attn_q_norm.weight 256 2", "ffn_down.scale 256 2",
       "attn_kv_b.weight 256 2", "ffn_down_shexp.weight 256 2", "one_row.weight 256 1"]

MODELS = {
    "dense-32": model("llama", 32, 32, 8, DENSE, OUTPUT),
    "dense-32-no-gqa": model("llama", 32, 32, 32, DENSE, OUTPUT),
    "dense-16-tied": model("llama", 16, 32, 8, DENSE, TIED),
    "dense-10-tied": model("llama", 10, 4, 2, DENSE, TIED),
    "dense-1": model("llama", 1, 4, 2, DENSE, OUTPUT),
    "dense-80": model("llama", 80, 64, 8, DENSE, OUTPUT),
    "dense-80-no-gqa": model("llama", 80, 64, 64, DENSE, OUTPUT),
    "dense-32-importance": model("llama", 32, 32, 8, DENSE, OUTPUT, importance=True),
    "dense-12-no-gqa-importance": model("llama", 12, 8, 8, DENSE, OUTPUT, importance=True),
    "qwen2-28": model("qwen2", 28, 12, 2, DENSE, TIED),
    "qwen2-80": model("qwen2", 80, 64, 8, DENSE, OUTPUT),
    "mixtral-32": model("llama", 32, 32, 8, EXPERTS, OUTPUT, experts=8),
    "mixtral-32-importance": model("llama", 32, 32, 8, EXPERTS, OUTPUT, experts=8, importance=True),
    "qwen3moe-48": model("qwen3moe", 48, 32, 4, EXPERTS, OUTPUT, experts=128),
    "qwen3moe-24-importance": model("qwen3moe", 24, 32, 4, EXPERTS, OUTPUT, experts=128, importance=True),
    "phi3-32": model("phi3", 32, 32, 32, FUSED, OUTPUT),
    "phi3-16-importance": model("phi3", 16, 32, 32, FUSED, OUTPUT, importance=True),
    "gpt2-12": model("gpt2", 12, 12, 12, FUSED, TIED + ["position_embd.weight 256 2"]),
    "falcon-32": model("falcon", 32, 71, 1, FUSED, OUTPUT),
    "falcon-16-importance": model("falcon", 16, 71, 1, FUSED, OUTPUT, importance=True),
    "narrow-288": model("llama", 12, 6, 6, narrow(DENSE, 288), narrow(OUTPUT, 288)),
    "narrow-100": model("llama", 12, 6, 6, narrow(DENSE, 100), ["token_embd.weight 100 2", "output_norm.weight 100"]),
    "odd-names": model("llama", 9, 8, 2, DENSE + ODD, OUTPUT + ["token_types.weight 256 2"]),
}


def expand(model):
    for line in model["tensors"]:
        name, *dims = line.split()
        for layer in range(model["layers"] if "*" in name else 1):
            yield name.replace("*", str(layer)), [int(dim) for dim in dims]


def write(model, path):
    writer = gguf.GGUFWriter(path, model["arch"])
    writer.add_block_count(model["layers"])
    writer.add_context_length(2048)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(model["heads"])
    writer.add_head_count_kv(model["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    if model["experts"]:
        writer.add_expert_count(model["experts"])
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(256)
    rng = np.random.default_rng(1)
    for name, dims in expand(model):
        writer.add_tensor(name, rng.standard_normal(dims[::-1], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source, out, file_type, model):
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = file_type
    if model["importance"]:
        entries, keep = [], []
        for name, dims in expand(model):
            n = dims[0] * (dims[2] if len(dims) > 2 else 1)
            values = (ctypes.c_float * n)(*([1.0] * n))
            keep.append(values)
            entries.append(llama_cpp.llama_model_imatrix_data(
                name.encode(), ctypes.cast(values, ctypes.POINTER(ctypes.c_float)), n))
        entries.append(llama_cpp.llama_model_imatrix_data(None, None, 0))
        params.imatrix = (llama_cpp.llama_model_imatrix_data * len(entries))(*entries)
    return llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params)) == 0


def types(path, model):
    found = {tensor.name: LETTERS[tensor.tensor_type.name] for tensor in gguf.GGUFReader(path).tensors}

    def chosen(name):
        layers = range(model["layers"] if "*" in name else 1)
        letters = "".join(found[name.replace("*", str(layer))] for layer in layers)
        return letters[0] if len(set(letters)) == 1 else letters

    return [chosen(line.split()[0]) for line in model["tensors"]]


@llama_cpp.llama_log_callback
def silent(level, text, data):
    pass


def main():
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "in.gguf"), os.path.join(folder, "out.gguf")
        for name, facts in MODELS.items():
            write(facts, source)
            mixes = {}
            for file_type, number in FILE_TYPES.items():
                done = quantize(source, out, number, facts)
                # Refused: this type needs an importance matrix.
                mixes[file_type] = types(out, facts) if done else None
            result[name] = {**facts, "types": mixes}
    print('{\n"letters": %s,\n"models": {' % json.dumps(LETTERS))
    blocks = []
    for name, entry in result.items():
        lines = ["%s: %s" % (json.dumps(t), json.dumps(chosen)) for t, chosen in entry.pop("types").items()]
        head = json.dumps(entry)[1:-1]
        blocks.append('"%s": {%s,\n"types": {\n%s}}' % (name, head, ",\n".join(lines)))
    print(",\n".join(blocks) + "\n}}")


sys.exit(main())
