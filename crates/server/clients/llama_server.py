#!/usr/bin/env python3
"""Starts `rocmforge serve` with the flags of llama-server, for llama.cpp's own tests of its server.

Environment: ROCMFORGE (the program), STORIES (stories260K.gguf, which stands for every model), SHIM_DIR (for files).
"""

import argparse
import hashlib
import os
import struct
import sys
from pathlib import Path

# Names that the tests ask for, whatever the server's model is called; llama-server answers to any.
NAMES = ["test", "davinci-002", "gpt-3.5-turbo-instruct", "gpt-3.5-turbo", "gpt-4.1", "text-embedding-3-small", "codellama70b"]
# That of the tests of streams, in which llama-server offers several models.
NAMES += ["ggml-org/tinygemma3-GGUF:Q8_0"]
# llama-server has these templates in itself.
TEMPLATES = {
    "chatml": "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{%- for message in messages -%}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{%- for message in messages -%}<|START_OF_TURN_TOKEN|><|"
    "{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[message.role] }}_TOKEN|>{{ message.content }}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
}
POOLINGS = {"mean": 1, "cls": 2, "last": 3, "rank": 4}
UINT32, STRING = 4, 8


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    if isinstance(value, int):
        return string(key) + struct.pack("<II", UINT32, value)
    return string(key) + struct.pack("<I", STRING) + string(value)


def with_metadata(path, more):
    """Writes a copy of a GGUF file with more metadata at its beginning, and returns its path."""
    data = path.read_bytes()
    entries = [entry(key, value) for key, value in more.items()]
    # What follows stays aligned to 32 bytes.
    rest = -len(b"".join(entries) + entry("test.padding", "")) % 32
    entries.append(entry("test.padding", " " * rest))
    (n_entries,) = struct.unpack_from("<Q", data, 16)
    new = data[:16] + struct.pack("<Q", n_entries + len(entries)) + b"".join(entries) + data[24:]
    copy = Path(os.environ["SHIM_DIR"]) / f"{hashlib.sha256(new).hexdigest()}.gguf"
    if not copy.exists():
        part = copy.with_suffix(f".{os.getpid()}")
        part.write_bytes(new)
        part.rename(copy)
    return copy


parser = argparse.ArgumentParser(allow_abbrev=False)
for flag in ["--port", "--host", "--alias", "--hf-repo", "--ctx-size", "--parallel", "--api-key", "--pooling", "--threads"]:
    parser.add_argument(flag)
for flag in ["--chat-template", "--chat-template-file"]:
    parser.add_argument(flag)
for flag in ["--embedding", "--reranking", "--context-shift"]:
    parser.add_argument(flag, action="store_true")
# The others change nothing here, or their tests are expected to fail.
asked, _ = parser.parse_known_args()

metadata = {}
if asked.embedding or asked.reranking:
    metadata["llama.pooling_type"] = POOLINGS.get(asked.pooling, POOLINGS["mean"])
if "infill" in (asked.hf_repo or ""):
    for name, token in [("pre", 500), ("suf", 501), ("mid", 502)]:
        metadata[f"tokenizer.ggml.fim_{name}_token_id"] = token
if asked.chat_template_file:
    metadata["tokenizer.chat_template"] = Path(asked.chat_template_file).read_text()
elif asked.chat_template:
    metadata["tokenizer.chat_template"] = TEMPLATES.get(asked.chat_template, asked.chat_template)
else:
    metadata["tokenizer.chat_template"] = TEMPLATES["chatml"]
model = with_metadata(Path(os.environ["STORIES"]), metadata)

args = ["serve", "--device", "cpu", "--port", asked.port, "--host", asked.host, "--threads", asked.threads or "1"]
own = (asked.alias or "model").split(",")[0]
for name in [own, *NAMES]:
    args += ["-m", str(model), "--alias", name]
n_slots = int(asked.parallel or 1)
args += ["--ctx", str(int(asked.ctx_size or 512) // n_slots), "--max-seqs", str(n_slots)]
if asked.context_shift:
    args += ["--context-policy", "shift"]
if asked.api_key:
    keys = Path(os.environ["SHIM_DIR"]) / "keys"
    keys.write_text(f"test:{hashlib.sha256(asked.api_key.encode()).hexdigest()}\n")
    args += ["--keys", str(keys)]
os.execv(os.environ["ROCMFORGE"], ["rocmforge", *args])
