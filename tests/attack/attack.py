#!/usr/bin/env python3
"""attack.py BIN_FOLDER SOURCE_FOLDER [AREA…]: feeds the programs hundreds of hostile inputs, each in a folder of its own.

Whatever the input is, a program must end by itself with 0, 1 or 2 and without a signal; where it refuses something, it
must name the place and the reason in a line without control characters; a file that it was to write must be as it was
or complete, and nothing else may be left. Needs Python's standard library only.
"""

import concurrent.futures
import contextlib
import json
import os
import pty
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 60  # more means that a program hangs
# Of all areas together: fewer attacks, or more seconds of processor time, are a failure of the attack itself.
LEAST_ATTACKS, MOST_SECONDS = 800, 300
MEMORY = 4 << 20  # KiB of address space
# What a message must not have: words of a library that say neither place nor reason.
NO_REASON = ("std::", "bad_alloc", "basic_", "json.exception", "cannot use at()", "type must be", "max_size", "stoi", "U_", "filesystem error")

BIN, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
SMALL = SOURCE / "tests/reference/fixtures/lazyllm/models/mha_4_layers"  # four layers, no tokenizer
TINY = SOURCE / "examples/models/tiny"
SEEDS = SOURCE / "tests/fuzz/seeds"
IDS = " ".join(str(i * 37 % 90 + 3) for i in range(20))
LINE = {"_id": "a", "dataset": "qasper", "prompt": "list of colours: " + "red green blue " * 40, "answers": ["red"], "max_tokens": 2}
# For calibration, which holds half of them out.
TWO = "".join(json.dumps({**LINE, "_id": name}) + "\n" for name in "ab")


class Case:
    """One run of a program. `files` are made in its folder first: name to bytes, text or JSON, or a function."""

    def __init__(self, area, name, program, arguments, files=None, place=None, status=(0, 1, 2), streams="", check=None):
        self.area, self.name, self.program = area, name, program
        self.arguments = [str(argument) for argument in arguments]
        self.files, self.place, self.status = files or {}, place, status
        self.streams, self.check = streams, check


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def command(case):
    script = f'ulimit -v {MEMORY}; set -o pipefail; exec "$@" {case.streams}'
    return ["/bin/bash", "-c", script, "bash", str(BIN / case.program), *case.arguments]


