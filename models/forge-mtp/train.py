#!/usr/bin/env python3
"""Trains forge-mtp and forge-draft on texts that text.py wrote, with PyTorch.

Usage: train.py TEXTS.npy SECONDS OUT

forge-mtp has the architecture of Qwen 3.5: gated delta nets (Yang et al. 2024) in three of four layers, attention with gates
in the others, and a layer that predicts the token after the next one (DeepSeek-V3 report, section 2.2). forge-draft is one
layer of llama's architecture. Four fifths of the time are for forge-mtp. OUT gets weights in f16 by their names in GGUF
(`mtp-0.npz`, `mtp-1.npz`, `draft.npz`) and the last texts, which nothing was trained on (`heldout.npy`).
"""

import math
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N_VOCAB, N_EMBD, N_FF = 4096, 256, 768
N_LAYERS, INTERVAL = 8, 4
N_HEADS, N_KV_HEADS, HEAD_DIM, N_ROT = 4, 2, 64, 32
N_V_HEADS, N_K_HEADS, STATE, N_CONV = 4, 2, 128, 4
EPS, ROPE_BASE = 1e-6, 1e4
CHUNK = 64
BATCH, N_HELDOUT = 64, 256
RATE = 3e-3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def linear(n_in, n_out, scale=1.0):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, 0, scale * 0.02)
    return layer


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * self.weight).to(x.dtype)


def rope(x, neighbours):
    """Rotates the first values of each head, [batch, heads, tokens, dim]: pairs of neighbours, or of halves."""
    n_rot = x.shape[-1] if neighbours else N_ROT
    turned, rest = x[..., :n_rot].float(), x[..., n_rot:]
    rates = ROPE_BASE ** (-torch.arange(0, n_rot, 2, device=x.device, dtype=torch.float64) / n_rot)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=torch.float64), rates)
    cos, sin = angles.cos().float(), angles.sin().float()
    if neighbours:
        a, b = turned[..., 0::2], turned[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
    a, b = turned.chunk(2, -1)
    return torch.cat((torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype), rest), -1)


def delta(q, k, v, g, beta):
    """The gated delta rule in chunks. q, k, v: [batch, heads, tokens, dim]; g, beta: [batch, heads, tokens]."""
    batch, heads, n, dim = q.shape
    pad = -n % CHUNK
    parts = [F.pad(x, (0, 0, 0, pad)).view(batch, heads, -1, CHUNK, dim) for x in (q, k, v)]
    q, k, v = parts
    g, beta = [F.pad(x, (0, pad)).view(batch, heads, -1, CHUNK) for x in (g, beta)]
    g = g.cumsum(-1)
    decay = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    k_beta = k * beta[..., None]
    inner = (k_beta @ k.transpose(-1, -2) * decay).tril(-1)
    one = torch.eye(CHUNK, device=q.device).expand_as(inner)
    inverse = torch.linalg.solve_triangular(one + inner, one, upper=False, unitriangular=True)
    u, w = inverse @ (v * beta[..., None]), inverse @ (k_beta * g.exp()[..., None])
    scores = (q @ k.transpose(-1, -2) * decay).tril()
    q = q * g.exp()[..., None]
    last = g[..., -1:]
    k = (k * (last - g).exp()[..., None]).transpose(-1, -2)
    kept = last.exp()[..., None]
    state, out = q.new_zeros(batch, heads, dim, dim), []
    for i in range(q.shape[2]):
        new = u[:, :, i] - w[:, :, i] @ state
        out.append(q[:, :, i] @ state + scores[:, :, i] @ new)
        state = state * kept[:, :, i] + k[:, :, i] @ new
    return torch.stack(out, 2).view(batch, heads, -1, dim)[:, :, :n]


