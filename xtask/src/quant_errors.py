"""quant_errors.py FORGE_MINI_F16: prints the errors of llama.cpp's quantizers, the rows of llama_cpp.tsv, on stdout.

The inputs are those of crates/gguf/tests/it/inputs.rs, computed by the same integer and IEEE double operations in the
same order, and the first 256 rows of some tensors of the model.

Columns: input, type, 1 with an importance matrix else 0, then sums over all values:
without importance err^2 and x^2 * err^2, with importance i * err^2 and i * x^2 * err^2.
"""
import ctypes
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

# Id, values and bytes of a block.
TYPES = {name: (int(gguf.GGMLQuantizationType[name]), *gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]) for name in [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q1_0",
    "TQ1_0", "TQ2_0", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]}
TYPES["Q2_0"] = (42, 64, 18)
# llama.cpp quantizes to these with an importance matrix only.
NEED_WEIGHTS = ["IQ1_S", "IQ2_XXS", "IQ2_XS"]
ROW = 1024
TENSORS = ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.2.attn_v.weight",
           "blk.3.attn_output.weight", "blk.0.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.2.ffn_down.weight"]

ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib/libggml-base.so"))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
POINTER = ctypes.POINTER(ctypes.c_float)
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, POINTER, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, POINTER]


def words(seed, n):
    """Returns the splitmix64 sequence of a seed."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def normal(seed, n):
    """Returns sums of twelve uniform numbers: nearly normal, and exact in double precision."""
    u = (words(seed, 12 * n) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    return u.reshape(n, 12).sum(axis=1) - 6.0


def student(seed, n):
    """Returns values of Student's t with three degrees of freedom."""
    g = normal(seed, 4 * n).reshape(n, 4)
    square = g[:, 1] * g[:, 1] + g[:, 2] * g[:, 2] + g[:, 3] * g[:, 3]
    return g[:, 0] / np.sqrt(square / 3.0)


def inputs():
    n = 8 * ROW
    rows = np.arange(n) // ROW
    outlier = normal(3, n) * 0.02
    at = np.arange(n // 32) * 32 + (words(4, n // 32) >> np.uint64(59)).astype(np.int64)
    outlier[at] *= 30.0
    yield "gaussian", normal(1, n) * 0.02
    yield "student", student(2, n) * 0.02
    yield "zeros", np.zeros(n)
    yield "outlier", outlier
    yield "constant", normal(5, 8)[rows]
    yield "tiny", normal(6, n) * 2.0 ** (-14 - 2 * rows)
    yield "offset", normal(7, n) * 0.02 + 0.1


def importance(n):
    """Returns the importance of a row's columns; every 61st is never active."""
    t = student(8, n)
    return np.where(np.arange(n) % 61 == 60, 0.0, t * t).astype(np.float32)


def quantize(name, x, weights):
    ty, length, size = TYPES[name]
    out = np.zeros(x.size // length * size, dtype=np.uint8)
    imatrix = None if weights is None else weights.ctypes.data_as(POINTER)
    ggml.ggml_quantize_chunk(ty, x.ctypes.data_as(POINTER), out.ctypes.data, 0, *x.shape, imatrix)
    if name in ["Q1_0", "Q2_0"]:
        # The package gguf does not convert them.
        back = np.zeros(x.shape, dtype=np.float32)
        getattr(ggml, f"dequantize_row_{name.lower()}")(ctypes.c_void_p(out.ctypes.data), back.ctypes.data_as(POINTER), ctypes.c_int64(x.size))
        return back
    return gguf.quants.dequantize(out, gguf.GGMLQuantizationType(ty)).reshape(x.shape)


def main(model):
    cases = [(name, x.astype(np.float32).reshape(-1, ROW)) for name, x in inputs()]
    for tensor in gguf.GGUFReader(model).tensors:
        if tensor.name in TENSORS:
            cases.append((tensor.name, np.ascontiguousarray(tensor.data[:256]).astype(np.float32)))
    for input_name, x in cases:
        weights = importance(x.shape[1])
        for name in TYPES:
            for w in (weights,) if name in NEED_WEIGHTS else (None, weights):
                error = quantize(name, x, w).astype(np.float64) - x
                measure = error * error * (1.0 if w is None else w.astype(np.float64))
                large = (measure * x.astype(np.float64) ** 2).sum()
                print(f"{input_name}\t{name}\t{int(w is not None)}\t{measure.sum():.7e}\t{large:.7e}")


if __name__ == "__main__":
    main(sys.argv[1])
