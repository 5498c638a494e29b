"""Writes tests/reference/fixtures/lazyllm/: random models and what the naive LazyLLM does with them. Formats: README.md."""

import collections
import itertools
import json
import pathlib
import shutil

import numpy as np
import torch
from naive_lazyllm import LazyLLM, Model
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

FOLDER = pathlib.Path(__file__).parent / "fixtures" / "lazyllm"
VOCABULARY = 97
SCORE_MARGIN = 2e-4  # f32 differs from f64 by about 1e-6: no kept set may hang on less than this, relative
LOGIT_MARGIN = 1e-3  # the same for the greedy token, of the largest logit

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# name: seed, layers, width, heads, key heads, feed-forward width, extra config
MODELS = {
    "mha_4_layers": (1, 4, 32, 4, 4, 64, {}),
    "gqa2_6_layers": (2, 6, 32, 4, 2, 64, {}),
    "gqa4_8_layers": (3, 8, 32, 4, 1, 64, {}),
    "gqa4_3_layers": (4, 3, 64, 8, 2, 64, {}),
    "qwen2_5_layers": (5, 5, 48, 6, 3, 64, {"model_type": "qwen2", "rope_theta": 1000000.0, "tie_word_embeddings": True}),
    "llama3_4_layers": (6, 4, 32, 2, 1, 64, {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "qwen3_4_layers": (7, 4, 32, 4, 2, 64, {"model_type": "qwen3", "head_dim": 16, "rope_theta": 1000000.0, "tie_word_embeddings": True}),
}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# A turn is (chunk lengths, tokens to generate). Of the tokens generated in a turn the last is fed with the next turn.
PLAIN = [([40], 24)]
# Decode steps with tokens of the text, which copies earlier parts of itself; then greedy ones, and a second prompt.
COPYING = [([76] + [1] * 12, 4), ([10] + [1] * 8, 2)]
CASES = [
    # name, model, schedule, score, protect first, protect last, turns, and where there are any other arguments of LazyLLM
    ("dense", "mha_4_layers", "dense", "last", 0, 0, PLAIN),
    ("keep_everything", "gqa2_6_layers", "1:1.0,3:1.0,5:1.0", "last", 0, 0, PLAIN),
    ("paper_3", "gqa4_3_layers", "paper", "last", 0, 0, [([64], 26)]),
    ("paper_4", "mha_4_layers", "paper", "last", 0, 0, [([32], 24)]),
    ("paper_6", "gqa2_6_layers", "paper", "last", 0, 0, [([80], 24)]),
    ("paper_8", "gqa4_8_layers", "paper", "last", 0, 0, [([50], 24)]),
    ("paper_qwen2", "qwen2_5_layers", "paper", "last", 0, 0, [([61], 24)]),
    ("paper_qwen3", "qwen3_4_layers", "paper", "last", 0, 0, [([61], 24)]),
    ("paper_llama3", "llama3_4_layers", "paper", "last", 0, 0, [([72], 26)]),
    ("cut_every_layer", "gqa4_8_layers", "1:0.9,2:0.8,3:0.7,4:0.6,5:0.5,6:0.4,7:0.3", "last", 0, 0, [([33], 24)]),
    # In f64 0.56 * 25, * 50 and * 75 come out above 14, 28 and 42.
    ("inexact_product", "mha_4_layers", "1:0.56,2:0.5", "last", 0, 0, [([25, 25], 26)]),
    ("one_early_cut", "gqa2_6_layers", "1:0.3", "last", 0, 0, [([47], 24)]),
    ("one_late_cut", "mha_4_layers", "3:0.25", "last", 0, 0, [([47], 24)]),
    ("only_the_last_token", "mha_4_layers", "2:0.001", "last", 0, 0, [([19], 24)]),
    ("short_prompt", "llama3_4_layers", "1:0.5,3:0.5", "last", 0, 0, [([12], 26)]),
    ("one_token_prompt", "gqa4_3_layers", "1:0.5,2:0.5", "last", 0, 0, [([1], 30)]),
    ("protect_first", "gqa4_8_layers", "2:0.5,5:0.5", "last", 4, 0, [([44], 24)]),
    ("protect_last", "qwen2_5_layers", "2:0.4,4:0.4", "last", 0, 6, [([44], 24)]),
    ("protect_both", "gqa2_6_layers", "2:0.5,4:0.5", "last", 3, 5, [([48], 24)]),
    ("protect_more_than_kept", "mha_4_layers", "1:0.5,2:0.1", "last", 5, 4, [([30], 24)]),
    ("mean_4", "gqa2_6_layers", "2:0.6,4:0.5", "mean:4", 0, 0, PLAIN),
    ("max_4", "mha_4_layers", "1:0.5,3:0.5", "max:4", 0, 0, PLAIN),
    ("mean_more_than_prompt", "gqa4_3_layers", "1:0.5,2:0.6", "mean:100", 0, 0, [([24], 26)]),
    ("highest_head", "gqa2_6_layers", "2:0.5,4:0.6", "last+heads:max", 0, 0, PLAIN),
    ("highest_head_mean_pool", "qwen2_5_layers", "1:0.7,3:0.5", "mean:5+heads:max+pool:3", 1, 2, PLAIN),
    ("pool_5", "gqa2_6_layers", "2:0.5,4:0.6", "last+pool:5", 0, 0, PLAIN),
    ("layers", "gqa4_8_layers", "3:0.5,6:0.5", "last+layers", 0, 0, PLAIN),
    ("mean_pool_layers", "qwen2_5_layers", "1:0.8,2:0.6,4:0.5", "mean:6+pool:3+layers", 0, 0, PLAIN),
    ("max_pool_protected", "llama3_4_layers", "1:0.6,2:0.6,3:0.6", "max:3+pool:7", 2, 3, PLAIN),
    ("mass", "mha_4_layers", "top-p@1:0.8,3:0.7", "last", 0, 0, PLAIN),
    ("mass_protected", "gqa4_8_layers", "top-p@2:0.7,5:0.8", "last", 4, 2, PLAIN),
    ("mass_max_pool_layers", "gqa2_6_layers", "top-p@2:0.8,4:0.6", "max:3+pool:3+layers", 0, 0, PLAIN),
    ("reviving_1", "mha_4_layers", "1:0.5,2:0.5,3:0.5", "last", 0, 0, [([80], 40)]),
    ("reviving_2", "gqa2_6_layers", "1:0.6,2:0.6,3:0.6,4:0.6", "last", 2, 0, [([80], 40)]),
    ("reviving_3", "qwen2_5_layers", "1:0.5,2:0.5,3:0.5,4:0.5", "mean:3", 0, 2, [([80], 40)]),
    ("reviving_4", "llama3_4_layers", "top-p@1:0.6,2:0.6,3:0.6", "last", 0, 0, [([80], 40)]),
    ("chunks", "gqa2_6_layers", "2:0.5,4:0.5", "last", 0, 0, [([20, 7, 13], 24)]),
    ("chunks_mean", "mha_4_layers", "1:0.6,2:0.5", "mean:5", 1, 0, [([16, 3, 17], 24)]),
    ("second_turn", "gqa4_8_layers", "2:0.6,4:0.5,6:0.5", "last", 0, 0, [([30], 12), ([11], 16)]),
    ("second_turn_mean", "llama3_4_layers", "1:0.5,2:0.6", "mean:4+pool:3", 2, 0, [([26], 12), ([9, 4], 16)]),
    ("three_turns_mass", "qwen2_5_layers", "top-p@1:0.8,3:0.6", "mean:2", 2, 2, [([25], 10), ([8], 10), ([1], 10)]),
    ("max_revived_2", "gqa2_6_layers", "1:0.6,2:0.6,3:0.6,4:0.6", "last", 0, 0, [([80], 40)], {"max_revived": 2}),
    ("max_revived_protected", "qwen2_5_layers", "1:0.5,2:0.5,3:0.5,4:0.5", "mean:3+pool:3", 6, 2, [([70], 12), ([20], 24)], {"max_revived": 1}),
    ("computed", "gqa2_6_layers", "1:0.6,2:0.6,4:0.6", "last", 0, 0, [([60], 16)], {"decode_revived": 1}),
    ("computed_limited", "qwen2_5_layers", "top-p@1:0.7,3:0.7", "max:3", 0, 4, [([48], 8), ([16], 8)], {"decode_revived": 2, "max_revived": 1}),
    ("computed_first", "mha_4_layers", "1:0.6,2:0.6,3:0.6", "mean:4", 2, 2, [([48], 8), ([16], 8)], {"decode_revived": 1, "first_revived": 4}),
    ("computed_deepest", "gqa4_8_layers", "2:0.7,4:0.8,6:0.5", "last+layers", 0, 0, [([56], 14)], {"decode_revived": 1, "revive_from": 6}),
    ("continuations_1", "gqa2_6_layers", "1:0.5,2:0.5,4:0.5", "last", 0, 0, COPYING, {"decode_revived": 0, "continuations": 1}),
    ("continuations_40", "llama3_4_layers", "1:0.3,3:0.3", "last", 0, 0, [([80] + [1] * 4, 8)], {"decode_revived": 0, "continuations": 40}),
    # A prompt that ends before min_tokens, whose answer reaches it; and a chat whose second turn does.
    ("min_tokens", "gqa2_6_layers", "2:0.5,4:0.5", "last", 0, 0, [([36], 24)], {"min_tokens": 44}),
    ("min_tokens_second_turn", "mha_4_layers", "1:0.6,2:0.5", "mean:4", 2, 2, [([24], 8), ([10, 20], 16)], {"min_tokens": 40}),
    # As the presets of examples/models/presets, with fewer tokens and without min_tokens.
    ("preset_1.5x", "gqa4_8_layers", "2:0.8,3:0.8,4:0.9,5:0.8", "mean:32+heads:max+pool:15", 4, 32, COPYING,
     {"decode_revived": 2, "first_revived": 3, "continuations": 2, "revive_from": 5}),
    ("preset_2.34x", "gqa2_6_layers", "1:0.7,2:0.7,3:0.8,4:0.7", "mean:128+heads:max+pool:15", 4, 8, [([56], 8), ([16], 6)],
     {"decode_revived": 1, "first_revived": 2, "revive_from": 4}),
    ("preset_3x", "qwen2_5_layers", "1:0.4,2:0.7,3:0.6,4:0.6", "max:32+heads:max+pool:15", 4, 8, COPYING,
     {"decode_revived": 1, "first_revived": 4, "continuations": 2}),
]
# Where continuations count, of how many different tokens the text is.
TOKENS_OF_TEXT = {"continuations_1": 2, "continuations_40": 2, "preset_1.5x": 8, "preset_3x": 8}
# Decode steps that must revive something. Some cases have nothing to revive, and mild schedules run out of parked tokens.
REVIVING_STEPS = {"dense": 0, "keep_everything": 0, "only_the_last_token": 0, "one_token_prompt": 0, "continuations_40": 2,
                  "min_tokens": 0}
REVIVING_STEPS |= {f"reviving_{i}": 20 for i in (1, 2, 3, 4)}
REVIVING_STEPS_OF_OTHERS = 5


def write_model(name):
    seed, layers, width, heads, key_heads, ffn, extra = MODELS[name]
    random = np.random.default_rng(seed)
    head_dim = extra.get("head_dim", width // heads)
    kind = extra.get("model_type", "llama")

    def matrix(rows, columns, gain):
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def near_one(size):
        return random.uniform(0.6, 1.4, size).astype(np.float32)

    tied = extra.get("tie_word_embeddings", False)
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, width, 3.0),
        "model.norm.weight": near_one(width),
    }
    if not tied:
        tensors["lm_head.weight"] = matrix(VOCABULARY, width, 3.0)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = near_one(width)
        tensors[prefix + "post_attention_layernorm.weight"] = near_one(width)
        # Queries and keys are scaled up: a few keys then hold most of the attention, and which ones differs by query.
        tensors[prefix + "self_attn.q_proj.weight"] = matrix(heads * head_dim, width, 1.6)
        tensors[prefix + "self_attn.k_proj.weight"] = matrix(key_heads * head_dim, width, 1.6)
        tensors[prefix + "self_attn.v_proj.weight"] = matrix(key_heads * head_dim, width, 1.0)
        tensors[prefix + "self_attn.o_proj.weight"] = matrix(width, heads * head_dim, 1.0)
        tensors[prefix + "mlp.gate_proj.weight"] = matrix(ffn, width, 1.5)
        tensors[prefix + "mlp.up_proj.weight"] = matrix(ffn, width, 1.5)
        tensors[prefix + "mlp.down_proj.weight"] = matrix(width, ffn, 1.0)
        if kind == "qwen3":
            # Larger than 1, as in trained models: after the norms this alone makes attention sharp.
            for part in ("q", "k"):
                tensors[f"{prefix}self_attn.{part}_norm.weight"] = near_one(head_dim) * 1.6
        if kind == "qwen2":
            for part, size in (("q", heads), ("k", key_heads), ("v", key_heads)):
                bias = random.standard_normal(size * head_dim) * 0.5
                tensors[f"{prefix}self_attn.{part}_proj.bias"] = bias.astype(np.float32)
    config = {
        "architectures": [ARCHITECTURES[kind]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": ffn,
        "max_position_embeddings": 128,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": key_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
    } | extra
    folder = FOLDER / "models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def check_against_transformers(folder, model):
    """Keep 1 must be the dense model: logits after every prompt length, and greedy text, as Hugging Face computes them."""
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = np.random.default_rng(7).integers(3, VOCABULARY, 70).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].double().numpy()
    lazy = LazyLLM(model, "1:1.0,2:1.0")
    worst = 0.0
    for start, end in ((0, 40), (40, 41), (41, 60), (60, 70)):
        logits = lazy.step(tokens[start:end]).logits
        worst = max(worst, np.abs(logits - expected[end - 1]).max() / np.abs(expected[end - 1]).max())
    assert worst < 1e-4, worst

    with torch.no_grad():
        text = reference.generate(torch.tensor([tokens]), max_new_tokens=20, min_new_tokens=20, do_sample=False, eos_token_id=None)
    lazy = LazyLLM(model, "dense")
    step, greedy = lazy.step(tokens), []
    for _ in range(20):
        greedy.append(step.next)
        step = lazy.step([step.next])
    assert greedy == text[0, len(tokens) :].tolist()
    return worst


def arguments(case):
    """The arguments of a case that not all cases have."""
    return case[7] if len(case) > 7 else {}


def draw_text(random, case):
    """[turn][chunk] -> tokens. Where continuations count, every second part of the text copies an earlier one."""
    turns = case[6]
    if case[0] not in TOKENS_OF_TEXT:
        return [[random.integers(3, VOCABULARY, n).tolist() for n in lengths] for lengths, _ in turns]
    text, size = [], sum(sum(lengths) for lengths, _ in turns)
    while len(text) < size:
        new = random.integers(3, 3 + TOKENS_OF_TEXT[case[0]], random.integers(1, 5)).tolist()
        begin = random.integers(len(text) + 1)
        text += new + text[begin : begin + random.integers(4, 13)]
    rest = iter(text)
    return [[list(itertools.islice(rest, n)) for n in lengths] for lengths, _ in turns]


def run(model, case, chunks_of_turns, options):
    """All steps of a case: each turn feeds its chunks, the first with the token that is left of the turn before.
    Stops early where a step hangs on rounding."""
    _, _, schedule, score, protect_first, protect_last, turns, *_ = case
    lazy = LazyLLM(model, schedule, score, protect_first, protect_last, **options)
    steps, kinds, left = [], [], []
    for chunks, (_, generate) in zip(chunks_of_turns, turns):
        for i in range(len(chunks) + generate - 1):
            steps.append(lazy.step(left + chunks[i] if i < len(chunks) else [steps[-1].next]))
            kinds.append("prompt" if i < len(chunks) else "decode")
            left = []
            if hangs_on_rounding(steps[-1]):
                return lazy, steps, kinds
        left = [steps[-1].next]
    assert max(lazy.computations.values()) == 1
    return lazy, steps, kinds


def hangs_on_rounding(step):
    second, first = np.sort(step.logits)[-2:]
    return step.margin < SCORE_MARGIN or (first - second) / np.abs(step.logits).max() < LOGIT_MARGIN


def same_sets(steps, others):
    return all(step.active == other.active for step, other in zip(steps, others))


def what_is_wrong(case, model, chunks_of_turns, lazy, steps):
    if hangs_on_rounding(steps[-1]):
        return "hangs on rounding"
    if len({step.next for step in steps}) < min(8, len(steps) / 3):
        return "monotonous text"
    wanted = REVIVING_STEPS.get(case[0], REVIVING_STEPS_OF_OTHERS)
    if sum(len(step.tokens) == 1 and sum(step.revived) > 0 for step in steps) < wanted:
        return "too few revivals"
    prompt = len(steps[0].tokens)
    surviving = {tuple(tuple(p for p in active if p < prompt) for active in step.active) for step in steps}
    if wanted >= 5 and len(surviving) < 10:
        return "the kept sets do not vary"
    # A continuation is the new token, or parked at one of the cuts, or computed by all layers. All of them must be met.
    depths = {depth for step in steps if len(step.tokens) == 1 for depth in step.depths}
    if case[0].startswith("continuations_") and depths != {0, *lazy.points, model.layers}:
        return "no continuation of some kind"
    options = arguments(case)
    for name in options:
        _, others, _ = run(model, case, chunks_of_turns, {key: value for key, value in options.items() if key != name})
        if same_sets(steps, others):
            return f"{name} changes nothing"
    return None


def write_case(case, model, narrow_model):
    name, model_name, schedule, score, protect_first, protect_last, turns, *_ = case
    why = []
    for seed in range(200):
        random = np.random.default_rng([seed, *name.encode()])
        chunks_of_turns = draw_text(random, case)
        lazy, steps, kinds = run(model, case, chunks_of_turns, arguments(case))
        why.append(what_is_wrong(case, model, chunks_of_turns, lazy, steps))
        if why[-1] is None:
            break
    else:
        raise SystemExit(f"{name}: no prompt will do: {collections.Counter(why)}")

    _, narrow_steps, _ = run(narrow_model, case, chunks_of_turns, arguments(case))
    assert [step.active for step in narrow_steps] == [step.active for step in steps]
    assert [step.next for step in narrow_steps] == [step.next for step in steps]
    error = max(np.abs(a.logits - b.logits).max() / np.abs(b.logits).max() for a, b in zip(narrow_steps, steps))
    assert error < 2e-5, error

    logits = np.array([step.logits for step in steps], "<f4")
    (FOLDER / "cases" / f"{name}.f32").write_bytes(logits.tobytes())
    head = {
        "name": name,
        "model": f"models/{model_name}",
        "schedule": schedule,
        "score": score,
        "protect_first": protect_first,
        "protect_last": protect_last,
        **arguments(case),
        "layers": model.layers,
        "vocabulary": VOCABULARY,
        "logits": f"cases/{name}.f32",
        "prompt": sum(chunks_of_turns[0], []),
        "turns": [{"chunks": c, "generate": g} for c, (_, g) in zip(chunks_of_turns, turns)],
        "generated": generated(steps, kinds),
        "computed_total": len(lazy.computations),
        "dense_total": lazy.length * model.layers,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines.append(' "steps": [\n  ' + ",\n  ".join(compact(step, kind) for step, kind in zip(steps, kinds)) + "\n ]")
    (FOLDER / "cases" / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    revivals = sum(sum(step.revived) for step in steps)
    in_steps = sum(sum(step.revived) > 0 for step in steps)
    last = len(steps[-1].active[-1])
    print(
        f"{name:24} seed {seed:3}  steps {len(steps)}  revived {revivals:4} in {in_steps:2} steps"
        f"  computed {len(lazy.computations)}/{lazy.length * model.layers}  last layer {last}/{lazy.length}  f32 error {error:.1e}",
        flush=True,
    )


def generated(steps, kinds):
    """[turn] -> tokens. A prompt step that another prompt step follows generates nothing."""
    turns, following = [], kinds[1:] + ["prompt"]
    for index, (step, kind) in enumerate(zip(steps, kinds)):
        if kind == "prompt" and (index == 0 or kinds[index - 1] == "decode"):
            turns.append([])
        if not (kind == "prompt" and following[index] == "prompt" and index + 1 < len(steps)):
            turns[-1].append(step.next)
    return turns


def compact(step, kind):
    active = [None] + [None if after == before else after for before, after in zip(step.active, step.active[1:])]
    fields = {"kind": kind, "tokens": step.tokens, "computed": step.computed, "revived": step.revived, "next": step.next, "active": active}
    return json.dumps(fields, separators=(",", ":"))


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "cases").mkdir(parents=True)
    models = {}
    for name in MODELS:
        folder = write_model(name)
        models[name] = Model(folder), Model(folder, np.float32)
        print(f"{name:24} against transformers: {check_against_transformers(folder, models[name][0]):.1e}")
    for case in CASES:
        write_case(case, *models[case[1]])
    (FOLDER / "cases.json").write_text(json.dumps([case[0] for case in CASES], indent=1) + "\n")
    print("bytes:", sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()))


if __name__ == "__main__":
    main()
