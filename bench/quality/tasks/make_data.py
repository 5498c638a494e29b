"""Writes evaluation (or calibration) data of the six families: one JSONL file per task, one question per text.

`python make_data.py --out DIR --tokens 2048 --items 200`. Needs nothing but Python. A line has `_id`, `dataset`,
`category`, `prompt`, `answers`, `all_classes` and `max_tokens`; prompt and answer together have at most --tokens tokens.
"""

import argparse
import json
import pathlib

import families
import vocabulary


def items(name, count, tokens, seed, training):
    """`count` lines of task `name` with prompts of just under `tokens` tokens."""
    category, _, most = families.TASKS[name]
    body, number = tokens - 16 - most, 0
    while count > 0:
        number += 1
        task = families.make(name, f"data {seed} {number}", not training, body, 1)
        question, answer = task.questions[0]
        prompt = task.body + question
        if families.length(prompt) + 1 + most > tokens:
            body -= 4
            continue
        body = min(body + 2, tokens - 16 - most)
        yield {"_id": f"{name}-{seed}-{number}", "dataset": name, "category": category, "prompt": prompt,
               "answers": [answer.strip()], "all_classes": task.classes, "max_tokens": most,
               "length": 1 + len(vocabulary.encode(prompt))}
        count -= 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--out", type=pathlib.Path, required=True, help="folder for the files")
    p.add_argument("--tokens", type=int, default=2048, help="most tokens of a prompt with its answer")
    p.add_argument("--items", type=int, default=200, help="lines per task")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tasks", nargs="+", choices=list(families.TASKS), default=list(families.TASKS), metavar="TASK")
    p.add_argument("--training-split", action="store_true", help="entities of the training split, for calibration")
    options = p.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.tasks:
        with open(options.out / f"{name}.jsonl", "w") as file:
            for item in items(name, options.items, options.tokens, options.seed, options.training_split):
                file.write(json.dumps(item) + "\n")


if __name__ == "__main__":
    main()
