"""llama_shift.py MODEL ID,ID,... N N_CTX N_SINKS N_FORGOTTEN KV_TYPE: generates N tokens greedily with llama.cpp in a
context of N_CTX tokens. When it is full, the N_FORGOTTEN tokens after the first N_SINKS are removed from the KV cache
and the rest shifted. Prints JSON: the ids, the two best log-probabilities of each step, and how many tokens were
dropped."""
import json
import sys

import llama_cpp
import numpy as np

path, prompt, *numbers, kv_type = sys.argv[1:]
prompt = [int(i) for i in prompt.split(",")]
n, n_ctx, n_sinks, n_forgotten = map(int, numbers)
ggml_type = getattr(llama_cpp, "GGML_TYPE_" + kv_type)
# Shifting needs the whole cache, also of sliding-window layers.
model = llama_cpp.Llama(path, n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx, verbose=False, n_threads=2, n_threads_batch=2,
                        flash_attn=False, type_k=ggml_type, type_v=ggml_type, swa_full=True)
context = model._ctx.ctx
memory = llama_cpp.llama_get_memory(context)
assert llama_cpp.llama_memory_can_shift(memory), "llama.cpp cannot shift this model"
n_vocab = model.n_vocab()
batch = llama_cpp.llama_batch_init(n_ctx, 0, 1)


def logits_after(ids, first):
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i] = token
        batch.pos[i] = first + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i + 1 == len(ids)
    assert llama_cpp.llama_decode(context, batch) == 0
    logits = llama_cpp.llama_get_logits_ith(context, -1)
    return np.array(np.ctypeslib.as_array(logits, shape=(n_vocab,)), dtype=np.float64)


ids, top, forgotten = [], [], 0
held, new = 0, prompt
while True:
    logits = logits_after(new, held)
    held += len(new)
    logprobs = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
    best = np.argsort(-logprobs, kind="stable")[:2]
    top.append([[int(i), round(float(logprobs[i]), 5)] for i in best])
    ids.append(int(best[0]))
    if len(ids) == n:
        break
    if held == n_ctx:
        assert llama_cpp.llama_memory_seq_rm(memory, 0, n_sinks, n_sinks + n_forgotten)
        llama_cpp.llama_memory_seq_add(memory, 0, n_sinks + n_forgotten, n_ctx, -n_forgotten)
        held -= n_forgotten
        forgotten += n_forgotten
    new = ids[-1:]
print(json.dumps({"ids": ids, "n_forgotten": forgotten, "top": top}, separators=(",", ":")))
