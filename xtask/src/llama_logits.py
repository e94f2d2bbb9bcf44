"""llama_logits.py MODEL ID,ID,... N: llama.cpp's logits after every id, as little-endian f32 on stdout.

The last N ids are decoded one by one, those before them in one batch.
"""
import sys

import llama_cpp
import numpy as np

ids = [int(i) for i in sys.argv[2].split(",")]
model = llama_cpp.Llama(sys.argv[1], n_ctx=len(ids), n_batch=len(ids), n_ubatch=len(ids), logits_all=True, verbose=False,
                        n_threads=2, n_threads_batch=2, flash_attn=False,
                        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
n_prompt = len(ids) - int(sys.argv[3])
model.eval(ids[:n_prompt])
for id in ids[n_prompt:]:
    model.eval([id])
scores = np.asarray(model.scores[: len(ids)], dtype="<f4")
assert np.isfinite(scores).all(), "llama.cpp's logits are not finite"
sys.stdout.buffer.write(scores.tobytes())
