"""A Llama model for training on a CPU or a GPU."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Config:
    vocabulary: int
    layers: int = 12
    width: int = 128
    heads: int = 4
    key_heads: int = 2
    head_dim: int = 32
    hidden: int = 256
    rope_theta: float = 1e10
    epsilon: float = 1e-5


def attention(q, k, v):
    """Causal attention of `q` `[batch x heads x tokens x width]` on fewer heads `k` and `v`."""
    batch, heads, tokens, width = q.shape
    groups = heads // k.shape[1]
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # On a CPU, matrix products over blocks of queries are twice as fast as the fused kernel with its backward pass.
    block = min(tokens, 256)
    k, v = k.reshape(-1, tokens, width), v.reshape(-1, tokens, width)
    q = q.reshape(-1, groups, tokens, width)
    out = []
    column = torch.arange(tokens)
    for start in range(0, tokens, block):
        end = start + block
        scores = torch.bmm(q[:, :, start:end].reshape(-1, groups * block, width), k[:, :end].transpose(1, 2))
        hidden = column[None, :end] > column[start:end, None]
        scores = scores.view(-1, groups, block, end).float() * (1 / math.sqrt(width))
        probabilities = torch.softmax(scores.masked_fill(hidden, -1e9), -1).to(q.dtype)
        out.append(torch.bmm(probabilities.view(-1, groups * block, end), v[:, :end]).view(-1, groups, block, width))
    return torch.cat(out, 2).view(batch, heads, tokens, width)


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.norm1 = nn.Parameter(torch.ones(c.width))
        self.qkv = nn.Parameter(torch.empty((c.heads + 2 * c.key_heads) * c.head_dim, c.width))
        self.out = nn.Parameter(torch.empty(c.width, c.heads * c.head_dim))
        self.norm2 = nn.Parameter(torch.ones(c.width))
        self.gate_up = nn.Parameter(torch.empty(2 * c.hidden, c.width))
        self.down = nn.Parameter(torch.empty(c.width, c.hidden))

    def forward(self, x, cosine, sine):
        c = self.c
        batch, tokens, _ = x.shape
        normed = F.rms_norm(x, (c.width,), self.norm1, c.epsilon)
        qkv = F.linear(normed, self.qkv).view(batch, tokens, -1, c.head_dim).transpose(1, 2)
        qk, v = qkv[:, :c.heads + c.key_heads], qkv[:, c.heads + c.key_heads:]
        a, b = qk.chunk(2, -1)
        qk = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
        y = attention(qk[:, :c.heads], qk[:, c.heads:], v)
        x = x + F.linear(y.transpose(1, 2).reshape(batch, tokens, -1), self.out)
        gate, up = F.linear(F.rms_norm(x, (c.width,), self.norm2, c.epsilon), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Llama(nn.Module):
    """Hidden states `[batch x tokens x width]` of token ids; `logits` turns rows of them into logits."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.embedding = nn.Parameter(torch.empty(c.vocabulary, c.width))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.Parameter(torch.ones(c.width))

    def forward(self, ids, positions):
        half = self.c.head_dim // 2
        frequency = self.c.rope_theta ** (-torch.arange(half, device=ids.device, dtype=torch.float32) / half)
        angle = positions[:, None, :, None].float() * frequency
        cosine, sine = (f(angle).to(self.embedding.dtype) for f in (torch.cos, torch.sin))
        x = F.embedding(ids, self.embedding)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return x

    def logits(self, rows):
        return F.linear(F.rms_norm(rows, (self.c.width,), self.norm, self.c.epsilon), self.embedding)


def parts(c: Config, name, tensor):
    """The matrices that a parameter holds, by their name in a Hugging Face checkpoint, as views."""
    if name == "embedding":
        return {"model.embed_tokens.weight": tensor}
    if name == "norm":
        return {"model.norm.weight": tensor}
    _, layer, kind = name.split(".")
    prefix = f"model.layers.{layer}."
    if kind == "qkv":
        q, k = c.heads * c.head_dim, c.key_heads * c.head_dim
        return {prefix + "self_attn.q_proj.weight": tensor[:q], prefix + "self_attn.k_proj.weight": tensor[q:q + k],
                prefix + "self_attn.v_proj.weight": tensor[q + k:]}
    if kind == "gate_up":
        return {prefix + "mlp.gate_proj.weight": tensor[:c.hidden], prefix + "mlp.up_proj.weight": tensor[c.hidden:]}
    return {prefix + {"norm1": "input_layernorm", "norm2": "post_attention_layernorm", "out": "self_attn.o_proj",
                      "down": "mlp.down_proj"}[kind] + ".weight": tensor}
