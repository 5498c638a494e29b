"""Runs what the plan asks for. Results that are there already are kept."""

import concurrent.futures
import functools
import itertools
import os
import subprocess
import sys
import tempfile
import time

import usage
from plan import plural
from results import Failure, finished

MINUTE = 60
# How the parts share the time of a run that is bounded.
SHARES = {"dense": 4, "table": 10, "speed": 4, "sweep": 4, "location": 3, "usage": 1}


def measured_at(plan):
    """The commits with which the results were measured."""
    place = plan.folder / "commits"
    return place.read_text().splitlines() if place.exists() else []


def say(text):
    print(text, flush=True)


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


@functools.cache
def lines(path):
    with open(path) as file:
        return sum(1 for _ in file)


def by_turns(data_sets):
    """The first of each category, then the second of each, and so on."""
    seen, turns = {}, []
    for data_set in data_sets:
        seen[data_set.category] = seen.get(data_set.category, 0) + 1
        turns.append((seen[data_set.category], data_set))
    return [data_set for _, data_set in sorted(turns, key=lambda turn: turn[0])]


def make_data(plan):
    """Writes the questions of the six families, as many as the runs need at most."""
    for collection in plan.collections:
        for data_set in collection.data_sets:
            most = max(plan.options.items, plan.options.table_items, plan.options.sweep_items)
            count = max(-(-most // data_set.share), plan.options.timed_items, plan.options.usage_items)
            if data_set.path.exists():
                if lines(data_set.path) >= count:
                    continue
            say(f"data: {plural(count, 'item')} of {data_set.path.stem}, {collection.tokens} tokens")
            with tempfile.TemporaryDirectory(dir=plan.options.build) as folder:
                subprocess.run([sys.executable, plan.maker(), "--out", folder, "--tokens", str(collection.tokens),
                                "--items", str(count), "--tasks", data_set.path.stem], check=True)
                data_set.path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(f"{folder}/{data_set.path.name}", data_set.path)
                lines.cache_clear()


class Measurement:
    def __init__(self, plan, commit=""):
        self.plan, self.options = plan, plan.options
        self.commit = commit  # that is noted beside what it measures

    def evaluate(self, run, data_set, limit):
        o, place = self.options, self.plan.place(run, data_set)
        threads = o.threads if run.timed else max(1, o.threads // o.jobs)
        command = [o.binaries / "lazyllm-evaluate", "--model", o.model, "--data", data_set.path, *run.method.arguments,
                   *self.plan.common(), "--threads", str(threads), "--limit", str(limit),
                   "--speed-items", str(run.items if run.timed else 0), "--json", place,
                   "--resume", place.with_suffix(".jsonl")]
        for option, file in (("--prompts", o.prompts), ("--lengths", o.lengths)):
            command += [option, file] * bool(file)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Failure(f"lazyllm-evaluate failed for {run.title} on {data_set.path}: {result.stderr.strip()[-600:]}")

    def work(self, run, data_set, limit):
        self.plan.place(run, data_set).parent.mkdir(parents=True, exist_ok=True)
        if run.program == "trace":
            usage.measure(self.plan, run, data_set, limit)
        else:
            self.evaluate(run, data_set, limit)

    def note_commit(self):
        """Adds the commit to those with which the results in this folder were measured."""
        commits = measured_at(self.plan)
        if self.commit and self.commit not in commits:
            self.plan.folder.mkdir(parents=True, exist_ok=True)
            (self.plan.folder / "commits").write_text("\n".join([*commits, self.commit]) + "\n")

    def measure(self, part):
        """Scores several at a time, then what is timed, which has the machine for itself."""
        tasks = {}
        for run in self.plan.runs(part):
            for data_set in run.collection.data_sets:
                place, limit = self.plan.place(run, data_set), run.limit(data_set)
                if finished(place, limit) is None and (place not in tasks or limit > tasks[place][2]):
                    tasks[place] = (run, data_set, limit)
        self.run_all(part, list(tasks.values()))

    def measure_evenly(self, part, until):
        """One item of every data set for all runs, then a second one, and so on until the time is over."""
        runs = self.plan.runs(part)
        most = max(run.limit(data_set) for run in runs for data_set in run.collection.data_sets)
        for limit in range(1, most + 1):
            tasks = {}
            for turn in itertools.zip_longest(*(by_turns(run.collection.data_sets) for run in runs)):
                for run, data_set in zip(runs, turn):
                    if data_set is None or limit > min(run.limit(data_set), lines(data_set.path)):
                        continue
                    place = self.plan.place(run, data_set)
                    if finished(place, limit) is None:
                        tasks[place] = (run, data_set, limit)
            self.run_all(f"{part}, item {limit} of each data set", list(tasks.values()), until)

    def measure_parts(self, parts, written):
        """All parts, one after the other; `written()` is called after each. Where the time is bounded, the parts share
        it, and have again what others did not need."""
        o, start = self.options, time.monotonic()
        if not self.plan.bounded:
            for part in parts:
                self.measure(part)
                written()
            return
        whole, share = sum(SHARES[part] for part in parts), 0
        for part in parts:
            share += SHARES[part]
            self.measure_evenly(part, start + 3600 * o.hours * share / whole)
            written()
        for part in parts:
            self.measure_evenly(part, start + 3600 * o.hours)
        written()

    def run_all(self, title, tasks, until=float("inf")):
        """Until `until` no more tasks are begun. Says at most once a minute how far it is."""
        if not tasks:
            return
        self.note_commit()
        jobs = 1 if any(run.timed for run, _, _ in tasks) else self.options.jobs
        start = said = time.monotonic()
        done = 0

        def begin(task):
            if time.monotonic() < until:
                self.work(*task)
                return 1
            return 0

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = {pool.submit(begin, task) for task in tasks}
            try:
                while waiting:
                    ready, waiting = concurrent.futures.wait(waiting, MINUTE, concurrent.futures.FIRST_COMPLETED)
                    done += sum(future.result() for future in ready)
                    now = time.monotonic()
                    if now - said >= MINUTE and done and waiting:
                        left = (now - start) / done * len(waiting)
                        say(f"{title}: {done} of {plural(len(tasks), 'run')}; {duration(now - start)}, "
                            f"about {duration(min(left, until - now))} left")
                        said = now
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if done:
            say(f"{title}: {done} of {plural(len(tasks), 'run')} in {duration(time.monotonic() - start)}")
