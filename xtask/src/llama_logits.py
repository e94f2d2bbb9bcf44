"""llama_logits.py MODEL ID,ID,... : llama.cpp's logits after every id, as little-endian f32 on stdout."""
import sys

import llama_cpp
import numpy as np

ids = [int(i) for i in sys.argv[2].split(",")]
model = llama_cpp.Llama(sys.argv[1], n_ctx=len(ids), n_batch=len(ids), n_ubatch=len(ids), logits_all=True, verbose=False,
                        n_threads=2, n_threads_batch=2, flash_attn=False,
                        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
model.eval(ids)
scores = np.asarray(model.scores[: len(ids)], dtype="<f4")
assert np.isfinite(scores).all(), "llama.cpp's logits are not finite"
sys.stdout.buffer.write(scores.tobytes())
