"""A naive LazyLLM in NumPy: the text of arXiv 2407.14057 turned into the most literal code.

One token at a time, one layer at a time. Every layer has its own dictionary of K/V and its own
dictionary of parked hidden states (the paper's Aux Cache), both keyed by the token's position. Nothing
here is fast, and nothing here knows the C++ library, so that the two can be compared.
"""

import json
import math
import pathlib
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import load_file


class Model:
    """A Llama-like checkpoint: a directory with config.json and model.safetensors (F32)."""

    def __init__(self, directory, dtype=np.float64):
        directory = pathlib.Path(directory)
        config = json.loads((directory / "config.json").read_text())
        self.dtype = dtype
        self.weights = {name: tensor.astype(dtype) for name, tensor in load_file(directory / "model.safetensors").items()}
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.key_heads = config.get("num_key_value_heads", self.heads)
        self.head_dim = config.get("head_dim", config["hidden_size"] // self.heads)
        self.epsilon = config["rms_norm_eps"]
        self.vocabulary = config["vocab_size"]
        self.head = self.weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
        self.frequencies = rope_frequencies(config, self.head_dim)

    def embed(self, token):
        return self.weights["model.embed_tokens.weight"][token]

    def linear(self, layer, name, x):
        y = self.weights[f"model.layers.{layer}.{name}.weight"] @ x
        bias = self.weights.get(f"model.layers.{layer}.{name}.bias")
        return y if bias is None else y + bias

    def norm(self, weight, x):
        return x / np.sqrt(np.mean(x * x) + self.dtype(self.epsilon)) * weight

    def norm_heads(self, layer, name, x):
        """Each head of [heads x head_dim] normalised, in models that have such norms."""
        weight = self.weights.get(f"model.layers.{layer}.{name}.weight")
        return x if weight is None else np.array([self.norm(weight, head) for head in x])

    def rotate(self, x, position):
        """RoPE on [heads x head_dim] as Hugging Face lays it out: element i pairs with i + head_dim / 2."""
        angles = position * self.frequencies
        cosine, sine = np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)
        half = self.head_dim // 2
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=1)

    def query_key_value(self, layer, hidden, position):
        x = self.norm(self.weights[f"model.layers.{layer}.input_layernorm.weight"], hidden)
        query = self.linear(layer, "self_attn.q_proj", x).reshape(self.heads, self.head_dim)
        key = self.linear(layer, "self_attn.k_proj", x).reshape(self.key_heads, self.head_dim)
        value = self.linear(layer, "self_attn.v_proj", x).reshape(self.key_heads, self.head_dim)
        query, key = self.norm_heads(layer, "self_attn.q_norm", query), self.norm_heads(layer, "self_attn.k_norm", key)
        return self.rotate(query, position), self.rotate(key, position), value

    def attend(self, query, keys, values):
        """Attention of one query row over lists of keys and values: the output and the probabilities [heads x keys]."""
        output, probabilities = [], []
        for head in range(self.heads):
            key_head = head // (self.heads // self.key_heads)
            logits = np.array([query[head] @ key[key_head] for key in keys], self.dtype) / self.dtype(math.sqrt(self.head_dim))
            weights = np.exp(logits - logits.max())
            weights /= weights.sum()
            probabilities.append(weights)
            output.append(sum(weight * value[key_head] for weight, value in zip(weights, values)))
        return np.concatenate(output), np.array(probabilities)

    def finish_layer(self, layer, hidden, attended):
        hidden = hidden + self.linear(layer, "self_attn.o_proj", attended)
        x = self.norm(self.weights[f"model.layers.{layer}.post_attention_layernorm.weight"], hidden)
        gate = self.linear(layer, "mlp.gate_proj", x)
        return hidden + self.linear(layer, "mlp.down_proj", gate / (1 + np.exp(-gate)) * self.linear(layer, "mlp.up_proj", x))

    def logits(self, hidden):
        return self.head @ self.norm(self.weights["model.norm.weight"], hidden)


