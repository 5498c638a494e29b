"""Runs what the plan asks for. Results that are there already are kept."""

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time

import usage
from plan import plural
from results import finished


class Failure(Exception):
    pass


def say(text):
    print(text, flush=True)


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def make_data(plan):
    """Writes the questions of the six families, as many as the runs need at most."""
    for collection in plan.collections:
        for data_set in collection.data_sets:
            most = max(plan.options.items, plan.options.table_items, plan.options.sweep_items)
            count = max(-(-most // data_set.share), plan.options.timed_items, plan.options.usage_items)
            if data_set.path.exists():
                with open(data_set.path) as file:
                    if sum(1 for _ in file) >= count:
                        continue
            say(f"data: {plural(count, 'item')} of {data_set.path.stem}, {collection.tokens} tokens")
            with tempfile.TemporaryDirectory(dir=plan.options.build) as folder:
                subprocess.run([sys.executable, plan.maker(), "--out", folder, "--tokens", str(collection.tokens),
                                "--items", str(count), "--tasks", data_set.path.stem], check=True)
                data_set.path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(f"{folder}/{data_set.path.name}", data_set.path)


class Measurement:
    def __init__(self, plan):
        self.plan, self.options = plan, plan.options

    def evaluate(self, run, data_set):
        o, place = self.options, self.plan.place(run, data_set)
        place.parent.mkdir(parents=True, exist_ok=True)
        threads = o.threads if run.timed else max(1, o.threads // o.jobs)
        command = [o.binaries / "lazyllm-evaluate", "--model", o.model, "--data", data_set.path, *run.method.arguments,
                   "--dtype", o.dtype, "--threads", str(threads), "--limit", str(run.limit(data_set)),
                   "--speed-items", str(run.items if run.timed else 0), "--json", place,
                   "--resume", place.with_suffix(".jsonl")]
        for option, file in (("--prompts", o.prompts), ("--lengths", o.lengths)):
            command += [option, file] * bool(file)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Failure(f"lazyllm-evaluate failed for {run.title} on {data_set.path}: {result.stderr.strip()[-600:]}")

    def work(self, run, data_set):
        if run.program == "trace":
            usage.measure(self.plan, run, data_set)
        else:
            self.evaluate(run, data_set)

    def measure(self, part):
        """Scores several at a time, then what is timed, which has the machine for itself."""
        runs = self.plan.runs(part)
        for timed in (False, True):
            self.measure_all([run for run in runs if run.timed == timed], 1 if timed else self.options.jobs)

    def measure_all(self, runs, jobs):
        wanted = {}
        for run in runs:
            for data_set in run.collection.data_sets:
                place = self.plan.place(run, data_set)
                if finished(place, run.limit(data_set)):
                    continue
                if place not in wanted or run.limit(data_set) > wanted[place][0].limit(data_set):
                    wanted[place] = (run, data_set)
        tasks = list(wanted.values())
        left = {}
        for run, _ in tasks:
            left[id(run)] = left.get(id(run), 0) + 1
        start, done = time.monotonic(), 0
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = {pool.submit(self.work, *task): task for task in tasks}
            try:
                for future in concurrent.futures.as_completed(futures):
                    run, _ = futures[future]
                    future.result()
                    done += 1
                    left[id(run)] -= 1
                    if not left[id(run)]:
                        passed = time.monotonic() - start
                        say(f"[{done}/{len(tasks)}] {run.title}; {duration(passed)}, "
                            f"about {duration(passed / done * (len(tasks) - done))} left")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
