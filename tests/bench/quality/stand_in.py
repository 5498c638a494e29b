"""Stands in for lazyllm-evaluate and lazyllm-generate: known results at once."""

import argparse
import json
import pathlib

import schedules

# Loss in percent of dense for each unit of speedup above 1.
LOSS = {"dense": 0, "lazy": 0.4, "static": 12, "random-drop": 40, "compress": 35}
DENSE_SCORE = 0.96
NUMBERS = {"context": int, "longest-answer": int, "limit": int, "speed-items": int, "threads": int, "keep": float, "seeds": int, "max-tokens": int,
           "protect-first": int, "protect-last": int, "max-revived": int, "decode-revived": int, "first-revived": int,
           "continuations": int, "revive-from": int, "min-tokens": int}


class Program:
    """Takes the place of subprocess.run. Remembers its calls; fails on data whose path holds `bad`."""

    def __init__(self, loss=None, bad=None):
        self.calls, self.loss, self.bad = [], {**LOSS, **(loss or {})}, bad
        self.prompts = set()  # that lazyllm-generate was given

    def __call__(self, command, **_):
        program, *arguments = map(str, command)
        self.calls.append(arguments)
        p = argparse.ArgumentParser()
        for name in ("model", "data", "method", "schedule", "score", "dtype", "json", "resume", "prompt-file", "trace",
                     "prompts", "lengths"):
            p.add_argument(f"--{name}")
        p.add_argument("--chat", action="store_true")
        for name, kind in NUMBERS.items():
            p.add_argument(f"--{name}", type=kind)
        o = p.parse_args(arguments)
        if self.bad and self.bad in (o.data or ""):
            return argparse.Namespace(returncode=1, stderr="the data are bad")
        cost = schedules.Cost(json.loads((pathlib.Path(o.model) / "config.json").read_text()))
        is_filter = o.method in ("random-drop", "compress")
        schedule = ((0, o.keep),) if is_filter else schedules.parse(o.schedule or "dense")
        if pathlib.Path(program).name == "lazyllm-evaluate":
            self.evaluate(o, cost, schedule, is_filter)
        else:
            self.prompts.add(pathlib.Path(o.prompt_file).read_text())
            self.generate(o, cost, schedule)
        return argparse.Namespace(returncode=0)

    def evaluate(self, o, cost, schedule, is_filter):
        items = []
        for line in map(json.loads, pathlib.Path(o.data).read_text().splitlines()[:o.limit]):
            tokens = line["length"]
            speedup = cost.speedup(tokens, schedule)
            operations = cost.prefill(tokens) / speedup + (cost.prefill(tokens) if o.method == "compress" else 0)
            run = {"score": DENSE_SCORE * max(0, 1 - self.loss[o.method] / 100 * (speedup - 1)), "tokens": 3,
                   "operations": operations, "reserved_percent": 120, "filled_percent": 60,
                   "computed_percent": 100 * schedule[0][1] if is_filter else 100 / speedup}
            items.append({"prompt_tokens": tokens, "dense_operations": cost.prefill(tokens),
                          "runs": [run] * (o.seeds or 1)})
        overall = {"ttft_speedup": 0.9 * speedup, "generation_speedup": 0.8 * speedup} if o.speed_items else {}
        pathlib.Path(o.json).write_text(json.dumps({"data": {"limit": o.limit}, "overall": overall, "items": items}))

    @staticmethod
    def generate(o, cost, schedule):
        """Of a prompt of 100 tokens; each decode step uses one more token of the prompt, and its own."""
        tokens, rows, active = 100, 100, []
        for layer in range(cost.layers):
            rows = round(rows * dict(schedule).get(layer, 1))
            active.append(rows)
        trace = [{"new_tokens": tokens, "active": [list(range(rows)) for rows in active]}]
        trace += [{"new_tokens": 1, "active": [[*range(rows + step), tokens + step] for rows in active]}
                  for step in range(3)]
        pathlib.Path(o.trace).write_text(json.dumps(trace))
