"""Trains the embedded model: `python train.py --out DIR`. Deterministic from --seed; goes on where it stopped.

The context grows by stages (--stages TOKENS:STEPS,…). With several processes (--processes) each draws its own part of
every batch. Progress goes to DIR/log.jsonl, the state to DIR/state.pt, after every --save steps.
"""

import argparse
import json
import os
import pathlib
import time

import data
import torch
import torch.distributed as dist
import torch.nn.functional as F
from initialize import initialize
from model import Config, Llama, parts


def stages(text):
    return [tuple(map(int, stage.split(":"))) for stage in text.split(",")]


def stage_of(step, plan):
    """Tokens of a sequence at `step`."""
    for tokens, steps in plan:
        if step < steps:
            return tokens
        step -= steps
    return plan[-1][0]


class Training:
    def __init__(self, options, rank):
        self.options, self.rank = options, rank
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.config = Config(vocabulary=data.vocabulary.VOCABULARY)
        self.model = Llama(self.config)
        initialize(self.model, options.seed, data.vocabulary.classes())
        names, tensors = zip(*self.model.named_parameters())
        # Master weights and gradients in f32, all in one piece each; the model computes with a bf16 copy.
        self.flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).to(self.device)
        self.gradient = torch.zeros_like(self.flat)
        self.model.to(self.device, torch.bfloat16)
        self.parameters = [parameter for _, parameter in self.model.named_parameters()]
        self.masters, self.gradients, matrices, others = [], [], [], []
        start = 0
        for name, tensor in zip(names, tensors):
            master, gradient = (flat[start:start + tensor.numel()].view_as(tensor)
                                for flat in (self.flat, self.gradient))
            start += tensor.numel()
            self.masters.append(master)
            self.gradients.append(gradient)
            for part, its_gradient in zip(parts(self.config, name, master).values(),
                                          parts(self.config, name, gradient).values()):
                parameter = torch.nn.Parameter(part)
                parameter.grad = its_gradient
                (matrices if part.ndim == 2 and name != "embedding" else others).append(parameter)
        self.optimizers = [torch.optim.Muon(matrices, lr=options.rate, momentum=0.95, weight_decay=0.01),
                           torch.optim.AdamW(others, lr=options.other_rate, betas=(0.9, 0.95), weight_decay=0)]
        self.rates = [options.rate, options.other_rate]
        if options.compile:
            torch._dynamo.config.recompile_limit = 4 * len(options.stages)  # one per length, with and without gradients
            for layer in self.model.layers:
                layer.compile(dynamic=False)
        self.step, self.tokens, self.seconds = 0, 0, 0.0

    def copy_weights(self):
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters):
                parameter.copy_(master)

    def save(self):
        if self.rank == 0:
            path = self.options.out / "state.pt"
            torch.save({"flat": self.flat, "optimizers": [o.state_dict() for o in self.optimizers], "step": self.step,
                        "tokens": self.tokens, "seconds": self.seconds}, path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)

    def load(self):
        path = self.options.out / "state.pt"
        if path.exists():
            state = torch.load(path, map_location=self.device)
            self.flat.copy_(state["flat"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"]):
                optimizer.load_state_dict(saved)
            self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.copy_weights()

    def factor(self):
        """Of the learning rates: a short warm-up, then constant, then down to 0 in a line."""
        o, step = self.options, self.step
        return min(1.0, (step + 1) / o.warmup, max(0.02, (o.steps - step) / max(1, o.steps - o.decay_from)))

    def losses(self, ids, places, weights):
        """Cross-entropy of each token that has a weight, its weight and whether it was the most likely one."""
        ids, places, weights = (t.to(self.device) for t in (ids, places, weights))
        hidden = self.model(ids, places)[:, :-1].reshape(-1, self.config.width)
        chosen = weights[:, 1:].reshape(-1).nonzero()[:, 0]
        logits = self.model.logits(hidden[chosen]).float()
        target = ids[:, 1:].reshape(-1)[chosen]
        return (F.cross_entropy(logits, target, reduction="none"), weights[:, 1:].reshape(-1)[chosen],
                (logits.argmax(1) == target), chosen)

    def train_step(self):
        o = self.options
        tokens = stage_of(self.step, o.stages)
        repeat_share = max(o.repeats * (1 - self.step / max(1, o.repeats_until)), 0.05)
        micro = max(1, o.micro // tokens)
        count = max(1, o.batch // o.processes // (micro * tokens))
        self.gradient.zero_()
        total = torch.zeros(2)
        for i in range(count):
            seed = ((o.seed * 10**7 + self.step) * count + i) * o.processes + self.rank
            loss, weight, _, _ = self.losses(*data.batch(seed, micro, tokens, o.context, repeat_share))
            (loss * weight).sum().div(micro * tokens).backward()
            total += torch.tensor([(loss * weight).sum().item(), weight.sum().item()])
            for parameter, gradient in zip(self.parameters, self.gradients):
                gradient += parameter.grad
                parameter.grad = None
        if o.processes > 1:
            dist.all_reduce(self.gradient)
            dist.all_reduce(total)
        self.gradient.div_(max(1.0, total[1].item() / (micro * tokens)))
        self.gradient.div_(max(1.0, self.gradient.norm().item()))
        for optimizer, rate in zip(self.optimizers, self.rates):
            for group in optimizer.param_groups:
                group["lr"] = rate * self.factor()
            optimizer.step()
        self.copy_weights()
        self.step += 1
        self.tokens += count * micro * tokens * o.processes
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def evaluate(self, tokens, sequences):
        """Per task, the share of answers of the evaluation split that are right in every token, in percent."""
        result = {}
        for number, name in enumerate(data.NAMES):
            if number % self.options.processes != self.rank:
                continue
            right = asked = 0
            micro = max(1, self.options.micro // tokens)
            for i in range(max(1, sequences // micro)):
                ids, places, weights = data.batch(f"{name} {i}", micro, tokens, self.options.context, 0.0, [name], True)
                _, _, good, chosen = self.losses(ids, places, weights)
                answers = []
                last = None
                for index, ok in zip(chosen.tolist(), good.tolist()):
                    if last is not None and index == last + 1:
                        answers[-1] &= ok
                    else:
                        answers.append(ok)
                    last = index
                right += sum(answers)
                asked += len(answers)
            result[name.removeprefix("tiny_")] = round(100 * right / max(1, asked), 1)
        if self.options.processes > 1:
            gathered = [None] * self.options.processes
            dist.all_gather_object(gathered, result)
            result = {name: value for part in gathered for name, value in part.items()}
        return result

    def run(self):
        o = self.options
        self.load()
        while self.step < o.steps:
            start = time.time()
            loss = self.train_step()
            self.seconds += time.time() - start
            if self.step % o.save == 0 or self.step == o.steps:
                self.save()
            if self.step % o.log == 0 or self.step == o.steps:
                line = {"step": self.step, "tokens": self.tokens, "context": stage_of(self.step - 1, o.stages),
                        "loss": round(loss, 4), "rate": round(self.factor(), 3), "seconds": round(self.seconds)}
                if self.step % o.evaluate == 0 or self.step == o.steps:
                    line["right"] = self.evaluate(stage_of(self.step - 1, o.stages), o.evaluate_sequences)
                if self.rank == 0:
                    with open(o.out / "log.jsonl", "a") as log:
                        log.write(json.dumps(line) + "\n")


def work(rank, options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if options.processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
        dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    Training(options, rank).run()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--out", type=pathlib.Path, required=True, help="folder of the state and the log")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--stages", type=stages, default="128:500,256:400,512:300,1024:350,2048:300,4096:300",
                   help="sequence lengths and their steps")
    p.add_argument("--steps", type=int, default=2150, help="steps in all")
    p.add_argument("--decay-from", type=int, default=1100, help="first step of the decay of the learning rates")
    p.add_argument("--context", type=int, default=4096, help="positions that jumps reach")
    p.add_argument("--batch", type=int, default=8192, help="tokens per step")
    p.add_argument("--micro", type=int, default=2048, help="tokens per forward pass")
    p.add_argument("--rate", type=float, default=0.006, help="learning rate of the matrices (Muon)")
    p.add_argument("--other-rate", type=float, default=0.002, help="learning rate of embedding and norms (AdamW)")
    p.add_argument("--warmup", type=int, default=50)
    p.add_argument("--repeats", type=float, default=0.1, help="share of repeated random segments at first")
    p.add_argument("--repeats-until", type=int, default=500, help="step at which that share has fallen to 0.05")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--threads", type=int, default=1, help="per process")
    p.add_argument("--port", type=int, default=29511)
    p.add_argument("--log", type=int, default=20)
    p.add_argument("--evaluate", type=int, default=250)
    p.add_argument("--evaluate-sequences", type=int, default=16)
    p.add_argument("--save", type=int, default=100)
    p.add_argument("--no-compile", dest="compile", action="store_false")
    options = p.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if torch.cuda.is_available():
        options.processes = 1
    if options.processes == 1:
        work(0, options)
    else:
        torch.multiprocessing.spawn(work, (options,), options.processes)


if __name__ == "__main__":
    main()
