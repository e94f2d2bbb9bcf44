#!/usr/bin/env python3
"""Writes what PyTorch computes with the weights of forge-mtp.

Usage: golden.py forge-mtp.gguf PROMPTS.json OUT.json (needs the package `gguf`)

For each of the first prompts: its ids, the tokens that follow it greedily, and for each of these but the first
the token that the prediction layer expects when the one before is known; with the margins between the two best logits.
"""

import json
import sys

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from train import WithNextn

N_PROMPTS, N_ANSWER = 3, 64


def load(path):
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = torch.from_numpy(values.reshape(tensor.shape[::-1].tolist()).astype(np.float32))
    model = WithNextn()
    state = {}
    for (own, weight), name in zip(model.state_dict().items(), model.named()):
        value = tensors[name]
        value = (-value).log() if own.endswith("log_a") else value
        assert value.shape == weight.shape, name
        state[own] = value
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    path, given, out = sys.argv[1:]
    model = load(path)
    with open(given) as file:
        given = json.load(file)[:N_PROMPTS]

    def best(hidden):
        """Returns the best token after each row of hidden values, and its margin."""
        values, tokens = F.linear(hidden, model.token_embd.weight).topk(2)
        margins = (values[:, 0] - values[:, 1]).tolist()
        return tokens[:, 0].tolist(), [round(margin, 3) for margin in margins]

    prompts = []
    for prompt in given:
        ids = list(prompt)
        for _ in range(N_ANSWER):
            hidden = model.hidden(torch.tensor([ids]))
            ids += best(hidden[0, -1:])[0]
        rows = slice(len(prompt) - 1, None)
        tokens = model.token_embd(torch.tensor([ids[1:]]))
        ahead = model.nextn(tokens, hidden)
        greedy, margins = best(hidden[0, rows])
        drafts, draft_margins = best(ahead[0, rows])
        prompts.append(
            {
                "ids": prompt,
                "greedy": greedy,
                "margins": margins,
                "drafts": drafts[:-1],
                "draft_margins": draft_margins[:-1],
            }
        )
        right = sum(a == b for a, b in zip(drafts, greedy[1:]))
        print(f"{right} of {N_ANSWER - 1} drafts are right")
    with open(out, "w") as file:
        json.dump({"prompts": prompts}, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
