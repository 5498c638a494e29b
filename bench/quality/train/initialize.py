"""Initial weights: random, but for what a small model otherwise takes most of its training to find."""

import math

import torch


def initialize(model, seed, words):
    """Sets all weights. `words` are those of `vocabulary.classes`.

    Every word has a code, and key words, which name what a text is about, and the ends of sentences something in common.
    Heads of the first two layers put codes beside each word: of the word before it; of the nearest key word, the topic;
    and of the nearest of key words and ends, which is the topic if this sentence names it. Heads of the layers 2 to 4
    copy the words that followed the present word before on the present topic (induction heads, arXiv 2209.11895, but
    for the topic). Nothing else is given: other heads and all feed-forward layers start with no effect.
    """
    c, width = model.c, model.c.head_dim
    half, groups = width // 2, c.heads // c.key_heads
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def unit(rows):
        return rows / rows.norm(dim=-1, keepdim=True)

    # RoPE turns the pairs (i, i + half) of a head by `frequency[i]` for each position. The fast ones tell distances; the
    # slow ones compare contents, whatever the distance.
    frequency = c.rope_theta ** (-torch.arange(half) / half)
    fast = 1.6 * (torch.arange(half) < 4)
    slow = [i for i in range(width) if i % half >= 6]
    size = len(slow) // 2  # a match compares two codes

    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("out", "down")):
                p.zero_()
            elif p.ndim == 2:
                p.normal_(0, 1 / math.sqrt(c.width), generator=generator)

        basis = torch.linalg.qr(normal(c.width, c.width))[0].T
        common, key, end = basis[:3]
        before, topic, sentence, code = (basis[3 + i * size:3 + (i + 1) * size] for i in range(4))
        rest = basis[3 + 4 * size:]
        embedding = 0.8 * unit(normal(c.vocabulary, size)) @ code + 0.8 * unit(normal(c.vocabulary, len(rest))) @ rest
        embedding += 0.7 * common  # so that a head can attend whatever the words are
        for ids in words["classes"]:
            embedding[ids] += 0.4 * unit(normal(len(rest))) @ rest
        embedding[words["keys"]] += 0.7 * key
        embedding[words["ends"]] += 0.7 * end
        model.embedding.copy_(embedding)

        def head(layer, number, query, its_key, value, scale, into):
            """Sets key head `number` of `layer` and its query heads: copies `value` of what they see to `into`."""
            layer = model.layers[layer]
            start = (c.heads + number) * width
            layer.qkv[start:start + width] = its_key
            start += c.key_heads * width
            layer.qkv[start:start + len(value)] = value
            for at in range(number * groups * width, (number + 1) * groups * width, width):
                layer.qkv[at:at + width] = query
                layer.out[:, at:at + len(into)] = scale / groups * into.T

        def match(first, second):
            result = torch.zeros(width, c.width)
            result[slow] = 3.0 * torch.cat([first, second])
            return result

        previous = torch.cat([fast * torch.cos(frequency), -fast * torch.sin(frequency)])
        here = torch.cat([fast, torch.zeros(half)])
        head(0, 0, torch.outer(previous, common), torch.outer(here, common), code, 0.2, before)

        near = torch.outer(torch.cat([torch.tensor([0, 1.5, 2, 1.5]), torch.zeros(width - 4)]), common)
        asked = torch.zeros(width)
        asked[-1] = 3.5
        ask = near + torch.outer(asked, common)
        head(1, 0, ask, near + torch.outer(asked, key), code, 0.2, topic)
        head(1, 1, ask, near + torch.outer(asked, key + end), code, 0.2, sentence)

        # What is copied into the code goes last: the heads before compare it.
        identity = torch.cat([rest, code])
        for i in range(0, len(identity), width):
            piece = identity[i:i + width]
            for number, about in enumerate((sentence, topic)):
                head(2 + i // width, number, match(code, about), match(before, about), piece, 0.4, piece)
        for layer in model.layers:
            layer.qkv += 0.01 * normal(*layer.qkv.shape)