class DeltaNet(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.n_k, self.n_v = N_K_HEADS * STATE, N_V_HEADS * STATE
        self.attn_qkv = linear(N_EMBD, 2 * self.n_k + self.n_v)
        self.attn_gate = linear(N_EMBD, self.n_v)
        self.ssm_alpha, self.ssm_beta = linear(N_EMBD, N_V_HEADS), linear(N_EMBD, N_V_HEADS)
        self.ssm_conv1d = nn.Parameter(torch.randn(2 * self.n_k + self.n_v, N_CONV) / math.sqrt(N_CONV))
        # Decays of a token between exp(-0.001) and exp(-1.6).
        steps = torch.exp(torch.empty(N_V_HEADS).uniform_(math.log(1e-3), math.log(0.1)))
        self.ssm_dt = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.log_a = nn.Parameter(torch.empty(N_V_HEADS).uniform_(1, 16).log())
        self.ssm_norm = Norm(STATE)
        self.ssm_out = linear(self.n_v, N_EMBD, scale)

    def forward(self, x):
        batch, n, _ = x.shape
        qkv = self.attn_qkv(x).transpose(1, 2)
        qkv = F.conv1d(F.pad(qkv, (N_CONV - 1, 0)), self.ssm_conv1d[:, None].to(qkv.dtype), groups=qkv.shape[1])
        q, k, v = F.silu(qkv.transpose(1, 2)).split([self.n_k, self.n_k, self.n_v], -1)
        heads = lambda x: x.reshape(batch, n, -1, STATE).transpose(1, 2).float()
        with torch.autocast(DEVICE, enabled=False):
            unit = lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPS)
            # Head h of the values has head h % N_K_HEADS of the keys.
            q, k = [unit(heads(x)).repeat(1, N_V_HEADS // N_K_HEADS, 1, 1) for x in (q, k)]
            rate = -self.log_a.exp()
            g = rate * F.softplus(F.linear(x.float(), self.ssm_alpha.weight) + self.ssm_dt)
            beta = torch.sigmoid(F.linear(x.float(), self.ssm_beta.weight))
            y = delta(q / math.sqrt(STATE), k, heads(v), g.transpose(1, 2), beta.transpose(1, 2))
        y = self.ssm_norm(y.transpose(1, 2)).reshape(batch, n, -1).to(x.dtype)
        return self.ssm_out(y * F.silu(self.attn_gate(x)))


class Attention(nn.Module):
    def __init__(self, scale, is_gated):
        super().__init__()
        self.is_gated = is_gated
        self.attn_q = linear(N_EMBD, N_HEADS * HEAD_DIM * (2 if is_gated else 1))
        self.attn_k, self.attn_v = [linear(N_EMBD, N_KV_HEADS * HEAD_DIM) for _ in range(2)]
        self.attn_output = linear(N_HEADS * HEAD_DIM, N_EMBD, scale)
        if is_gated:
            self.attn_q_norm, self.attn_k_norm = Norm(HEAD_DIM), Norm(HEAD_DIM)

    def forward(self, x):
        batch, n, _ = x.shape
        heads = lambda x, count: x.view(batch, n, count, -1).transpose(1, 2)
        q, k, v = heads(self.attn_q(x), N_HEADS), heads(self.attn_k(x), N_KV_HEADS), heads(self.attn_v(x), N_KV_HEADS)
        if self.is_gated:
            q, gate = q.chunk(2, -1)
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q, k = [rope(x, neighbours=not self.is_gated).to(v.dtype) for x in (q, k)]
        k, v = [x.repeat_interleave(N_HEADS // N_KV_HEADS, 1) for x in (k, v)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.is_gated:
            y = y * torch.sigmoid(gate)
        return self.attn_output(y.transpose(1, 2).reshape(batch, n, -1))


class Layer(nn.Module):
    def __init__(self, mixer, scale, norm):
        super().__init__()
        self.attn_norm, self.mixer = Norm(N_EMBD), mixer
        self.add_module(norm, Norm(N_EMBD))
        self.norm = norm
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(N_EMBD, N_FF), linear(N_EMBD, N_FF), linear(N_FF, N_EMBD, scale)

    def forward(self, x):
        x = x + self.mixer(self.attn_norm(x))
        y = getattr(self, self.norm)(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Model(nn.Module):
    """A model whose output matrix is that of its embeddings."""

    def __init__(self, layers):
        super().__init__()
        self.token_embd = nn.Embedding(N_VOCAB, N_EMBD)
        nn.init.normal_(self.token_embd.weight, 0, 0.02)
        self.blk = nn.ModuleList(layers)
        self.output_norm = Norm(N_EMBD)

    def hidden(self, ids):
        x = self.token_embd(ids)
        for layer in self.blk:
            x = layer(x)
        return self.output_norm(x)

    def loss(self, hidden, ids):
        logits = F.linear(hidden, self.token_embd.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())

    def losses(self, ids):
        return [self.loss(self.hidden(ids[:, :-1]), ids[:, 1:])]


class Nextn(nn.Module):
    """The layer that predicts the token after the next one."""

    def __init__(self, scale):
        super().__init__()
        self.enorm, self.hnorm, self.shared_head_norm = Norm(N_EMBD), Norm(N_EMBD), Norm(N_EMBD)
        self.eh_proj = linear(2 * N_EMBD, N_EMBD)
        self.layer = Layer(Attention(scale, True), scale, "post_attention_norm")

    def forward(self, tokens, hidden):
        x = self.eh_proj(torch.cat((self.enorm(tokens), self.hnorm(hidden)), -1))
        return self.shared_head_norm(self.layer(x))


class WithNextn(Model):
    def __init__(self):
        scale = 1 / math.sqrt(2 * N_LAYERS)
        mixer = lambda i: Attention(scale, True) if (i + 1) % INTERVAL == 0 else DeltaNet(scale)
        super().__init__([Layer(mixer(i), scale, "post_attention_norm") for i in range(N_LAYERS)])
        self.nextn = Nextn(scale)

    def losses(self, ids):
        """Of the next token, and of the two after it, each from the hidden values of the one before."""
        hidden = self.hidden(ids[:, :-1])
        losses = [self.loss(hidden, ids[:, 1:])]
        for ahead in (1, 2):
            hidden = self.nextn(self.token_embd(ids[:, ahead:-1]), hidden[:, : ids.shape[1] - 1 - ahead])
            losses.append(self.loss(hidden, ids[:, 1 + ahead :]))
        return losses

    def named(self):
        """Weights by their names in a file."""
        names = {}
        for name, weight in self.state_dict().items():
            name = name.replace(".mixer.", ".").replace("nextn.layer.", f"blk.{N_LAYERS}.")
            if name.startswith("nextn."):
                name = f"blk.{N_LAYERS}.{name}"
            if name.endswith("log_a"):
                name, weight = name.replace("log_a", "ssm_a"), -weight.exp()
            name = name.replace("ssm_dt", "ssm_dt.bias").replace("ssm_conv1d", "ssm_conv1d.weight")
            names[name] = weight
        return names


class Draft(Model):
    def __init__(self):
        super().__init__([Layer(Attention(1.0, False), 1.0, "ffn_norm")])

    def named(self):
        return {name.replace(".mixer.", "."): weight for name, weight in self.state_dict().items()}


def train(model, texts, seconds):
    model.to(DEVICE).train()
    print(f"{type(model).__name__}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    wide = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=DEVICE == "cuda")
    rng = torch.Generator().manual_seed(1)
    started, step = time.monotonic(), 0
    while (done := (time.monotonic() - started) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))
        ids = texts[torch.randint(len(texts), (BATCH,), generator=rng)].to(DEVICE).long()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            losses = model.losses(ids)
        loss = losses[0] + 0.3 * sum(losses[1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0:
            print(f"{time.monotonic() - started:.0f} s, step {step}: {' '.join(f'{l.item():.4f}' for l in losses)}", flush=True)
    print(f"{step} steps, {step * BATCH * (texts.shape[1] - 1) / 1e6:.0f} M tokens")
    return model.eval()


@torch.no_grad()
def validate(model, texts):
    """Prints losses in f32, and how often the likeliest token of the prediction layer is that of the model."""
    sums = []
    for ids in texts.split(BATCH):
        ids = ids.to(DEVICE).long()
        losses = [loss.item() for loss in model.losses(ids)]
        if isinstance(model, WithNextn):
            hidden = model.hidden(ids[:, :-1])
            best = lambda hidden: F.linear(hidden, model.token_embd.weight).argmax(-1)
            ahead = best(model.nextn(model.token_embd(ids[:, 1:-1]), hidden[:, :-1]))
            losses.append((ahead == best(hidden[:, 1:])).float().mean().item())
        sums.append(losses)
    print("held out:", " ".join(f"{x:.4f}" for x in np.mean(sums, 0)), flush=True)


def save(path, weights):
    np.savez(path, **{name: w.cpu().numpy().astype(np.float16 if w.dim() == 2 else np.float32) for name, w in weights})


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    path, seconds, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    texts = torch.from_numpy(np.load(path))
    texts, heldout = texts[:-N_HELDOUT], texts[-N_HELDOUT:]
    np.save(f"{out}/heldout.npy", heldout.numpy())
    draft = train(Draft(), texts, 0.2 * seconds)
    validate(draft, heldout)
    save(f"{out}/draft.npz", draft.named().items())
    model = train(WithNextn(), texts, 0.8 * seconds)
    validate(model, heldout)
    weights = list(model.named().items())
    for i in range(2):
        save(f"{out}/mtp-{i}.npz", weights[i::2])


if __name__ == "__main__":
    main()
