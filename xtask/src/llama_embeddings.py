"""llama_embeddings.py MODEL POOLING ID,ID,...[;ID,...]: prints what llama.cpp makes of each text: hidden values pooled as
POOLING says (mean, cls, last), or the scores of a classifier (rank), as little-endian f32 on stdout. The texts are computed
in one batch."""
import sys

import llama_cpp
import numpy as np

POOLINGS = {"mean": 1, "cls": 2, "last": 3, "rank": 4}

texts = [[int(i) for i in text.split(",")] for text in sys.argv[3].split(";")]
n = sum(map(len, texts))
pooling = POOLINGS[sys.argv[2]]
llama = llama_cpp.Llama(sys.argv[1], embedding=True, pooling_type=pooling, n_ctx=len(texts) * n, n_batch=n, n_ubatch=n,
                        n_seq_max=len(texts), verbose=False, n_threads=2, n_threads_batch=2, flash_attn=False,
                        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
                        yarn_beta_fast=-1.0, yarn_beta_slow=-1.0)
batch = llama_cpp.llama_batch_init(n, 0, 1)
batch.n_tokens = n
at = 0
for seq, text in enumerate(texts):
    for pos, token in enumerate(text):
        batch.token[at] = token
        batch.pos[at] = pos
        batch.n_seq_id[at] = 1
        batch.seq_id[at][0] = seq
        batch.logits[at] = True
        at += 1
assert llama_cpp.llama_decode(llama._ctx.ctx, batch) == 0, "llama.cpp failed"
model = llama._model.model
width = llama_cpp.llama_model_n_cls_out(model) if pooling == 4 else llama_cpp.llama_model_n_embd_out(model)
for seq in range(len(texts)):
    values = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(llama._ctx.ctx, seq), shape=(width,))
    assert np.isfinite(values).all(), "llama.cpp's values are not finite"
    sys.stdout.buffer.write(values.astype("<f4").tobytes())
sys.stdout.buffer.flush()
