"""What is evaluated: the runs of each part, and where their results lie."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

import paper
import schedules

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/quality/tasks"))
import families  # noqa: E402

PARTS = ("dense", "table", "speed", "sweep", "location", "usage")
BASELINES = ("random", "static", "compress")
PRETRAINED = ROOT / "examples/models/models.txt"
SWEEP_SPEEDUPS = (1.5, 2.0, 3.0, 4.0)
PAPER_SPEEDUP = 2.34  # of multi-document QA, with a loss of at most 1 %
LOCATION_KEEPS = (0.5, 0.3, 0.1)


@dataclass(frozen=True)
class Settings:
    """What the command line and the environment say; counts of items are per category, divided among its data sets."""

    model: pathlib.Path
    data: pathlib.Path | None  # None: made by tasks/make_data.py
    build: pathlib.Path  # made data and results
    binaries: pathlib.Path
    out: pathlib.Path
    preset_file: pathlib.Path
    given: tuple = ()  # the fields that the environment has set
    hours: float = 0.0  # 0: until all is measured
    chat: bool = False
    context: int = 0  # 0: the model's
    longest_answer: int = 0  # 0: any
    prompts: str = ""
    lengths: str = ""
    dtype: str = "bf16"
    items: int = 200
    table_items: int = 100
    sweep_items: int = 30
    timed_items: int = 2  # of each data set
    usage_items: int = 1  # of each data set
    seeds: int = 5
    sweep_seeds: int = 3
    tokens: int = 3400  # of a prompt, to choose keep shares; made data know theirs
    threads: int = 2
    jobs: int = 2


def pretrained():
    """The names of the models that examples/models/fetch.sh makes."""
    lines = PRETRAINED.read_text().splitlines()
    return sorted({line.split()[0] for line in lines if line.strip() and not line.startswith("#")})


def is_pretrained(model):
    return model in pretrained()


def fetched(name):
    result = subprocess.run(["bash", ROOT / "examples/models/fetch.sh", name], stdout=subprocess.PIPE, text=True,
                            check=True)
    return pathlib.Path(result.stdout.strip())


def settings(model, data, hours, chat, environment):
    """`model` and `data` are paths or None; `model` may be the name of a pretrained model, which is measured as in the
    paper: on LongBench with a context of 4096. Throws ValueError for a variable that is not a number from 1 on."""
    pretrained = is_pretrained(model)
    values = {"threads": os.cpu_count(), "hours": hours or 0, "chat": chat}
    preset_file = environment.get("SCHEDULES")
    if pretrained:
        values |= {"hours": hours or 3, "chat": True, "context": 4096, "longest_answer": 128}
        data = data or pathlib.Path(environment.get("LAZYLLM_TEST_DATA") or ROOT.parent / "shared/data") / "longbench"
        committed = ROOT / f"examples/models/presets/{model}.json"
        preset_file = preset_file or (committed if committed.exists() else None)
        model = fetched(model)
    # A whole path, because evaluations go on only with the model of the same path.
    model = pathlib.Path(model).resolve() if model else ROOT / "examples/models/tiny"
    data = pathlib.Path(data) if data else None
    given = []
    for field in dataclasses.fields(Settings):
        text = environment.get(field.name.upper())
        if text and field.type is int and (not text.isdigit() or int(text) < 1):
            raise ValueError(f"{field.name.upper()}={text} is out of range, at least 1")
        if text and field.type in (int, str):
            values[field.name] = field.type(text)
            given.append(field.name)
    for field, name in (("prompts", "dataset2prompt.json"), ("lengths", "dataset2maxlen.json")):
        if data and field not in values and (data / "config" / name).exists():
            values[field] = str(data / "config" / name)
    values.setdefault("jobs", values["threads"])
    build = pathlib.Path(environment.get("BUILD") or ROOT / "build/release")
    return Settings(model=model, data=data, build=build / "quality",
                    binaries=pathlib.Path(environment.get("BIN") or build / "bin"),
                    out=pathlib.Path(environment.get("OUT") or ROOT / "docs"),
                    preset_file=pathlib.Path(preset_file or model / "schedules.json"), given=tuple(given), **values)


@dataclass(frozen=True)
class DataSet:
    """A file of questions."""

    path: pathlib.Path
    category: str
    share: int  # data sets of its category


@dataclass(frozen=True)
class Collection:
    """Data sets of about the same prompt length."""

    name: str
    tokens: int
    data_sets: tuple


@dataclass(frozen=True)
class Method:
    """A way to run the model: arguments of lazyllm-evaluate."""

    name: str
    arguments: tuple
    schedule: tuple = ()

    def command(self):
        return " ".join(f'"{argument}"' if " " in argument else argument for argument in self.arguments)


@dataclass(frozen=True)
class Run:
    """A method on a collection. `items` per category for scores; for a timed run, of each data set."""

    title: str
    method: Method
    collection: Collection
    items: int
    timed: bool = False
    program: str = "evaluate"

    def limit(self, data_set):
        return self.items if self.timed or self.program == "trace" else max(1, -(-self.items // data_set.share))


# What is read of a model beside its weights; chat templates and ends of answers among it.
MODEL_FILES = ("chat_template.jinja", "config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.bin",
               "tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def plural(count, noun):
    return f"{count} {noun}" + "s" * (count != 1)


DENSE = Method("dense", ("--method", "dense"))


def lazy(name, preset, schedule=None, method="lazy"):
    schedule = preset.schedule if schedule is None else schedule
    options = [text for member, value in preset.options.items()
               for text in (f"--{member.replace('_', '-')}", str(value))]
    return Method(name, ("--method", method, "--schedule", schedules.text_of(schedule), *options), schedule)


def digest(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def sampled(path):
    """Name, size and some of the content of a file that may be very large."""
    size = path.stat().st_size
    sample = hashlib.sha256()
    with open(path, "rb") as file:
        for i in range(16):
            file.seek(max(0, size - (1 << 16)) // 15 * i)
            sample.update(file.read(1 << 16))
    return f"{path.name} {size} {sample.hexdigest()}"


class NoSchedules(ValueError):
    """There is no preset file; dense scores can be measured without one."""


class Plan:
    def __init__(self, options):
        self.options = options
        self.config = json.loads((options.model / "config.json").read_text())
        self.layers = self.config["num_hidden_layers"]
        self.cost = schedules.Cost(self.config)

    @functools.cached_property
    def preset_file(self):
        path = self.options.preset_file
        if path.exists():
            presets, default = schedules.read_presets(path, self.layers)
        elif path == self.options.model / "schedules.json":
            presets, default = schedules.automatic(self.config), None
        else:
            raise NoSchedules(f"{path} is missing: lazyllm-calibrate makes it")
        if not any(preset.schedule for preset in presets.values()):
            raise ValueError(f"{path}: no preset prunes anything")
        return {name: preset for name, preset in presets.items() if preset.schedule}, default

    @property
    def presets(self):
        """In the file's order: the mildest first."""
        return self.preset_file[0]

    @property
    def best(self):
        """Name of the preset that the baselines are compared with: the mildest one as fast as in the paper, about, else
        the file's default."""
        presets, default = self.preset_file
        fast = [name for name, preset in presets.items() if
                self.cost.speedup(self.collections[-1].tokens, preset.schedule) >= 0.98 * PAPER_SPEEDUP]
        return fast[0] if fast else default if default in presets else next(iter(presets))

    @property
    def baseline_speedup(self):
        """What the keep shares of the baselines are solved for. Where the time is bounded it does not depend on the
        presets, so that the baselines need not be run again with new ones."""
        best = self.cost.speedup(self.collections[-1].tokens, self.presets[self.best].schedule)
        return PAPER_SPEEDUP if self.bounded and best >= 0.98 * PAPER_SPEEDUP else best

    @property
    def bounded(self):
        """Whether items are measured evenly until the time is over, not a number of them."""
        return self.options.hours > 0

    @property
    def section(self):
        """The name of what is written: a section of the document, and the start of its figures' names."""
        if self.shown_model() == "examples/models/tiny":
            return "quality"
        context = f"-{self.options.context}" if "context" in self.options.given else ""
        return f"quality-{self.options.model.name}{context}"

    @property
    def title(self):
        """Of this section."""
        if self.section == "quality":
            return "Quality"
        context = f", context {self.options.context}" if "context" in self.options.given else ""
        return f"Quality of {self.options.model.name}{context}"

    @functools.cached_property
    def paper(self):
        return schedules.Preset(schedules.paper(self.layers))

    def shown_model(self):
        """The model's path for people: from the project's root if it lies there, else its name."""
        path = self.options.model
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name

    def shown_variables(self):
        """The settings of the environment on which results depend, as NAME=VALUE; of paths the name."""
        return [f"{name.upper()}={pathlib.PurePath(str(getattr(self.options, name))).name}"
                for name in self.options.given if name not in ("threads", "jobs")]

    # Data and places

    def common(self):
        """What lazyllm-evaluate is given in every run, but for paths."""
        o = self.options
        return [*["--chat"] * o.chat, *["--context", str(o.context)] * (o.context > 0),
                *["--longest-answer", str(o.longest_answer)] * (o.longest_answer > 0), "--dtype", o.dtype]

    def made_folder(self):
        """Of made data; the name changes with the code that makes them."""
        files = sorted((ROOT / "bench/quality/tasks").glob("*.py"))
        return self.options.build / f"data-{digest(*(path.read_text() for path in files))}"

    @staticmethod
    def maker():
        return ROOT / "bench/quality/tasks/make_data.py"

    @functools.cached_property
    def collections(self):
        """From short to long prompts."""
        if self.options.data is None:
            tasks = {name: task[0] for name, task in families.TASKS.items()}
            shares = {category: list(tasks.values()).count(category) for category in tasks.values()}
            return tuple(
                Collection(f"{tokens // 1024}k", tokens,
                           tuple(DataSet(self.made_folder() / f"{tokens // 1024}k/{task}.jsonl", category,
                                         shares[category]) for task, category in tasks.items()))
                for tokens in (2048, 4096))
        found = {}
        for path in sorted(self.options.data.glob("*.jsonl")):
            with open(path) as file:
                first = next((text for text in file if text.strip()), None)
            if first is None:
                raise ValueError(f"{path}: is empty")
            try:
                line = json.loads(first)
            except ValueError as error:
                raise ValueError(f"{path}: its first line is no JSON: {error}") from error
            category = line.get("category") or paper.category_of(line.get("dataset") or path.stem)
            if category not in paper.CATEGORIES:
                raise ValueError(f"{path}: the category of its data set is not known")
            found[path] = category
        if not found:
            raise ValueError(f"{self.options.data} holds no *.jsonl")
        sets = tuple(DataSet(path, category, list(found.values()).count(category)) for path, category in found.items())
        return (Collection(self.options.data.name, self.options.tokens, sets),)

    @functools.cached_property
    def folder(self):
        """Of results: one for each model, data and number type, so that no result is taken for another's."""
        names = sorted(path for path in self.options.model.iterdir() if path.suffix == ".safetensors" or path.name in MODEL_FILES)
        of_data = [self.made_folder().name]
        if self.options.data is not None:
            of_data = [sampled(path) for path in sorted(self.options.data.glob("*.jsonl"))]
        o = self.options
        key = digest(*map(sampled, names), *of_data, o.dtype, o.prompts, o.lengths,
                     *map(str, (o.chat, o.context, o.longest_answer)))
        return self.options.build / f"results-{key}"

    def place(self, run, data_set):
        """Of a run's result on one data set."""
        threads = self.options.threads if run.timed else max(1, self.options.threads // self.options.jobs)
        kind = f"timed{run.items}" if run.timed else run.program
        name = f"{kind}-{digest(*run.method.arguments)}-{threads}.json"
        return self.folder / run.collection.name / data_set.path.stem / name

    # Methods

    def filter(self, method, keep, seeds):
        preset = self.presets[self.best]
        arguments = ("--method", method, "--keep", f"{keep:g}",
                     "--protect-first", str(preset.options["protect_first"]),
                     "--protect-last", str(preset.options["protect_last"]))
        if method == "random-drop":
            arguments += ("--seeds", str(seeds))
        return Method(method, arguments, ((0, keep),))

    def static_layer(self):
        """"The first few layers" whose attention static pruning goes by: a sixth of all."""
        return max(1, round(self.layers / 6))

    def at(self, method, speedup, tokens, seeds):
        """`method` with an ideal speedup of about `speedup`, or None where it cannot be that fast. Compression gets the
        share of random drop: its own time makes it slower than dense."""
        layers = {"random": (0,), "compress": (0,), "static": (self.static_layer(),)}.get(method)
        if method == "paper":
            layers = [layer for layer, _ in self.paper.schedule]
        if method == "best":
            preset = self.presets[self.best]
            if speedup == self.cost.speedup(tokens, preset.schedule):
                return lazy(f"preset {self.best}", preset)
            schedule = self.cost.solve(tokens, speedup, schedules.powers(preset.schedule))
            return schedule and lazy(f"our score, {speedup:.2f}x", preset, schedule)
        schedule = self.cost.solve(tokens, speedup, schedules.same_keep(layers))
        if schedule is None:
            return None
        if method == "paper":
            return lazy(f"the paper's score, {speedup:.2f}x", self.paper, schedule)
        if method == "static":
            best = self.presets[self.best].options
            preset = schedules.Preset((), {name: best[name] for name in ("protect_first", "protect_last")}
                                      | {"score": "last+layers"})
            return lazy(f"static, {speedup:.2f}x", preset, schedule, "static")
        return self.filter({"random": "random-drop", "compress": "compress"}[method], schedule[0][1], seeds)

    # Parts: what they measure, by name, so that the tables find it again.

    def dense(self):
        return {c.name: Run(f"dense {c.name}", DENSE, c, self.options.items) for c in self.collections}

    def rows(self):
        """{row: its method} of the paper's tables."""
        o, collection = self.options, self.collections[-1]
        methods = {"dense": DENSE}
        for name in BASELINES:
            method = self.at(name, self.baseline_speedup, collection.tokens, o.seeds)
            if method is not None:
                methods[name] = method
        methods["lazy"] = lazy("the paper's schedule", self.paper)
        for name, preset in self.presets.items():
            methods[name] = lazy(f"preset {name}", preset)
        return methods

    def table(self):
        """{row: run}"""
        return {row: Run(f"table {row}", method, self.collections[-1], self.options.table_items)
                for row, method in self.rows().items()}

    def speed(self):
        """{row: timed run}"""
        return {row: Run(f"{row}, timed", method, self.collections[-1], self.options.timed_items, True)
                for row, method in self.rows().items() if row != "dense"}

    def sweep(self):
        """{line: [runs]}; line "dense" has one."""
        o, collection = self.options, self.collections[0]
        if self.bounded:
            # Points that the table has as well need no runs of their own.
            points = {line: (1.5, self.baseline_speedup, 3.0) for line in BASELINES} | {"paper": (2.34, 3.0)}
            known = {"paper": [lazy("the paper's schedule", self.paper)],
                     "best": [lazy(f"preset {name}", preset) for name, preset in self.presets.items()]}
        else:
            best = self.cost.speedup(collection.tokens, self.presets[self.best].schedule)
            every = sorted([best] + [speedup for speedup in SWEEP_SPEEDUPS if abs(speedup / best - 1) > 0.1])
            points, known = {line: every for line in (*BASELINES, "paper", "best")}, {}
        lines = {"dense": [DENSE]}
        for line in (*BASELINES, "paper", "best"):
            solved = [self.at(line, speedup, collection.tokens, o.sweep_seeds) for speedup in points.get(line, ())]
            lines[line] = known.get(line, []) + [method for method in solved if method]
        return {line: [Run(f"sweep {line} {i + 1}/{len(methods)}", method, collection, o.sweep_items)
                       for i, method in enumerate(methods)] for line, methods in lines.items()}

    def location(self):
        """{(scorer, keep): {layer: run}}; key "dense": {0: run}."""
        collection = self.collections[0]
        runs = {"dense": {0: Run("location dense", DENSE, collection, self.options.sweep_items)}}
        for scorer, preset in (("paper", self.paper), ("best", self.presets[self.best])):
            for keep in LOCATION_KEEPS[1:2] if self.bounded else LOCATION_KEEPS:
                runs[scorer, keep] = {
                    layer: Run(f"location {scorer}, keep {keep:g} after layer {layer}",
                               lazy("location", preset, ((layer, keep),)), collection, self.options.sweep_items)
                    for layer in sorted({max(1, round(self.layers * i / 6)) for i in range(1, 6)})}
        return runs

    def usage(self):
        """{scorer: run}"""
        return {scorer: Run(f"usage {scorer}", lazy(scorer, preset), self.collections[-1], self.options.usage_items,
                            program="trace")
                for scorer, preset in (("paper", self.paper), ("best", self.presets[self.best]))}

    def runs(self, part):
        """All of a part, one after the other."""
        found = []

        def collect(value):
            if isinstance(value, Run):
                found.append(value)
            elif isinstance(value, dict):
                collect(list(value.values()))
            elif value is not None:
                for entry in value:
                    collect(entry)

        collect(getattr(self, part)())
        return found