def rope_frequencies(config, head_dim):
    theta = config.get("rope_theta", 10000.0)
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / scaling["factor"]
    assert scaling["rope_type"] == "llama3"
    low, high, old = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    scaled = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            scaled.append(frequency)
        elif wavelength > old / low:
            scaled.append(frequency / scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            scaled.append((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)
    return np.array(scaled)


def parse_schedule(text, layers):
    """'dense' | 'paper' | 'LAYER:KEEP,...' | 'top-p@LAYER:P,...' -> (by share?, {layers that have run: fraction})."""
    if text == "dense":
        return False, {}
    if text == "paper":
        points = [3 * k * layers // 10 for k in (1, 2, 3)]
        return False, {point: 0.7 for point in points if point >= 1}
    top_p = text.startswith("top-p@")
    pairs = [pair.split(":") for pair in text.removeprefix("top-p@").split(",")]
    points = {int(layer): float(fraction) for layer, fraction in pairs}
    assert len(points) == len(pairs) and all(1 <= layer < layers for layer in points)
    return top_p, points


@dataclass
class Scoring:
    """'last' | 'mean:N' | 'max:N', then any of '+heads:max', '+pool:W' and '+layers'."""

    combine: str = "mean"
    queries: int = 1
    pool: int = 1
    over_layers: bool = False
    highest_head: bool = False

    @staticmethod
    def parse(text):
        scoring = Scoring()
        first, *extras = text.split("+")
        if first != "last":
            scoring.combine, count = first.split(":")
            scoring.queries = int(count)
            assert scoring.combine in ("mean", "max")
        for extra in extras:
            if extra == "layers":
                scoring.over_layers = True
            elif extra == "heads:max":
                scoring.highest_head = True
            else:
                name, width = extra.split(":")
                assert name == "pool" and int(width) % 2 == 1
                scoring.pool = int(width)
        return scoring


@dataclass
class Step:
    """What one step did. `margin` is the smallest relative distance from which rounding could change a kept set."""

    tokens: list
    active: list = field(default_factory=list)  # [layer] -> positions
    computed: list = field(default_factory=list)  # [layer] -> number of rows
    revived: list = field(default_factory=list)  # [layer] -> number of rows taken from the Aux Cache
    depths: list = field(default_factory=list)  # of the continuations that count: layers that had computed the token before
    logits: np.ndarray = None
    next: int = -1
    margin: float = math.inf


class LazyLLM:
    """One sequence. Every call of step() appends its tokens and starts at layer 0 with all tokens so far.
    A step with one token is a decode step; any other is a prompt."""

    def __init__(self, model, schedule="dense", score="last", protect_first=0, protect_last=0, max_revived=math.inf,
                 decode_revived=None, first_revived=None, continuations=0, revive_from=0, min_tokens=0):
        self.model = model
        self.top_p, self.points = parse_schedule(schedule, model.layers)
        self.scoring = Scoring.parse(score)
        self.protect_first, self.protect_last = protect_first, protect_last
        self.max_revived = max_revived
        self.decode_revived, self.first_revived = decode_revived, first_revived
        self.continuations, self.revive_from = continuations, revive_from
        self.min_tokens = min_tokens
        self.text = []  # all tokens so far
        self.decode_steps = 0  # since the last prompt, the running one too
        self.length = 0
        self.kv_cache = [{} for _ in range(model.layers)]  # position -> (key, value)
        self.aux_cache = [{} for _ in range(model.layers - 1)]  # position -> hidden state that left the layer
        self.computations = {}  # (position, layer) -> how often

    def step(self, tokens):
        model, record = self.model, Step(list(tokens))
        new = range(self.length, self.length + len(tokens))
        self.length += len(tokens)
        self.text += tokens
        self.decode_steps = self.decode_steps + 1 if len(tokens) == 1 else 0
        continuations = self.find_continuations()[: self.continuations]
        record.depths = [sum(position in cache for cache in self.kv_cache) for position in continuations]
        last = self.length - 1
        hidden = {position: model.embed(token) for position, token in zip(new, tokens)}
        active = list(range(self.length))
        scores_of_layers = []
        for layer in range(model.layers):
            rows = [position for position in active if position not in self.kv_cache[layer]]
            revived = [position for position in rows if position not in hidden]
            for position in revived:
                hidden[position] = self.aux_cache[layer - 1].pop(position)
            record.active.append(active)
            record.computed.append(len(rows))
            record.revived.append(len(revived))

            queries = {}
            for position in rows:
                queries[position], key, value = model.query_key_value(layer, hidden[position], position)
                self.kv_cache[layer][position] = (key, value)
                self.computations[position, layer] = self.computations.get((position, layer), 0) + 1

            output, probabilities = {}, {}
            for position in rows if layer + 1 < model.layers else [last]:
                seen = [self.kv_cache[layer][key] for key in active if key <= position]
                attended, probabilities[position] = model.attend(queries[position], [k for k, _ in seen], [v for _, v in seen])
                output[position] = model.finish_layer(layer, hidden[position], attended)
            hidden = output

            if layer + 1 < model.layers:
                scores_of_layers.append(self.scores_of_layer(active, new, probabilities))
            if layer + 1 in self.points and self.length >= self.min_tokens:
                scores = self.scores(active, scores_of_layers)
                if self.decode_steps > 0 and self.decode_revived is not None:
                    kept = self.keep_computed(layer + 1, active, scores, continuations, record)
                else:
                    kept = self.select(active, scores, self.points[layer + 1], self.aux_cache[layer], record)
                for position in [position for position in hidden if position not in kept]:
                    assert not any(position in parked for parked in self.aux_cache)
                    self.aux_cache[layer][position] = hidden.pop(position)
                active = kept
        record.logits = model.logits(hidden[last])
        record.next = int(np.argmax(record.logits))
        return record

    def scores_of_layer(self, active, new, probabilities):
        """Attention that the active tokens get from the last queries in one layer: position -> score."""
        queries = [position for position in active if position in new and position >= self.length - self.scoring.queries]
        per_query = []
        for query in queries:
            heads = probabilities[query]
            over_heads = heads.max(axis=0) if self.scoring.highest_head else heads.mean(axis=0)
            seen = [key for key in active if key <= query]
            of_query = dict(zip(seen, over_heads))
            per_query.append([of_query.get(key, self.model.dtype(0)) for key in active])
        combined = np.mean(per_query, axis=0) if self.scoring.combine == "mean" else np.max(per_query, axis=0)
        return dict(zip(active, combined))

    def scores(self, active, scores_of_layers):
        layers = scores_of_layers if self.scoring.over_layers else scores_of_layers[-1:]
        scores = [sum(layer[position] for layer in layers) / len(layers) for position in active]
        reach = self.scoring.pool // 2
        return {position: max(scores[max(0, i - reach) : i + reach + 1]) for i, position in enumerate(active)}

    def protects(self, position):
        return position < self.protect_first or position >= self.length - max(self.protect_last, 1)

    def select(self, active, scores, fraction, parked, record):
        kept = [p for p in active if self.protects(p)]
        candidates = sorted((p for p in active if p not in kept), key=lambda p: (-scores[p], p))
        if self.top_p and fraction < 1:  # 1 is all tokens, those without a score, too
            total, held = sum(scores.values()), sum(scores[p] for p in kept)
            enough = (fraction - 1e-9) * total
            while candidates and held < enough:
                record.margin = min(record.margin, (enough - held) / total)
                kept.append(candidates.pop(0))
                held += scores[kept[-1]]
            record.margin = min(record.margin, (held - enough) / total)
        else:
            count = max(1, math.ceil(fraction * len(active) - 1e-9))
            taken = max(0, count - len(kept))
            kept, candidates = kept + candidates[:taken], candidates[taken:]
        self.note_cut([scores[p] for p in kept if not self.protects(p)], [scores[p] for p in candidates], record)
        return sorted(self.limit_revived(kept, scores, parked, record))

    def limit_revived(self, kept, scores, parked, record):
        """Of the kept tokens that are parked here the lowest-scored ones beyond the limit stay parked. Nothing replaces them."""
        sure = [p for p in kept if p in parked and self.protects(p)]
        others = sorted((p for p in kept if p in parked and not self.protects(p)), key=lambda p: (-scores[p], p))
        room = max(self.max_revived, len(sure)) - len(sure)
        if len(others) <= room:
            return kept
        revived, left = others[:room], others[room:]
        self.note_cut([scores[p] for p in revived], [scores[p] for p in left], record)
        return [p for p in kept if p not in left]

    def keep_computed(self, layers_run, active, scores, continuations, record):
        """A decode step keeps every active token that is not parked here. Of those that are, it revives the continuations
        and, up to a number, the highest-scored others. Protected tokens are never parked."""
        parked = [p for p in active if p in self.aux_cache[layers_run - 1]]
        listed = [p for p in parked if p in continuations]
        others = sorted((p for p in parked if p not in listed), key=lambda p: (-scores[p], p))
        if self.decode_steps == 1 and self.first_revived is not None:
            count = self.first_revived
        elif layers_run >= self.revive_from:
            count = self.decode_revived
        else:
            count = 0
        room = max(0, count - len(listed))
        revived, left = others[:room], others[room:]
        self.note_cut([scores[p] for p in revived], [scores[p] for p in left], record)
        return [p for p in active if p not in left]

    def find_continuations(self):
        """Positions of the tokens that followed an earlier place with the same last tokens, at most 32: the longest match
        first, of equal ones the latest. A longer match counts as one of 8 tokens."""
        found = []
        for match in range(8, 0, -1):
            for position in range(self.length - 1, match - 1, -1):
                if self.text[position - match : position] == self.text[-match:] and position not in found:
                    found.append(position)
        return found[:32]

    def note_cut(self, chosen, dropped, record):
        for score in dropped:
            # Equal scores come from neighbour pooling, which copies one value: they stay equal in any precision.
            record.margin = min([record.margin] + [abs(value - score) / value for value in chosen if value != score])
