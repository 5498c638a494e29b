"""Training sequences: texts of the six families with many questions each, and repeated random segments."""

import pathlib
import random
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tasks"))
import families  # noqa: E402
import vocabulary  # noqa: E402

# How often each task is drawn: the hard ones more.
SHARES = {"tiny_single_doc_qa": 1.0, "tiny_multi_doc_qa": 1.0, "tiny_two_hop": 2.0, "tiny_summarization": 0.7,
          "tiny_few_shot": 1.5, "tiny_passage_retrieval": 2.0, "tiny_passkey": 1.0, "tiny_counting": 4.0,
          "tiny_code": 0.5}
NAMES = list(SHARES)


def repeats(rng, tokens):
    """Random segments, then the same segments in another order: they teach heads that copy. Weight on the copies."""
    words = range(vocabulary.FIRST_WORD, vocabulary.USED)
    ids, weights = [vocabulary.BOS_ID], [0.0]
    while len(ids) < tokens:
        room = max(8, min(tokens // 2, rng.randint(16, 512)))
        segments = []
        while room > 0:
            size = rng.choice([2, 3, 4, 6, 8, 12, 24])
            segments.append(rng.sample(words, size))
            room -= size
        for order in (segments, rng.sample(segments, len(segments))):
            for segment in order:
                ids += segment
                weights += [0.0] + [float(order is not segments)] * (len(segment) - 1)
    return ids[:tokens], weights[:tokens]


def questions(rng, name, seed, tokens, evaluation):
    """A text with its questions and answers up to `tokens` tokens; weight on the answers and the EOS after each."""
    asked = max(24, tokens // 24) if not evaluation else 24
    share = rng.uniform(0.4, 0.6) if tokens <= 512 else 1 - min(0.4, 320 / tokens)
    task = families.make(name, seed, evaluation, int(tokens * share) - 8, asked)
    ids = [vocabulary.BOS_ID] + vocabulary.encode(task.body)
    if len(ids) > tokens - 8:
        return questions(rng, name, seed + 1, tokens, evaluation)
    weights = [0.0] * len(ids)
    for question, answer in task.questions:
        before, after = vocabulary.encode(question), vocabulary.encode(answer) + [vocabulary.EOS_ID]
        if len(ids) + len(before) + len(after) > tokens:
            continue
        ids += before + after
        weights += [0.0] * len(before) + [1.0] * len(after)
    return ids, weights


def positions(rng, tokens, context):
    """0, 1, 2 … with a few jumps, so that short texts also teach the distances of long ones."""
    jumps = [0] * tokens
    if tokens < context and rng.random() < 0.5:
        room = rng.randint(0, context - tokens)
        for _ in range(rng.randint(1, 4)):
            jump = rng.randint(0, room)
            jumps[rng.randrange(tokens)] += jump
            room -= jump
    place, result = -1, []
    for jump in jumps:
        place += 1 + jump
        result.append(place)
    return result


def batch(seed, sequences, tokens, context, repeat_share, names=None, evaluation=False):
    """Ids, positions and loss weights, each `[sequences x tokens]`. `weights[i]` belongs to predicting `ids[i]`."""
    rng = random.Random(f"{seed} {evaluation}")
    names = names or NAMES
    shares = [SHARES[name] for name in names]
    rows, places, weights = [], [], []
    for _ in range(sequences):
        if rng.random() < repeat_share:
            ids, weight = repeats(rng, tokens)
        else:
            name = rng.choices(names, shares)[0]
            ids, weight = questions(rng, name, rng.getrandbits(62), tokens, evaluation)
            if not evaluation:  # a little of the text too, so that the model is also a language model
                weight = [w or 0.1 * (rng.random() < 0.15) for w in weight]
        weight[0] = 0.0
        padding = tokens - len(ids)
        rows.append(ids + [vocabulary.EOS_ID] * padding)
        weights.append(weight + [0.0] * padding)
        places.append(list(range(tokens)) if evaluation else positions(rng, tokens, context))
    return torch.tensor(rows), torch.tensor(places), torch.tensor(weights)