def problems_of(case, folder):
    """What is wrong with how the program took the case."""
    write(folder, {"ids": IDS, "prompt.txt": "red green blue", "data.jsonl": json.dumps(LINE) + "\n", "two.jsonl": TWO, "old.json": "old"})
    write(folder, case.files)
    before = {path.name for path in folder.iterdir()}
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    try:
        run = subprocess.run(command(case), cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                             timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [f"still runs after {SECONDS} s"]
    err = run.stderr.decode("utf-8", "replace")
    problems = []
    if run.returncode not in (0, 1, 2):
        problems.append(f"ends with {run.returncode}")
    elif run.returncode not in case.status:
        problems.append(f"ends with {run.returncode}, not one of {case.status}")
    for name, stream in (("message", err), ("standard output", run.stdout.decode("utf-8", "replace"))):
        if any(ord(c) < 32 and c != "\n" or ord(c) == 127 or 128 <= ord(c) < 160 for c in stream):
            problems.append(f"control characters in the {name}")
    if run.returncode in (1, 2) and "2>" not in case.streams:
        lines = err.splitlines()
        if not lines or len(lines) > 3 or len(err) > 1500:
            problems.append(f"a message of {len(lines)} lines and {len(err)} bytes")
        problems += [f"'{word}' in the message" for word in NO_REASON if word in err]
        if case.place is not None and case.place not in err:
            problems.append(f"the message does not name {case.place}")
    out = folder / "old.json"
    text = out.read_bytes() if out.is_file() else b""
    if text != b"old":
        try:
            json.loads(text)
            if run.returncode not in (0, 1):
                problems.append("a refused command line changed old.json")
        except ValueError:
            problems.append("old.json is neither the old nor a whole file")
    if run.returncode == 0 and "old.json" in case.arguments and text == b"old":
        problems.append("old.json was not written")
    left = {path.name for path in folder.iterdir()} - before - {"old.json.log.jsonl", "old.json.partial.jsonl", "log", "new"}
    if left:
        problems.append(f"leaves {sorted(left)}")
    if case.check:
        problems += case.check(folder, run)
    return [f"{problem}: {err.strip()[:300]!r}" for problem in problems]


# Command lines

def generate(*arguments):
    return ["--model", SMALL, "--token-ids", "ids", "--threads", "1", "--max-tokens", "2", "--json", "old.json", *arguments]


def evaluate(*arguments):
    return ["--model", TINY, "--data", "data.jsonl", "--threads", "1", "--speed-items", "0", "--method", "dense",
            "--json", "old.json", *arguments]


def calibrate(*arguments, search=("--runs", "1", "--speedups", "1.2")):
    return ["--model", TINY, "--data", "two.jsonl", "--threads", "1", "--tokens", "1", *search, "--out", "old.json", *arguments]


def bench(*arguments):
    return ["--shape", "none", "--prompt", "4", "--repeats", "1", *arguments]  # there is no such shape: it ends soon


def attention(*arguments):
    return ["--keys", "8", "--group", "1", "--heads", "3", "--threads", "1", "--repeats", "1", "--json", "old.json", *arguments]


def int8(*arguments):
    return ["--model", TINY, "--data", "data.jsonl", "--threads", "1", "--tokens", "2", "--json", "old.json", *arguments]


def serving(*arguments):
    return ["--model", TINY, "--data", "data.jsonl", "--threads", "1", "--conversations", "1", "--answer-tokens", "2", "--repeats", "1",
            "--schedule", "dense", "--json", "old.json", *arguments]


PROGRAMS = {"lazyllm-generate": generate, "lazyllm-evaluate": evaluate, "lazyllm-calibrate": calibrate, "ttft_bench": bench,
            "attention_bench": attention, "int8_loss": int8, "serving_bench": serving}
NUMBERS = {
    "lazyllm-generate": ("--max-tokens", "--temperature", "--top-p", "--seed", "--repeats", "--threads", "--context",
                         "--protect-first", "--protect-last", "--max-revived", "--decode-revived", "--first-revived",
                         "--continuations", "--revive-from", "--min-tokens"),
    "lazyllm-evaluate": ("--max-tokens", "--limit", "--context", "--longest-answer", "--keep", "--seed", "--seeds", "--speed-items", "--repeats",
                         "--threads"),
    "lazyllm-calibrate": ("--prompts-limit", "--prompt-tokens", "--tokens", "--runs", "--minutes", "--speedups", "--decode-rows", "--threads"),
    "ttft_bench": ("--prompt", "--batch", "--threads", "--generate", "--repeats", "--overhead-turns", "--seconds"),
    "attention_bench": ("--keys", "--rows", "--head-dim", "--group", "--heads", "--kept", "--threads", "--repeats"),
    "int8_loss": ("--prompts-limit", "--prompt-tokens", "--tokens", "--threads"),
    "serving_bench": ("--conversations", "--prompt-tokens", "--follow-up-tokens", "--answer-tokens", "--slots", "--load", "--threads"),
}
# Numbers of tokens, which no model has 2^62 of: with another one a sum would not fit.
TOKENS = {
    "lazyllm-generate": ("--max-tokens", "--context", "--protect-first", "--protect-last", "--max-revived", "--decode-revived",
                         "--first-revived", "--revive-from", "--min-tokens"),
    "lazyllm-evaluate": ("--max-tokens", "--longest-answer", "--protect-first"),
    "lazyllm-calibrate": ("--protect-first", "--protect-last", "--max-revived", "--decode-revived"),
    "int8_loss": ("--prompt-tokens", "--tokens"),
    "serving_bench": ("--prompt-tokens", "--follow-up-tokens", "--answer-tokens"),
}
PATHS = {
    "lazyllm-generate": ("--model", "--tokenizer", "--prompt-file", "--json", "--trace", "--logits", "--report"),
    "lazyllm-evaluate": ("--model", "--tokenizer", "--data", "--prompts", "--lengths", "--compressor", "--json", "--resume"),
    "lazyllm-calibrate": ("--model", "--tokenizer", "--data", "--out"),
    "ttft_bench": ("--json",),
    "attention_bench": ("--json",),
    "int8_loss": ("--model", "--tokenizer", "--data", "--json"),
    "serving_bench": ("--model", "--tokenizer", "--data", "--json"),
}


def options():
    no_numbers = ("", " ", "x", "0x10", "1e400", "nan", "inf", "1,5", "1 2", "--", "\x1b[2J",
                  "\uff11", "-" * 3000)
    for program, names in NUMBERS.items():
        for name in names:
            for value in no_numbers:
                yield Case("options", f"{program} {name}={value[:20]!r}", program, PROGRAMS[program](f"{name}={value}"),
                           place=name, status=(2,))
            for value in ("-1", "0", "-9223372036854775808", "99999999999999999999999"):
                if (name, value) not in (("--seconds", "0"), ("--threads", "0")):
                    yield Case("options", f"{program} {name}={value}", program, PROGRAMS[program](f"{name}={value}"),
                               status=(1, 2) if value[0] == "-" else (0, 1, 2))
    for program, names in TOKENS.items():
        for name in names:
            for value in ("4611686018427387904", "9223372036854775807"):
                yield Case("options", f"{program} {name}={value}", program, PROGRAMS[program](f"{name}={value}"), place=name,
                           status=(2,))
    for zeros in (308, 3000):
        yield Case("options", f"ttft_bench --prompt of {zeros + 1} digits", "ttft_bench", bench(f"--prompt=1{'0' * zeros}"),
                   place="--prompt", status=(2,),
                   check=lambda folder, run: [] if len(run.stderr) < 300 else [f"a message of {len(run.stderr)} bytes"])
    for program, names in PATHS.items():
        for name in names:
            yield Case("options", f"{program} {name}=''", program, PROGRAMS[program](name, ""), place=name, status=(2,))
            yield Case("options", f"{program} {name} without a value", program, PROGRAMS[program](name), place=name, status=(2,))
    for program, arguments in PROGRAMS.items():
        if program not in ("ttft_bench", "attention_bench"):  # which need none
            yield Case("options", f"{program} without options", program, [], place="is required", status=(2,))
        for wrong in (["--unknown"], ["stray"], ["--dtype", "int3"], ["--dtype", ""], ["-z"], ["--schedule"], ["\x1b[2J"]):
            yield Case("options", f"{program} {wrong}", program, arguments(*wrong), status=(2,))
        yield Case("options", f"{program} --help", program, ["--help"], status=(0,))


def schedules():
    texts = ["", " ", "x", "4", "4:", ":0.5", "4:0.5,", ",4:0.5", "4:0.5;5:0.5", "0:0.5", "-1:0.5", "99:0.5", "2:0", "2:-1",
             "2:1.0000001", "2:nan", "2:inf", "2:1e-400", "3:0.5,2:0.5", "2:0.5,2:0.5", "2:0.5x", "2 :0.5", "0x2:0.5",
             "top-p@", "top-p@dense", "top-p@paper", "top-p", "top-p@x", "top-p@2:0", "top-p@2:1.0000001", "top-p@2:nan",
             "top-p@99:0.5", "top-p@top-p@2:0.5", "top-p@static@2:0.5", "@", "#", "@#", "@none", "@none#x", "static@",
             "static@paper", "auto", "auto:", "auto:x", "auto:2", "auto:0x", "auto:-1x", "auto:nanx", "auto:1e400x",
             "auto:2xx", "wrong@2:0.5", "DENSE", "2:0.5" * 3000, "\x1b[2J", "2:\x1b[2J", "@ids", "@.",
             "@/dev/null", "99999999999999999999:0.5", "2:0.5,99999999999999999999:0.5", "2:.", "2:+0.5", "2:0.5\n"]
    for text in texts:
        yield Case("schedules", f"--schedule {text[:30]!r}", "lazyllm-generate", generate(f"--schedule={text}"), status=(0, 1, 2))
    for text in ["", "x", "last+", "mean", "mean:", "mean:0", "mean:-1", "mean:x", "max:1e9", "last+pool:2", "last+pool:0",
                 "last+pool:-3", "last+wrong", "last+layers+layers", "\x1b[2J", "mean:99999999999999999999", "+pool:3"]:
        yield Case("schedules", f"--score {text!r}", "lazyllm-generate", generate(f"--score={text}", "--schedule", "2:0.5"))
    good = {"format": 1, "model": "m", "layers": 4, "default": "a", "presets": {"a": {"schedule": "2:0.5"}}}
    for place, value in [(place, value) for place in ("format", "layers", "default", "presets", "presets/a", "presets/a/schedule",
                                                      "presets/a/score", "presets/a/protect_first")
                         for value in (None, 1.0, -1, "x", "\x1b[2J", [], {}, True, 1e300)]:
        changed = json.loads(json.dumps(good))
        put(changed, place, value)
        yield Case("schedules", f"preset {place} = {value!r}", "lazyllm-generate", generate("--schedule", "@presets.json"),
                   {"presets.json": changed}, place="presets.json" if value != 1.0 or place == "format" else None,
                   status=(1,) if place == "format" else (0, 1))
    for text in ["", "1", "null", "[]", "{", "{}", "[" * 100000, '{"format":1,"format":1}', "\x00", "\xff",
                 json.dumps(good) + "\x00"]:
        yield Case("schedules", f"preset file {text[:20]!r}", "lazyllm-generate", generate("--schedule", "@presets.json"),
                   {"presets.json": text}, place="presets.json", status=(1,))


def put(tree, place, value):
    """Puts `value` at `place`, or takes what is there away for `delete`."""
    *path, last = place.split("/")
    for name in path:
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
    key = int(last) if isinstance(tree, list) else last
    if value is delete:
        del tree[key]
    else:
        tree[key] = value


delete = object()


# Model folders

def model(config=None, weights=None, **others):
    """The files of a folder `model` like the small one."""
    files = {"model/config.json": (SMALL / "config.json").read_bytes() if config is None else config,
             "model/model.safetensors": (SMALL / "model.safetensors").read_bytes() if weights is None else weights}
    return {**files, **others}


def run_model(area, name, files, **more):
    return Case(area, name, "lazyllm-generate", generate("--model", "model"), files, **{"place": "model", **more})


def configs():
    good = json.loads((SMALL / "config.json").read_text())
    values = (None, -1, 0, 7, 1 << 40, 1e30, "\x1b[2J", [], {}, delete)
    for field in ("architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                  "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta",
                  "tie_word_embeddings", "eos_token_id", "bos_token_id"):
        for value in values:
            if (field, value) == ("vocab_size", 7):
                continue  # a small vocabulary, not a wrong one
            changed = dict(good)
            if value is delete:
                changed.pop(field, None)
            else:
                changed[field] = value
            yield run_model("configs", f"{field} = {'absent' if value is delete else value!r}", model(changed),
                            status=(1,) if field == "hidden_act" and value is not delete else (0, 1))
    for field, value in [("rope_scaling", {"factor": 4.0}), ("rope_scaling", {"type": "yarn", "factor": 2}),
                         ("rope_scaling", {"type": "linear", "factor": -1}), ("rope_parameters", {"full": {"rope_theta": 1}}),
                         ("quantization_config", {"bits": 4}), ("attention_bias", True), ("mlp_bias", True),
                         ("num_hidden_layers", 3), ("architectures", ["A", "B"]), ("partial_rotary_factor", 0.5)]:
        yield run_model("configs", f"{field} = {value!r}", model({**good, field: value}), status=(1,))
    text = json.dumps(good)
    for broken in ["", "{", "null", "[]", text[:-1], text + "x", text * 2, "[" * 100000, text.replace(":", ":\x00", 1),
                   text + "\x00", text + "\x00" + text, '{"a":1,"a":2}', "\ufeff" + text]:
        yield run_model("configs", f"config.json {broken[:20]!r}", model(broken), place="config.json",
                        status=(0, 1) if broken.startswith("\ufeff") else (1,))


def weights():
    good = (SMALL / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", good[:8])[0]
    header, payload = json.loads(good[8:8 + size]), good[8 + size:]
    name = next(key for key in header if key.endswith("norm.weight"))

    def file(changed, data=payload):
        text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        return struct.pack("<Q", len(text)) + text + data

    for cut in (0, 1, 7, 8, 9, 8 + size // 2, 8 + size, 9 + size, len(good) // 2, len(good) - 1):
        yield run_model("weights", f"cut at {cut}", model(weights=good[:cut]), place="model.safetensors", status=(1,))
    for length in (0, 1, size - 1, size + 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1):
        yield run_model("weights", f"header of {length}", model(weights=struct.pack("<Q", length) + good[8:]),
                        place="model.safetensors", status=(1,))
    for field, value in [(field, value) for field in ("dtype", "shape", "data_offsets") for value in
                         (None, 1, "F99", "\x1b[2J", [], [-1], [1 << 63], [0, 1 << 62], [1.5], {}, [10 ** 9] * 6, [0] * 5000)]:
        changed = json.loads(json.dumps(header))
        changed[name][field] = value
        yield run_model("weights", f"{field} = {str(value)[:30]}", model(weights=file(changed)), status=(1,))
    for extra in ("model.layers.4.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias",
                  "model.layers.0.self_attn.q_norm.weight", "\x1b[2J", "x" * 5000):
        changed = {**header, extra: {"dtype": "F32", "shape": [1], "data_offsets": [len(payload), len(payload) + 4]}}
        yield run_model("weights", f"a tensor {extra[:40]!r} more", model(weights=file(changed, payload + b"0000")), status=(1,))
    qwen3 = {**json.loads((SMALL / "config.json").read_text()), "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    yield run_model("weights", "Qwen3 without norms of heads", model(json.dumps({**qwen3, "head_dim": 8})), status=(1,))
    for head_dim in (0, 7, None, 1 << 40, "8"):
        yield run_model("weights", f"Qwen3 with heads of {head_dim!r}", model(json.dumps({**qwen3, "head_dim": head_dim})), status=(1,))
    for missing in [key for key in header if key != "__metadata__"][:6]:
        changed = {key: value for key, value in header.items() if key != missing}
        yield run_model("weights", f"without {missing}", model(weights=file(changed)), status=(1,))
    for text in (b"{}", b"[]", b"null", b"", b"{" * 100000, b'{"a":{},"a":{}}', b"\xff\xfe", json.dumps(header).encode() + b"\x00"):
        yield run_model("weights", f"header {text[:20]!r}", model(weights=file(text)), status=(1,))
    for number in (float("nan"), float("inf"), -float("inf")):
        yield run_model("weights", f"all weights {number}",
                        model(weights=good[:8 + size] + struct.pack("<f", number) * (len(payload) // 4)), place=None, status=(1,))
    for index in [{}, {"weight_map": None}, {"weight_map": {}}, {"weight_map": {name: "../../x.safetensors"}},
                  {"weight_map": {name: "none.safetensors"}}, {"weight_map": {name: "\x1b[2J.safetensors"}},
                  {"weight_map": {"\x1b[2J": "a.safetensors"}}, {"weight_map": {name: "a.safetensors"}}]:
        files = {"model/config.json": (SMALL / "config.json").read_bytes(), "model/a.safetensors": good,
                 "model/model.safetensors.index.json": index}
        yield run_model("weights", f"index {json.dumps(index)[:60]}", files, status=(1,))


def tokenizer_folder(tokenizer=None, **others):
    text = (TINY / "tokenizer.json").read_bytes() if tokenizer is None else tokenizer
    return {"tokenizer/tokenizer.json": text, **{f"tokenizer/{key}": value for key, value in others.items()}}


def run_tokenizer(name, files, **more):
    return Case("tokenizers", name, "lazyllm-generate",
                ["--model", TINY, "--tokenizer", "tokenizer", "--prompt", "red green", "--threads", "1", "--max-tokens", "1",
                 "--json", "old.json"], files, **{"place": "tokenizer", **more})


def tokenizers():
    good = json.loads((TINY / "tokenizer.json").read_text())
    for place in ("added_tokens", "added_tokens/0", "added_tokens/0/content", "added_tokens/0/id", "added_tokens/0/lstrip",
                  "normalizer", "pre_tokenizer", "pre_tokenizer/type", "pre_tokenizer/add_prefix_space", "post_processor",
                  "post_processor/type", "post_processor/single", "post_processor/special_tokens", "decoder", "model",
                  "model/type", "model/vocab", "model/merges", "model/merges/0"):
        for value in (None, 1, -1, "\x1b[2J", [], {}, [{}], True, delete):
            changed = json.loads(json.dumps(good))
            try:
                put(changed, place, value)
            except (KeyError, IndexError, TypeError):
                continue
            shown = "absent" if value is delete else repr(value)
            yield run_tokenizer(f"{place} = {shown}", tokenizer_folder(changed), status=(0, 1))
    for text in [b"", b"{", b"null", b"[]", b"\x00" * 10, b"[" * 100000, b"\n\x05\n", b"\x05\x00\x00\x00" + b"\xff" * 100,
                 json.dumps(good).encode() + b"\x00x"]:
        yield run_tokenizer(f"tokenizer.json {text[:20]!r}", tokenizer_folder(text), status=(1,))
    changed = {**good, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(" + "x" * 100_000}, "behavior": "Isolated", "invert": False}}
    yield run_tokenizer("a long pattern", tokenizer_folder(changed), status=(1,))
    for name in ("tokenizer_config.json", "generation_config.json"):
        for text in ["", "{", "null", "[]", '{"bos_token":"none"}', '{"eos_token":{}}', '{"eos_token_id":-1}', '{"eos_token_id":"x"}',
                     '{"bos_token":"\\u001b[2J"}', '{"eos_token_id":[[]]}']:
            yield run_tokenizer(f"{name} {text[:30]!r}", tokenizer_folder(**{name: text}), status=(0, 1))
    for name in ("tokenizer_config.json", "generation_config.json"):
        yield run_tokenizer(f"{name} with a zero byte", tokenizer_folder(**{name: "{}\x00"}), status=(1,))
    for kind in (os.mkfifo, os.mkdir, link_to_itself):
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            yield run_tokenizer(f"{name} is made by {kind.__name__}", {**tokenizer_folder(), f"tokenizer/{name}": replaced_by(kind)},
                                status=(1,))


def link_to_itself(path):
    os.symlink(path.name, path)


def replaced_by(make):
    def replace(path):
        if path.exists():
            path.unlink()
        make(path)
    return replace


# Inputs of a run

def prompts():
    for text in ["", " ", "[]", "[1", "[1,]", "[null]", "[1.5]", "[-1]", '["1"]', "[[1]]", "x", "1x", "-1", "-0", "97", "1\n97",
                 "99999999999999999999", "1 \x1b[2J", "\x00", "0x1", "1e0", "[-0]", "[" * 100000, "1," * 3 + "x", "[3,4]\x00,5,6]"]:
        yield Case("prompts", f"token ids {text[:20]!r}", "lazyllm-generate", generate(), {"ids": text}, place=None, status=(1,))
    for text in (b"", b"\xff\xfe", b"\x00" * 100, b"\x1b[2J", b" " * 100_000, b"\n" * 100_000, b"x" * 100_000, b"</s>" * 1000,
                 "\u202e\U0001f600".encode(), b" " * 1_000_000):
        yield Case("prompts", f"prompt {text[:20]!r} of {len(text)} bytes", "lazyllm-generate",
                   ["--model", TINY, "--prompt-file", "prompt.txt", "--threads", "1", "--max-tokens", "1", "--json", "old.json"],
                   {"prompt.txt": text}, status=(1,) if text.strip() == b"" and len(text) > 10_000 else (0, 1))
    for path in ("/dev/zero", "/proc/self/mem", ".", "none", "x" * 300, "prompt.txt/none"):
        for option in ("--prompt-file", "--token-ids"):
            yield Case("prompts", f"{option} {path[:20]}", "lazyllm-generate",
                       ["--model", TINY, option, path, "--threads", "1", "--max-tokens", "1", "--json", "old.json"],
                       place=path if len(path) < 300 else None, status=(1, 2))


def data():
    for field, value in [(field, value) for field in ("_id", "dataset", "prompt", "answers", "all_classes", "max_tokens")
                         for value in (None, -1, 0, 1.5, 1e300, "", "\x1b[2J", [], [1], {}, delete)]:
        line = dict(LINE)
        line.pop(field, None)
        if value is not delete:
            line[field] = value
        yield Case("data", f"{field} = {'absent' if value is delete else value!r}", "lazyllm-evaluate", evaluate(),
                   {"data.jsonl": line}, status=(0, 1))
    good = json.dumps(LINE)
    for text in ["", "\n", "{", "null", "[]", good[:-1], good + "\n" + good, "\x00", "[" * 100000, good + "\n\xff", good + "\x00" + good]:
        for program, arguments in (("lazyllm-evaluate", evaluate()), ("lazyllm-calibrate", calibrate("--data", "data.jsonl"))):
            yield Case("data", f"{program} {text[:20]!r}", program, arguments, {"data.jsonl": text},
                       place="data.jsonl", status=(1,) if "\x00" in text else (0, 1))
    for option, name in (("--prompts", "prompts.json"), ("--lengths", "lengths.json")):
        for text in ["", "{", "null", "[]", '{"qasper": null}', '{"qasper": -1}', '{"qasper": "{"}', '{"\\u001b[2J": []}']:
            yield Case("data", f"{option} {text!r}", "lazyllm-evaluate", evaluate(option, name), {name: text}, status=(0, 1))
    for program, arguments in (("lazyllm-evaluate", evaluate), ("lazyllm-calibrate", calibrate)):
        yield Case("data", f"{program} --data is a folder", program, arguments("--data", "folder"), {"folder": os.mkdir},
                   place="folder", status=(1,))
        for path in ("none", "/dev/zero", "x" * 300):
            yield Case("data", f"{program} --data {path[:20]}", program, arguments("--data", path), status=(1,))


def pipes():
    """A pipe without a writer in the place of each file that must be a regular one."""
    options = {
        "lazyllm-generate": ("--model", "--tokenizer", "--schedule"),
        "lazyllm-evaluate": ("--model", "--tokenizer", "--schedule", "--data", "--prompts", "--lengths", "--compressor"),
        "lazyllm-calibrate": ("--model", "--tokenizer", "--schedule", "--data"),
        "ttft_bench": ("--schedule",),
    }
    more = {"--schedule": ["--method", "lazy"], "--compressor": ["--method", "compress"]}
    for program, names in options.items():
        for name in names:
            arguments = bench("--shape", "134m") if program == "ttft_bench" else PROGRAMS[program]()
            if program == "lazyllm-evaluate":
                arguments += more.get(name, [])
            if program == "lazyllm-calibrate" and name == "--schedule":  # which no search goes with
                arguments = calibrate(search=())
            yield Case("pipes", f"{program} {name}", program, [*arguments, name, "@pipe" if name == "--schedule" else "pipe"],
                       {"pipe": os.mkfifo}, place="pipe: not a regular file", status=(1,))


def unchanged(name, content):
    def check(folder, run):
        now = (folder / name).read_text(encoding="utf-8", errors="surrogateescape") if (folder / name).exists() else None
        return [] if run.returncode == 0 or now == content else [f"{name} has changed"]
    return check


def logs():
    """Logs that are none: whatever they hold is refused and stays."""
    for text in ["mine", "mine\n", "{}", "{}\n", '{"settings":{"theme":"dark"}}', '{"settings":{"theme":"dark"}}\n', '{"settings":1}\n',
                 '{"settings":null}\n{}\n', "\x00\x00", "\n", "[]\n", '{"settings":', '{"settings":x\n', "{" * 100000 + "\n"]:
        torn = text == '{"settings":'  # the start of this program's own header
        yield Case("logs", f"evaluate --resume {text[:40]!r}", "lazyllm-evaluate", evaluate("--resume", "log"), {"log": text},
                   place=None if torn else "log", status=(0,) if torn else (1,), check=unchanged("log", text))
        for more in ([], ["--resume"]):
            torn_here = torn and more
            yield Case("logs", f"calibrate {more} {text[:40]!r}", "lazyllm-calibrate", calibrate(*more), {"old.json.log.jsonl": text},
                       place=None if torn_here else "log.jsonl", status=(0, 1) if torn_here else (1,),
                       check=unchanged("old.json.log.jsonl", text))


# Outputs

def is_json(name):
    def check(folder, run):
        try:
            json.loads((folder / name).read_text())
            return []
        except (OSError, ValueError) as error:
            return [f"{name}: {error}"]
    return check


def has_bytes(name, count):
    return lambda folder, run: [] if (folder / name).stat().st_size == count else [f"{name} does not have {count} bytes"]


def ends_with(name, end):
    return lambda folder, run: [] if (folder / name).read_bytes().endswith(end) else [f"{name} does not end with {end!r}"]


def holds(name, content):
    return lambda folder, run: [] if (folder / name).read_text() == content else [f"{name} has changed"]


def outputs():
    every = (("lazyllm-generate", generate), ("lazyllm-evaluate", evaluate), ("lazyllm-calibrate", calibrate))
    for program, arguments in every:
        out = "--out" if program == "lazyllm-calibrate" else "--json"
        for streams in ("2>/dev/full", "2>&-", "2>/dev/full </dev/null"):
            yield Case("outputs", f"{program} {streams}", program, arguments(), streams=streams, status=(0,), check=is_json("old.json"))
            yield Case("outputs", f"{program} a mistake {streams}", program, arguments("--threads", "x"), streams=streams, status=(2,))
            yield Case("outputs", f"{program} an error {streams}", program, arguments("--model", "none"), streams=streams, status=(1,))
        yield Case("outputs", f"{program} >/dev/full", program, arguments(), streams=">/dev/full", status=(1,),
                   place="standard output", check=is_json("old.json"))
        for streams in (">&-", "<&- >&-", "<&- >&- 2>&-"):
            yield Case("outputs", f"{program} {streams}", program, arguments(), streams=streams, status=(0,), check=is_json("old.json"))
        # Nobody reads it; 0 where the program was faster than its reader's end.
        gone = "| true"
        yield Case("outputs", f"{program} {gone}", program, arguments(), streams=gone, status=(0, 1), place="standard output",
                   check=is_json("old.json"))
        gone = "2> >(exec true)"
        yield Case("outputs", f"{program} {gone}", program, arguments(), streams=gone, status=(0,), check=is_json("old.json"))
        yield Case("outputs", f"{program} an error {gone}", program, arguments("--model", "none"), streams=gone, status=(1,))
        yield Case("outputs", f"{program} --help >/dev/full", program, ["--help"], streams=">/dev/full", status=(1,))
        for name, make in (("folder", os.mkdir), ("pipe", os.mkfifo), ("link", lambda path: os.symlink("old.json", path)),
                           ("dangling", lambda path: os.symlink("none", path))):
            yield Case("outputs", f"{program} {out} over a {name}", program, arguments(out, name), {name: make}, place=name,
                       status=(1,), check=holds("old.json", "old"))
        for path in ("/dev/full", "/dev/null", "none/file", "ids/file", "x" * 300, "x" * 255 + "/", ".", "..", "old.json/"):
            yield Case("outputs", f"{program} {out} {path[:20]} of {len(path)}", program, arguments(out, path), status=(1,), place=path[:20],
                       check=holds("old.json", "old"))
        for name in ("precious", "none"):
            yield Case("outputs", f"{program} a link to {name} beside the file", program, arguments(),
                       {"precious": "mine", "old.json.part": lambda path, name=name: os.symlink(name, path)}, status=(0,),
                       check=lambda folder, run: holds("precious", "mine")(folder, run) + is_json("old.json")(folder, run))
        yield Case("outputs", f"{program} a pipe beside the file", program, arguments(), {"old.json.part": os.mkfifo}, status=(0,),
                   check=is_json("old.json"))
        files = {f"model/{name}": (TINY / name).read_bytes() for name in
                 ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")}
        for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"):
            yield Case("outputs", f"{program} {out} over the model's {name}", program,
                       arguments("--model", "model", out, f"./model/../model/{name}"), files, place="--model", status=(1,),
                       check=lambda folder, run, name=name: [] if (folder / "model" / name).read_bytes() == (TINY / name).read_bytes()
                       else [f"{name} has changed"])
    for program in ("attention_bench", "int8_loss", "serving_bench"):
        for streams in ("2>/dev/full", "2>&-", "2> >(exec true)"):
            yield Case("outputs", f"{program} {streams}", program, PROGRAMS[program](), streams=streams, status=(0,), check=is_json("old.json"))
        yield Case("outputs", f"{program} --help >/dev/full", program, ["--help"], streams=">/dev/full", status=(1,))
    for program in ("int8_loss", "serving_bench"):
        yield Case("outputs", f"{program} --json over --data", program, PROGRAMS[program]("--json", "two.jsonl", "--data", "two.jsonl"),
                   place="--data", status=(1,), check=holds("two.jsonl", TWO))
    # A bad line is reported where nobody can read it; the other one is answered.
    yield Case("outputs", "evaluate reports a bad line 2>/dev/full", "lazyllm-evaluate", evaluate("--data", "mixed.jsonl"),
               {"mixed.jsonl": json.dumps(LINE) + "\nno JSON\n"}, streams="2>/dev/full", status=(0,), check=is_json("old.json"))
    # What else it writes is whole, too.
    for streams in ("2>/dev/full", "2>&-"):
        for option, check in (("--trace", is_json("new")), ("--report", ends_with("new", b"</html>\n")), ("--logits", has_bytes("new", 2 * 97 * 4))):
            yield Case("outputs", f"generate {option} {streams}", "lazyllm-generate", generate(option, "new"), streams=streams,
                       status=(0,), check=check)
    pairs = (("--json", "--trace"), ("--trace", "--logits"), ("--logits", "--report"), ("--json", "--report"))
    for a, b in pairs:
        yield Case("outputs", f"generate {a} and {b} are one", "lazyllm-generate", generate(a, "new", b, "./new"), place=a, status=(1,))
    for option in ("--json", "--trace", "--logits", "--report"):
        yield Case("outputs", f"generate {option} over --token-ids", "lazyllm-generate", generate(option, "ids"), place=option,
                   status=(1,), check=holds("ids", IDS))
    text = ["--model", TINY, "--prompt-file", "prompt.txt", "--threads", "1", "--max-tokens", "1"]
    yield Case("outputs", "generate --json over --prompt-file", "lazyllm-generate", [*text, "--json", "prompt.txt"],
               place="--prompt-file", status=(1,), check=holds("prompt.txt", "red green blue"))
    presets = (TINY / "schedules.json").read_text()
    yield Case("outputs", "generate --json over --schedule @FILE", "lazyllm-generate",
               [*text, "--schedule", "@presets.json", "--json", "presets.json"], {"presets.json": presets}, place="--schedule",
               status=(1,), check=holds("presets.json", presets))
    yield Case("outputs", "ttft_bench --json over --schedule @FILE", "ttft_bench",
               bench("--schedule", "@presets.json", "--json", "presets.json"), {"presets.json": presets}, place="--schedule",
               status=(1,), check=holds("presets.json", presets))
    questions = json.dumps({"qasper": "{context}"})
    yield Case("outputs", "evaluate --json over --prompts", "lazyllm-evaluate",
               evaluate("--prompts", "prompts.json", "--json", "prompts.json"), {"prompts.json": questions}, place="--prompts",
               status=(1,), check=holds("prompts.json", questions))
    for option in ("--json", "--resume"):
        yield Case("outputs", f"evaluate {option} over --data", "lazyllm-evaluate", evaluate(option, "data.jsonl"), place="--data",
                   status=(1,), check=holds("data.jsonl", json.dumps(LINE) + "\n"))
    yield Case("outputs", "evaluate --json is --resume", "lazyllm-evaluate", evaluate("--json", "new", "--resume", "new"),
               place="--resume", status=(1,))
    yield Case("outputs", "calibrate --out over --data", "lazyllm-calibrate", calibrate("--out", "two.jsonl"), place="--data",
               status=(1,), check=holds("two.jsonl", TWO))
    for program, arguments in (("lazyllm-evaluate", evaluate("--json")), ("lazyllm-calibrate", calibrate("--out")),
                               ("int8_loss", PROGRAMS["int8_loss"]("--json")), ("serving_bench", PROGRAMS["serving_bench"]("--json"))):
        yield Case("outputs", f"{program} writes into the folder --data", program, [*arguments, "all/new.jsonl", "--data", "all"],
                   {"all/data.jsonl": TWO}, place="in the folder all of --data", status=(1,), check=holds("all/data.jsonl", TWO))
    for link in ("old.json", "none"):
        yield Case("outputs", f"evaluate --resume is a link to {link}", "lazyllm-evaluate", evaluate("--resume", "there"),
                   {"there": lambda path, link=link: os.symlink(link, path)}, place="there", status=(1,), check=holds("old.json", "old"))
    large = {**json.loads((SMALL / "config.json").read_text()), "max_position_embeddings": 1 << 30}
    yield Case("outputs", "more memory than there is", "lazyllm-generate",
               generate("--model", "model", "--max-tokens", "500000000"), model(large), place="K/V of 1 x ", status=(1,))


def mutations():
    """Random bytes changed, cut out and put in."""
    chance = random.Random(12)
    sources = {
        "config.json": ((SMALL / "config.json").read_bytes(), lambda b: run_model("mutations", "config.json", model(b), status=(0, 1), place=None)),
        "header": ((SMALL / "model.safetensors").read_bytes(), lambda b: run_model("mutations", "weights", model(weights=b), status=(0, 1), place=None)),
        "ids": (IDS.encode(), lambda b: Case("mutations", "ids", "lazyllm-generate", generate(), {"ids": b}, status=(0, 1))),
        "data": (json.dumps(LINE).encode(), lambda b: Case("mutations", "data", "lazyllm-evaluate", evaluate(), {"data.jsonl": b}, status=(0, 1))),
        "presets": ((TINY / "schedules.json").read_bytes(), lambda b: Case(
            "mutations", "presets", "lazyllm-generate",
            ["--model", TINY, "--prompt", "red", "--threads", "1", "--max-tokens", "1", "--json", "old.json", "--schedule", "@presets.json"],
            {"presets.json": b}, status=(0, 1))),
        "tokenizer": ((TINY / "tokenizer.json").read_bytes(), lambda b: run_tokenizer("mutated", tokenizer_folder(b), status=(0, 1), place=None)),
        "llama2.c": ((SEEDS / "small.bin").read_bytes(), lambda b: Case(
            "mutations", "llama2.c", "lazyllm-generate",
            ["--model", "model.bin", "--token-ids", "one", "--threads", "1", "--max-tokens", "1", "--json", "old.json"],
            {"model.bin": b, "one": "1"}, status=(0, 1))),
        "tokenizer.bin": ((SEEDS / "tokenizer.bin").read_bytes(), lambda b: Case(  # the model has another vocabulary
            "mutations", "tokenizer.bin", "lazyllm-generate",
            ["--model", SMALL, "--tokenizer", "tokenizer.bin", "--prompt", "red", "--threads", "1", "--json", "old.json"],
            {"tokenizer.bin": b}, status=(1,), place="tokenizer.bin")),
    }
    for kind, (good, case) in sources.items():
        for number in range(25):
            text = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(min(len(text), 4000) or 1)
                how = chance.randrange(3)
                if how == 0:
                    text[at:at + 1] = bytes([chance.randrange(256)])
                elif how == 1:
                    del text[at:at + chance.randint(1, 20)]
                else:
                    text[at:at] = chance.choice((b"\x00", b"-", b"9" * 20, b"[", b'"', b"\\u0000", b"\x1b[2J", b"\xff", b"1e999"))
            made = case(bytes(text))
            made.name = f"{kind} {number}"
            yield made


# What takes more than one run

def start(folder, program, *arguments, stdout=subprocess.PIPE):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    return subprocess.Popen([str(BIN / program), *map(str, arguments)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                            stdout=stdout, stderr=subprocess.PIPE)


def stopped(folder, number, seconds):
    """A signal in the middle of a long run leaves the files as they were."""
    write(folder, {"prompt.txt": "red green blue " * 600, "old.json": "old"})
    run = start(folder, "lazyllm-generate", "--model", TINY, "--prompt-file", "prompt.txt", "--threads", "1", "--max-tokens", "1500",
                *[word for name in ("json", "trace", "logits", "report") for word in (f"--{name}", f"old.{name}")])
    time.sleep(seconds)
    run.send_signal(number)
    run.communicate(timeout=SECONDS)
    if run.returncode == 0:
        return []  # it was faster
    left = {path.name for path in folder.iterdir()} - {"prompt.txt", "old.json"}
    if number == signal.SIGKILL:  # which nothing can clear up after: the file by which a folder is found writable
        left = {name for name in left if not name.startswith(".lazyllm-")}
    problems = [] if (folder / "old.json").read_text() == "old" else ["old.json has changed"]
    return problems + ([f"leaves {sorted(left)}"] if left else [])


def twice(folder, resume):
    """Two evaluations with one log, or with one result: one is refused, or both end well; what is written is whole."""
    lines = [json.dumps({**LINE, "_id": str(i)}) for i in range(20)]
    write(folder, {"data.jsonl": "\n".join(lines)})
    arguments = ["--model", TINY, "--data", "data.jsonl", "--threads", "1", "--method", "dense", "--speed-items", "0",
                 *(("--resume", "log") if resume else ("--json", "out.json"))]
    runs = [start(folder, "lazyllm-evaluate", *arguments) for _ in range(2)]
    ends = [(*run.communicate(timeout=SECONDS), run.returncode) for run in runs]
    problems = []
    if not any(code == 0 for *_, code in ends):
        problems.append("none of two runs ended well")
    for _, err, code in ends:
        if code != 0 and (code != 1 or b"in use by another program" not in err):
            problems.append(f"ends with {code}: {err[:200]!r}")
    if resume:
        written = (folder / "log").read_text().splitlines()
        ids = [json.loads(line).get("id") for line in written]
        if len(written) != 21 or len(set(ids)) != 21:
            problems.append(f"a log of {len(written)} lines for 20 items")
    elif len(json.loads((folder / "out.json").read_text())["items"]) != 20:
        problems.append("out.json lacks items")
    return problems


def other_tokenizer(folder):
    """A changed tokenizer makes other items: a log of the old one is refused."""
    shutil.copytree(TINY, folder / "model")
    write(folder, {"data.jsonl": json.dumps(LINE)})
    arguments = ["--model", "model", "--data", "data.jsonl", "--threads", "1", "--method", "dense", "--speed-items", "0", "--resume", "log"]
    problems = []

    def expect(wanted, what):
        run = start(folder, "lazyllm-evaluate", *arguments)
        err = run.communicate(timeout=SECONDS)[1]
        if run.returncode != wanted or wanted == 1 and b"model_fingerprint was" not in err:
            problems.append(f"{what}: ends with {run.returncode}, not {wanted}: {err[:200]!r}")

    expect(0, "the first run")
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        path = folder / "model" / name
        content = bytearray(path.read_bytes())
        if name == "model.safetensors":
            content[len(content) // 2] ^= 1
        else:
            content += b"\n"
        path.write_bytes(content)
        expect(1, f"another {name}")
        shutil.copy(TINY / name, path)
        expect(0, f"the same {name}")
    return problems


def from_pipe(folder, option, text):
    """What another program writes may be a prompt."""
    os.mkfifo(folder / "pipe")
    run = start(folder, "lazyllm-generate", "--model", TINY, option, "pipe", "--threads", "1", "--max-tokens", "1")
    with open(folder / "pipe", "w", encoding="utf-8") as pipe:
        pipe.write(text)
    err = run.communicate(timeout=SECONDS)[1]
    return [] if run.returncode == 0 else [f"ends with {run.returncode}: {err[:200]!r}"]


def on_terminal(folder, compare):
    """A model's text with escape sequences: a terminal does not get them raw, a pipe does."""
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    escape = "\u011b[2J"  # how a vocabulary of bytes writes the escape character
    vocabulary = {piece if len(piece) == 1 or piece in ("<s>", "</s>") else escape + piece: number
                  for piece, number in tokenizer["model"]["vocab"].items()}
    tokenizer["model"].update(vocab=vocabulary, merges=[])
    write(folder, {"ids": IDS, **tokenizer_folder(tokenizer)})
    arguments = ["--model", TINY, "--tokenizer", "tokenizer", "--token-ids", "ids", "--threads", "1", "--max-tokens", "8",
                 "--ignore-stop", *compare]
    to_pipe = start(folder, "lazyllm-generate", *arguments)
    raw = to_pipe.communicate(timeout=SECONDS)[0]
    terminal, program_side = pty.openpty()
    with open(terminal, "rb", buffering=0) as screen:
        to_terminal = start(folder, "lazyllm-generate", *arguments, stdout=program_side)
        os.close(program_side)
        err = to_terminal.communicate(timeout=SECONDS)[1]
        shown = b""
        with contextlib.suppress(OSError):  # its end, once nobody has the other side
            while chunk := screen.read(1 << 16):
                shown += chunk
    problems = []
    if to_pipe.returncode != 0 or to_terminal.returncode != 0:
        problems.append(f"ends with {to_pipe.returncode} and {to_terminal.returncode}: {err[:200]!r}")
    if b"\x1b[2J" not in raw:
        problems.append(f"the pipe got no escape sequence: {raw[:200]!r}")
    if b"\x1b" in shown or b"\\x1b[2J" not in shown:
        problems.append(f"the terminal got {shown[:200]!r}")
    return problems


def small_files(folder):
    """Where files may not grow, the old one stays."""
    write(folder, {"ids": IDS, "new": "old"})
    run = subprocess.run(["/bin/sh", "-c", 'ulimit -f 2; exec "$@"', "sh", str(BIN / "lazyllm-generate"),
                          *map(str, generate("--max-tokens", "100", "--logits", "new"))], cwd=folder, capture_output=True,
                         timeout=SECONDS, check=False)
    good = run.returncode == 1 and b"File too large" in run.stderr and (folder / "new").read_text() == "old"
    return [] if good else [f"ends with {run.returncode}: {run.stderr[:200]!r}"]


def scenes():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for seconds in (0.05, 0.2, 0.5):
            yield f"{number.name} after {seconds} s", lambda folder, n=number, s=seconds: stopped(folder, n, s)
    for attempt in range(8):
        yield f"two runs with one log, {attempt}", lambda folder: twice(folder, True)
        yield f"two runs with one result, {attempt}", lambda folder: twice(folder, False)
    yield "another tokenizer, other weights", other_tokenizer
    yield "a prompt from a pipe", lambda folder: from_pipe(folder, "--prompt-file", "red green blue")
    yield "token ids from a pipe", lambda folder: from_pipe(folder, "--token-ids", "3 4 5")
    yield "escape sequences on a terminal", lambda folder: on_terminal(folder, [])
    yield "escape sequences on a terminal, compared", lambda folder: on_terminal(folder, ["--compare"])
    yield "files of 2 blocks at most", small_files


AREAS = (options, schedules, configs, weights, tokenizers, prompts, data, pipes, logs, outputs, mutations)


def attack(job):
    name, check = job
    folder = Path(tempfile.mkdtemp(prefix="attack_"))
    try:
        return name, check(folder)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return name, [f"{type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    wanted = sys.argv[3:]
    jobs = []
    for area in AREAS:
        if not wanted or area.__name__ in wanted:
            jobs += [(f"{case.area}: {case.name}", lambda folder, case=case: problems_of(case, folder)) for case in area()]
    if not wanted or "scenes" in wanted:
        jobs += [(f"scenes: {name}", check) for name, check in scenes()]
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [(name, problems) for name, problems in pool.map(attack, jobs) if problems]
    for name, problems in bad:
        for problem in problems:
            print(f"{name}: {problem}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime  # not the clock's: other programs may run
    print(f"{len(jobs)} attacks in {time.monotonic() - begin:.0f} s, with {seconds:.0f} s of processor time, "
          f"{len(bad)} of them not withstood")
    if wanted:
        return 1 if bad else 0
    if len(jobs) < LEAST_ATTACKS:
        print(f"too few attacks, at least {LEAST_ATTACKS} are to run")
    if seconds > MOST_SECONDS:
        print(f"too much, at most {MOST_SECONDS} s of processor time are to be taken")
    return 1 if bad or len(jobs) < LEAST_ATTACKS or seconds > MOST_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
