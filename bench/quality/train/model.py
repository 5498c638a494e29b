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
    head_width: int = 32
    hidden: int = 256
    rope_theta: float = 1e7
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
    q = q.reshape(batch * k.shape[0] // batch, groups, tokens, width)
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
        self.qkv = nn.Parameter(torch.empty((c.heads + 2 * c.key_heads) * c.head_width, c.width))
        self.out = nn.Parameter(torch.empty(c.width, c.heads * c.head_width))
        self.norm2 = nn.Parameter(torch.ones(c.width))
        self.gate_up = nn.Parameter(torch.empty(2 * c.hidden, c.width))
        self.down = nn.Parameter(torch.empty(c.width, c.hidden))

    def forward(self, x, cosine, sine):
        c = self.c
        batch, tokens, _ = x.shape
        normed = F.rms_norm(x, (c.width,), self.norm1, c.epsilon)
        qkv = F.linear(normed, self.qkv).view(batch, tokens, -1, c.head_width).transpose(1, 2)
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

    def initialize(self, seed, classes, keys):
        """Random weights, but for what small models otherwise take most of their training to find.

        Words of one class (`classes`, lists of token ids) have embeddings with something in common, and those of the
        classes in `keys`, that name what a text is about, have more. Heads of layer 0 look at the token before. Heads
        of layer 1 look at the nearest word of `keys`. Heads of layers 2 and 3 look for the token whose predecessor is
        the present one, and copy it (induction heads, arXiv 2209.11895); heads of layers 4 and 5 do so for tokens with
        the same nearest word of `keys`.
        """
        c, width = self.c, self.c.head_width
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.endswith(("out", "down")):
                    p.zero_()
                elif p.ndim == 2:
                    p.normal_(0, 1 / math.sqrt(c.width), generator=generator)
            basis = torch.linalg.qr(torch.randn(c.width, c.width, generator=generator))[0].T
            common, key = basis[0], basis[1]
            content, before, topic = basis[2:2 + width], basis[2 + width:2 + 2 * width], basis[2 + 2 * width:2 + 3 * width]
            self.embedding -= self.embedding @ basis[:2].T @ basis[:2]
            self.embedding += 0.7 * common
            for ids in classes:
                direction = torch.randn(c.width, generator=generator)
                direction -= basis[:2].T @ (basis[:2] @ direction)
                self.embedding[ids] += 0.5 * direction / direction.norm()
            for ids in keys:
                self.embedding[ids] += 0.7 * key
            half, groups = width // 2, c.heads // c.key_heads
            frequency = c.rope_theta ** (-torch.arange(half) / half)
            fast, zero = (torch.arange(half) < half // 2).float(), torch.zeros(half)
            # Only the slowly turning half of a head's width compares contents, whatever the distance.
            slow = torch.cat([1 - fast] * 2)[:, None]

            def head(layer, number, query, its_key, value, into, scale):
                """Sets the heads of key head `number`."""
                rows = slice((c.heads + number) * width, (c.heads + number + 1) * width)
                layer.qkv[rows] = its_key
                layer.qkv[rows.start + c.key_heads * width:rows.stop + c.key_heads * width] = value
                for at in range(number * groups * width, (number + 1) * groups * width, width):
                    layer.qkv[at:at + width] = query
                    layer.out[:, at:at + width] = scale / groups * into.T

            near = fast * (torch.arange(half) < 6) * 1.6
            head(self.layers[0], 0, torch.outer(torch.cat([near * torch.cos(frequency), -near * torch.sin(frequency)]),
                                                common), torch.outer(torch.cat([near, zero]), common), content, before, 0.2)
            recent = torch.cat([fast * (torch.arange(half) > 0) * 1.0, zero])
            sign = torch.cat([zero, zero])
            sign[-1] = 3.0
            head(self.layers[1], 0, torch.outer(recent + sign, common),
                 torch.outer(recent, common) + torch.outer(sign, key), content, topic, 0.4)
            slices = [basis[i * width:(i + 1) * width] for i in range(c.width // width)]
            for i, piece in enumerate(slices):
                head(self.layers[2 + i // c.key_heads], i % c.key_heads, 3.0 * slow * content, 3.0 * slow * before, piece,
                     piece, 0.8)
                head(self.layers[4 + i // c.key_heads], i % c.key_heads, 2.5 * slow * topic, 2.5 * slow * topic, piece,
                     piece, 0.4)
            for layer in self.layers:
                layer.qkv += 0.02 * torch.randn(layer.qkv.shape, generator=generator)

    def forward(self, ids, positions):
        half = self.c.head_width // 2
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
        q, k = c.heads * c.head_width, c.key_heads * c.head_width
        return {prefix + "self_attn.q_proj.weight": tensor[:q], prefix + "self_attn.k_proj.weight": tensor[q:q + k],
                prefix + "self_attn.v_proj.weight": tensor[q + k:]}
    if kind == "gate_up":
        return {prefix + "mlp.gate_proj.weight": tensor[:c.hidden], prefix + "mlp.up_proj.weight": tensor[c.hidden:]}
    return {prefix + {"norm1": "input_layernorm", "norm2": "post_attention_layernorm", "out": "self_attn.o_proj",
                      "down": "mlp.down_proj"}[kind] + ".weight": tensor}
