"""llama_logits.py MODEL ID,ID,...[;ID,...] [KV_TYPE [FILE=SCALE ...]]: prints llama.cpp's logits after every id, as
little-endian f32 on stdout, with the LoRA adapters FILE. A semicolon starts another batch."""
import ctypes
import sys

import llama_cpp
import numpy as np

batches = [[int(i) for i in batch.split(",")] for batch in sys.argv[2].split(";")]
ids = sum(batches, [])
kv_type = sys.argv[3] if len(sys.argv) > 3 else "F32"
adapters = [adapter.rsplit("=", 1) for adapter in sys.argv[4:]]
ggml_type = getattr(llama_cpp, "GGML_TYPE_" + kv_type)
# The class's own defaults of the betas would replace those of the file.
# A quantized V cache needs flash attention, which rounds queries too.
model = llama_cpp.Llama(sys.argv[1], n_ctx=len(ids), n_batch=len(ids), n_ubatch=len(ids), logits_all=True, verbose=False,
                        n_threads=2, n_threads_batch=2, flash_attn=kv_type.startswith("Q"),
                        type_k=ggml_type, type_v=ggml_type, use_mmap=not adapters,
                        yarn_beta_fast=-1.0, yarn_beta_slow=-1.0)
loaded = []
for path, _ in adapters:
    adapter = llama_cpp.llama_adapter_lora_init(model._model.model, path.encode())
    assert adapter, f"llama.cpp refuses {path}"
    loaded.append(adapter)
if adapters:
    handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(loaded))(*loaded)
    scales = (ctypes.c_float * len(loaded))(*[float(scale) for _, scale in adapters])
    assert llama_cpp.llama_set_adapters_lora(model._ctx.ctx, handles, len(loaded), scales) == 0
for batch in batches:
    model.eval(batch)
scores = np.asarray(model.scores[: len(ids)], dtype="<f4")
assert np.isfinite(scores).all(), "llama.cpp's logits are not finite"
sys.stdout.buffer.write(scores.tobytes())
sys.stdout.buffer.flush()
