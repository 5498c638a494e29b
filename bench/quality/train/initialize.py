"""Initial weights: random, but for what a small model otherwise takes most of its training to find."""

import math

import torch


def initialize(model, seed, words):
    """Sets all weights. `words` are those of `vocabulary.classes`.

    Words of one class have embeddings with something in common; so have key words, which name what a text is about,
    and the ends of sentences. A head of layer 0 looks at the token before. Heads of layer 1 look at the nearest key
    word: the topic; or at the nearest of key words and ends, that is, the topic if it is named in this sentence. Heads
    of layers 2 and 3 copy what followed the present token before (induction heads, arXiv 2209.11895). Heads of layers 4
    and 5 copy from the sentences on the present topic. Nothing else is given: other heads and all feed-forward layers
    start with no effect.
    """
    c, width = model.c, model.c.head_width
    half, groups = width // 2, c.heads // c.key_heads
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("out", "down")):
                p.zero_()
            elif p.ndim == 2:
                p.normal_(0, 1 / math.sqrt(c.width), generator=generator)

        basis = torch.linalg.qr(normal(c.width, c.width))[0].T
        common, key, end = basis[:3]
        content, before, topic = (basis[3 + i * width:3 + (i + 1) * width] for i in range(3))
        left = basis[3 + 3 * width:]
        sentence = torch.cat([torch.zeros(width - len(left), c.width), left])
        model.embedding -= model.embedding @ basis[:3].T @ basis[:3]
        model.embedding += 0.7 * common  # so that a head can attend whatever the words are
        for ids in words["classes"]:
            direction = normal(c.width)
            direction -= basis[:3].T @ (basis[:3] @ direction)
            model.embedding[ids] += 0.5 * direction / direction.norm()
        model.embedding[words["keys"]] += 0.7 * key
        model.embedding[words["ends"]] += 0.7 * end

        def head(layer, number, query, its_key, value, scale, into):
            """Sets key head `number` of `layer` and its query heads: copies `value` of what they see to `into`."""
            layer = model.layers[layer]
            rows = slice((c.heads + number) * width, (c.heads + number + 1) * width)
            layer.qkv[rows] = its_key
            layer.qkv[rows.start + c.key_heads * width:rows.stop + c.key_heads * width] = value
            for at in range(number * groups * width, (number + 1) * groups * width, width):
                layer.qkv[at:at + width] = query
                layer.out[:, at:at + width] = scale / groups * into.T

        # RoPE turns the pairs (i, i + half) of a head by `frequency[i]` for each position. The fast ones tell distances;
        # the slow half compares contents, whatever the distance.
        frequency = c.rope_theta ** (-torch.arange(half) / half)
        fast = 1.6 * (torch.arange(half) < 6)
        slow = torch.cat([torch.arange(half) >= half // 2] * 2).float()[:, None]
        previous = torch.cat([fast * torch.cos(frequency), -fast * torch.sin(frequency)])
        here = torch.cat([fast, torch.zeros(half)])
        head(0, 0, torch.outer(previous, common), torch.outer(here, common), content, 0.2, before)

        near = torch.outer(torch.cat([torch.tensor([0, 0, 1.2, 2, 1.5, 1]), torch.zeros(width - 6)]), common)
        asked = torch.zeros(width)
        asked[-1] = 3.5
        ask = near + torch.outer(asked, common)
        head(1, 0, ask, near + torch.outer(asked, key), content, 0.4, topic)
        head(1, 1, ask, near + torch.outer(asked, key + end), content, 0.4, sentence)

        for i in range(c.width // width):
            piece = basis[i * width:(i + 1) * width]
            layer, number = i // c.key_heads, i % c.key_heads
            head(2 + layer, number, 3.0 * slow * content, 3.0 * slow * before, piece, 0.8, piece)
            # One of them follows the topic over the end of its sentence.
            head(4 + layer, number, 2.5 * slow * topic, 2.5 * slow * (sentence if i < 3 else topic), piece, 0.4, piece)
        for layer in model.layers:
            layer.qkv += 0.02 * normal(*layer.qkv.shape)
