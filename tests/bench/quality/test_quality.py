"""Tests of bench/quality: costs, means, bars, figures, and whole runs with a stand-in for the programs."""

import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/quality"))
sys.dont_write_bytecode = True

import agreement  # noqa: E402
import measure  # noqa: E402
import paper  # noqa: E402
import plan as planning  # noqa: E402
import plot  # noqa: E402
import quality  # noqa: E402
import recommended  # noqa: E402
import results  # noqa: E402
import schedules  # noqa: E402
import stand_in  # noqa: E402
import tables  # noqa: E402
import usage  # noqa: E402

CONFIG = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32}
PRESETS = {"1%": {"schedule": "3:0.7,5:0.5,7:0.3", "score": "mean:16+pool:5", "protect_first": 4, "protect_last": 24},
           "10%": {"schedule": "2:0.3,5:0.4,7:0.3", "score": "mean:16", "protect_first": 4, "protect_last": 24}}
DATA_SETS = {"one": "single-document QA", "two": "multi-document QA", "three": "multi-document QA"}


class Schedules(unittest.TestCase):
    cost = schedules.Cost(CONFIG)

    def test_counts_as_lazyllm_evaluate(self):
        self.assertEqual(self.cost.prefill(2026), 18204569088)  # what it wrote for this model and prompt
        self.assertEqual(self.cost.prefill(499, ((2, 0.5),)), 1189820928)
        self.assertEqual(self.cost.prefill(499, schedules.paper(12)), 1434860032)

    def test_solves_for_a_speedup(self):
        for target in (1.5, 2, 3):
            for schedule_of in (schedules.same_keep([0]), schedules.same_keep([2]),
                                schedules.powers(((3, 0.7), (5, 0.5), (7, 0.3)))):
                schedule = self.cost.solve(2048, target, schedule_of)
                self.assertAlmostEqual(self.cost.speedup(2048, schedule), target, delta=0.03)
        # With all 10 of 12 layers dense it cannot be twice as fast.
        self.assertIsNone(self.cost.solve(2048, 2, schedules.same_keep([10])))

    def test_knows_the_papers_layers(self):
        self.assertEqual([layer for layer, _ in schedules.paper(32)], [9, 19, 28])
        self.assertEqual([layer for layer, _ in schedules.paper(12)], [3, 7, 10])
        self.assertEqual(schedules.parse(schedules.text_of(schedules.paper(12))), schedules.paper(12))


class Means(unittest.TestCase):
    def figures(self, scores, tokens=1000, **fields):
        fields["score"] = 100 * results.mean(scores)
        return results.Figures(len(scores), *(fields.get(name, tokens) for name in results.FIELDS))

    def test_of_items(self):
        def item(scores, operations):
            return {"prompt_tokens": 100, "dense_operations": 12, "runs": [
                {"score": score, "operations": operations, "tokens": 2, "computed_percent": 50, "reserved_percent": 110,
                 "filled_percent": 55} for score in scores]}
        result = {"items": [item([1, 0], 3), item([0.5, 1], 5), item([0, 0], 1)]}
        cost = schedules.Cost(CONFIG)
        found = results.figures_of(result["items"][:2], cost)
        self.assertEqual((found.items, found.score, found.ideal), (2, 62.5, 3))
        self.assertAlmostEqual(found.filtered, 12 / cost.prefill(50))
        self.assertEqual(round(results.figures_of(result["items"], cost).score, 6), round(100 * (0.5 + 0.75) / 3, 6))
        self.assertIsNone(results.figures_of([], cost))

    def test_are_means_of_data_sets_not_of_items(self):
        category = results.mean_figures([self.figures([1, 1, 1]), self.figures([0])])
        self.assertEqual((category.score, category.items, category.ttft), (50, 4, None))

    def test_relative_leaves_out_what_dense_cannot_do(self):
        dense = {"a": self.figures([0.5]), "b": self.figures([0]), "c": self.figures([1])}
        found = results.relative({"a": self.figures([0.25]), "b": self.figures([1]), "c": self.figures([0.9])}, dense)
        self.assertEqual({name: round(value, 9) for name, value in found.items()}, {"a": 50, "c": 90, "average": 70})
        with self.assertRaises(results.Missing):
            results.relative({"b": self.figures([1])}, dense)


class Bootstrap(unittest.TestCase):
    def by_set(self, *sets):
        category = paper.CATEGORIES[0]
        return {planning.DataSet(pathlib.Path(str(i)), category, len(sets)):
                results.Figures(len(scores), *([0] * len(results.FIELDS)), tuple(scores))
                for i, scores in enumerate(sets)}

    def test_items_count_as_in_the_mean_over_data_sets(self):
        draws = results.drawn(self.by_set([100], [0, 0, 0]))["average"]
        self.assertEqual(len(draws), results.DRAWS)
        self.assertAlmostEqual(results.mean(draws), 50, delta=3)
        self.assertEqual({round(score) for score in draws}, {0, 50, 100, 150, 200})

    def test_the_interval_narrows_with_the_items(self):
        def width(count):
            low, high = results.interval(results.drawn(self.by_set([100, 0] * count))["average"])
            self.assertTrue(low < 50 < high)
            return high - low
        self.assertAlmostEqual(width(50), width(2) / 5, delta=5)
        self.assertEqual(results.interval(results.drawn(self.by_set([70, 70]))["average"]), (70, 70))

    def test_one_item_has_no_interval(self):
        one, two = self.by_set([70]), self.by_set([10, 20])
        self.assertEqual(results.drawn(one), {})
        other = {planning.DataSet(pathlib.Path("b"), paper.CATEGORIES[1], 1): figures for figures in two.values()}
        self.assertEqual(list(results.drawn(one | other)), [paper.CATEGORIES[1]])
        self.assertEqual(list(results.drawn(other)), [paper.CATEGORIES[1], "average"])
        self.assertEqual(tables.between(None), "")

    def test_all_methods_have_the_same_draws(self):
        own, other = (results.drawn(self.by_set([scale * x for x in range(9)]))["average"] for scale in (1, 2))
        self.assertEqual([2 * score for score in own], other)


class Bars(unittest.TestCase):
    def test_interpolates_between_neighbours(self):
        points = [(3, 40), (1.5, 90), (2, 80)]
        for speedup, wanted in ((1.75, (85, True)), (2.5, (60, True)), (2, (80, True)), (3.01, (40, True)),
                                (4, (40, False)), (1, (90, False))):
            score, inside = tables.at_speedup(points, speedup)
            self.assertAlmostEqual(score, wanted[0])
            self.assertEqual(inside, wanted[1], speedup)

    def test_the_papers_averages(self):
        # LazyLLM keeps 99 % of Llama 2 7B's score in the paper.
        shares = [lazy / dense for (lazy, _), (dense, _) in zip(paper.TABLE_1["lazy"]["Llama 2 7B"],
                                                                paper.TABLE_1["dense"]["Llama 2 7B"])]
        self.assertAlmostEqual(results.mean(shares), 0.993, delta=0.002)


class Use(unittest.TestCase):
    def test_a_token_counts_once_and_only_the_prompts(self):
        trace = [{"new_tokens": 4, "active": [[0, 1, 2, 3], [1, 3]]}, {"new_tokens": 1, "active": [[0, 4], [1, 2, 4]]},
                 {"new_tokens": 1, "active": [[5], [2, 5]]}]
        self.assertEqual(usage.used_shares(trace, 4), [[1, 1, 1], [0.5, 0.75, 0.75]])

    def test_layers_between_pruning_layers_are_a_group(self):
        self.assertEqual(usage.groups(12, schedules.paper(12)), [range(0, 3), range(3, 7), range(7, 10), range(10, 12)])
        many = usage.groups(12, tuple((layer, 0.9) for layer in range(1, 12)))
        self.assertEqual([layer for layers in many for layer in layers], list(range(12)))
        self.assertEqual(len(many), usage.MOST_GROUPS)

    def test_an_answer_that_has_ended_keeps_its_share(self):
        items = [{"shares": [[1, 1], [0.5, 0.75]]}, {"shares": [[1, 1, 1], [0.25, 0.25, 0.5]]}]
        self.assertEqual(usage.mean_curves(items, [range(0, 1), range(1, 2)]), [[1, 1, 1], [0.375, 0.5, 0.625]])


class Charts(unittest.TestCase):
    def chart(self):
        lines = [plot.Line(f"line {i} <&>", [(0, i), (1, 2 * i), (2.5, 100)], i) for i in range(7)]
        return plot.Chart("title & more", "x label (x)", "y label (%)", [plot.Panel("left", lines),
                                                                        plot.Panel("right", lines[:2])])

    def test_is_a_whole_picture(self):
        picture = plot.svg(self.chart())
        root = ElementTree.fromstring(picture)
        space = "{http://www.w3.org/2000/svg}"
        texts = [element.text for element in root.iter(f"{space}text")]
        for wanted in ("title & more", "x label (x)", "y label (%)", "left", "right", "line 6 <&>", "2.5", "100"):
            self.assertIn(wanted, texts)
        self.assertNotIn("http", picture.replace("http://www.w3.org/2000/svg", ""))
        width, height = map(float, root.get("viewBox").split()[2:])
        lines = list(root.iter(f"{space}polyline"))
        self.assertEqual(len(lines), 9)
        for line in lines:
            for x, y in (map(float, point.split(",")) for point in line.get("points").split()):
                self.assertTrue(0 < x < width and 0 < y < height, (x, y))
        # A point twice as high is twice as far from the axis: 0, 6 and 12 of the last line of the left panel.
        low, middle, _ = (float(point.split(",")[1]) for point in lines[0].get("points").split())
        zero = float(lines[6].get("points").split()[0].split(",")[1])
        self.assertAlmostEqual(zero - middle, 2 * (zero - low), delta=0.2)

    def test_no_two_lines_look_alike(self):
        self.assertEqual(len(set(plot.COLOURS)), 7)
        shapes = {re.sub(r"#\w+", "", plot.marker(style, 0, 0)) for style in range(7)}
        self.assertEqual(len(shapes), 7)

    def test_ticks_are_round(self):
        self.assertEqual(plot.steps(0, 105), [0, 20, 40, 60, 80, 100])
        self.assertEqual(plot.steps(0, 4), [0, 1, 2, 3, 4])


class Agreement(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def presets(self, **figures):
        """A file with a preset for each (ideal speedup, KL, equal) in `figures`, the same in both halves. Those above 3x
        revive more at first."""
        def measured(speedup, kl, equal):
            part = {"kl": kl, "kl_95%": [kl / 2, 2 * kl], "top1": equal, "top1_95%": [0.5, 1.0]}
            first = {"first_revived": 16, "continuations": 4, "revive_from": 9} if speedup > 3 else {}
            return {"decode_revived": 4, **first, "measured": {"ideal_ttft_speedup": speedup, "ttft_speedup": speedup / 2,
                                                      "held_out": part, "searched": part}}

        path = self.folder / "presets.json"
        path.write_text(json.dumps({"model": "model", "presets": {n: measured(*f) for n, f in figures.items()}}))
        return path

    def test_writes_table_and_picture_beside_other_text(self):
        (self.folder / "benchmarks.md").write_text("# Benchmarks\n\nother text\n")
        path = self.presets(fast=(3.1, 0.5, 0.94), middle=(2.4, 0.019, 0.96), slow=(1.5, 0.4, 0.5), good=(2.5, 0.01, 0.98))
        agreement.main([str(path), "--out", str(self.folder)])
        text = (self.folder / "benchmarks.md").read_text()
        self.assertIn("other text", text)
        rows = [line for line in text.splitlines() if line.startswith("| model |")][1:]
        self.assertEqual([row.split(" | ")[1] for row in rows], ["slow", "middle", "good", "fast"])
        self.assertEqual([row.split(" | ")[-1] for row in rows], ["no bar |", "no |", "yes |", "yes |"])
        self.assertIn("| 2.40x | 1.20x | 4 | 0.019 (0.009 to 0.038) |", rows[1])
        self.assertIn("| 3.10x | 1.55x | 16, then 4 from layer 9 on; 4 continuations | 0.500 (", rows[3])
        root = ElementTree.parse(self.folder / "quality-agreement.svg").getroot()
        lines = [element for element in root.iter("{http://www.w3.org/2000/svg}polyline")]
        self.assertEqual(len(lines), 6)  # held out, searched and bars, twice

    def test_says_what_is_missing(self):
        path = self.folder / "presets.json"
        path.write_text(json.dumps({"model": "model", "presets": {"a": {}}}))
        with self.assertRaisesRegex(SystemExit, "missing entry 'measured'"):
            agreement.main([str(path), "--out", str(self.folder)])


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model, self.data = self.folder / "model", self.folder / "data"
        self.model.mkdir()
        self.data.mkdir()
        (self.model / "config.json").write_text(json.dumps(CONFIG))
        (self.model / "model.safetensors").write_text("weights")
        (self.model / "schedules.json").write_text(json.dumps({"format": 1, "layers": 12, "presets": PRESETS}))
        for name, category in DATA_SETS.items():
            lines = [json.dumps({"category": category, "prompt": "text", "max_tokens": 4, "length": 2000 + i})
                     for i in range(8)]
            (self.data / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def run_it(self, *parts, program=None, hours=None, **environment):
        """What it printed; the program that stood in."""
        program = program or stand_in.Program()
        environment = {"BUILD": str(self.folder / "build"), "OUT": str(self.folder / "docs"), "BIN": "bin",
                       "ITEMS": "4", "TABLE_ITEMS": "4", "SWEEP_ITEMS": "2", "THREADS": "2", "TOKENS": "2048", "MACHINE": "a machine", "COMMIT": "abc",
                       **environment}
        fake = types.SimpleNamespace(run=program, CalledProcessError=OSError)
        printed = io.StringIO()
        with mock.patch("measure.subprocess", fake), mock.patch("usage.subprocess", fake), \
                mock.patch.dict("os.environ", environment), contextlib.redirect_stdout(printed):
            quality.main([*parts, "--model", str(self.model), "--data", str(self.data), *(["--hours", hours] if hours else [])])
        return printed.getvalue(), program

    def document(self):
        return (self.folder / "docs/benchmarks.md").read_text()

    def row(self, start):
        return next(line for line in self.document().splitlines() if line.startswith(f"| {start}"))

    def test_everything(self):
        printed, _ = self.run_it()
        self.assertIn("Total time", printed)
        text = self.document()
        for title in ("What was to be reached", "Dense scores", "The paper's Table 1", "The paper's Table 2",
                      "Figure 5", "Figure 6", "Figure 7", "a machine"):
            self.assertIn(title, text)
        self.assertNotIn(str(self.folder), text)
        self.assertIn("ITEMS=4 TABLE_ITEMS=4 SWEEP_ITEMS=2 TOKENS=2048 bash bench/quality/run.sh", text)
        for picture in re.findall(r"\]\((.*?\.svg)\)", text):
            ElementTree.parse(self.folder / "docs" / picture)
        self.assertEqual(len(re.findall(r"\.svg", text)), 3)
        # 4 items of a category are 2 of each of its two data sets.
        self.assertIn("| **multi-document QA** | **96.0** | 4 |", text)
        self.assertIn("| two | 96.0 | 2 |", text)
        cost = schedules.Cost(CONFIG)
        speedup = cost.speedup(2000, schedules.parse(PRESETS["1%"]["schedule"]))
        self.assertIn(f"/ {0.9 * speedup:.2f}x / {speedup:.2f}x", self.row("**LazyLLM, preset 1%**"))
        # Random drop was given the preset's speed, and the stand-in's loss for it.
        score, ideal = re.search(r"\| ([\d.]+) \[.*?\] / [\d.]+x / ([\d.]+)x", self.row("**random drop**")).groups()
        self.assertAlmostEqual(float(ideal), speedup, delta=0.02)
        self.assertAlmostEqual(float(score), 96 * (1 - 0.4 * (speedup - 1)), delta=1)
        self.assertIn("20.05 / 1.20x", text)
        for bar in ("dense score", "LazyLLM (preset 1%) above random", "LazyLLM (preset 1%) above static",
                    "LazyLLM (preset 1%) above prompt", "loss <= 1 %", "loss <= 10 %"):
            ends = ("| yes |", "| no: 2 fewer at 90 |") if bar == "dense score" else ("| yes |",)  # of two categories
            self.assertTrue(self.row(bar).endswith(ends), self.row(bar))

    def test_longbenchs_own_lines(self):
        for name, category in DATA_SETS.items():
            lines = [json.dumps({"category": category, "input": "why?", "context": "text", "length": 2000})] * 4
            (self.data / f"{name}.jsonl").write_text("\n".join(lines))
        prompts, lengths = self.folder / "prompts.json", self.folder / "lengths.json"
        prompts.write_text(json.dumps(dict.fromkeys(DATA_SETS, "{context} {input}")))
        lengths.write_text(json.dumps(dict.fromkeys(DATA_SETS, 5)))
        _, program = self.run_it("dense", "usage", PROMPTS=str(prompts), LENGTHS=str(lengths))
        for call in program.calls:
            if "--data" in call:
                self.assertEqual(call[call.index("--prompts") + 1], str(prompts))
                self.assertEqual(call[call.index("--lengths") + 1], str(lengths))
            else:
                self.assertEqual(call[call.index("--max-tokens") + 1], "5")
        self.assertEqual(program.prompts, {"text why?"})
        self.assertIn("--prompts prompts.json --lengths lengths.json", self.document())
        self.assertRegex(self.document(), "PROMPTS=prompts.json LENGTHS=lengths.json .*run.sh dense usage")

    def test_a_data_file_without_a_line_of_json_is_named(self):
        path = self.data / f"{next(iter(DATA_SETS))}.jsonl"
        for text, reason in (("\n\n", "is empty"), ("\n{", "its first line is no JSON")):
            path.write_text(text)
            with self.assertRaises(SystemExit) as error:
                self.run_it("dense")
            self.assertIn(f"{path}: {reason}", str(error.exception))

    def test_missed_bars_say_by_how_much(self):
        program = stand_in.Program({"lazy": 12, "random-drop": 1, "static": 1})
        self.run_it("table", "sweep", program=program, ITEMS="8")
        self.assertRegex(self.row("loss <= 1 %"), r"no: 1\d\.\d % more on average, 1\d\.\d % more in the worst")
        self.assertRegex(self.row("LazyLLM (preset 1%) above random"), r"0 of 2 categories .*no: 1\d\.\d points in ")
        self.assertRegex(self.row("LazyLLM as in the paper"), r"average 9\.\d %")
        self.assertNotIn("dense score at", self.document())  # its 8 items were not run

    def test_what_is_finished_is_not_run_again(self):
        _, first = self.run_it()
        self.assertTrue(first.calls)
        before = self.document()
        printed, again = self.run_it()
        self.assertEqual(again.calls, [])
        self.assertEqual(before, self.document())
        _, figures = self.run_it("figures")
        self.assertEqual(figures.calls, [])
        _, location = self.run_it("figures", "location")
        self.assertEqual(location.calls, [])
        self.assertEqual(self.document().count("###"), 1)
        self.assertIn("Figure 6", self.document())
        _, more = self.run_it("dense", ITEMS="6")
        self.assertEqual(sorted(call[call.index("--limit") + 1] for call in more.calls), ["3", "3", "6"])
        (self.model / "model.safetensors").write_text("trained on")
        _, other = self.run_it("dense")
        self.assertEqual(len(other.calls), 3)

    def test_each_part_alone(self):
        for part, title in (("location", "Figure 6"), ("usage", "Figure 7")):
            self.run_it(part, BUILD=str(self.folder / part))
            self.assertEqual(self.document().count("###"), 1)
            self.assertIn(title, self.document())

    def test_a_bounded_run_takes_items_evenly(self):
        _, program = self.run_it("table", hours="1")
        limits = [(int(call[call.index("--limit") + 1]), pathlib.Path(call[call.index("--data") + 1]).stem)
                  for call in program.calls]
        rows = len(PRESETS) + 5
        wanted = [(1, "one"), (1, "two"), (1, "three"), (2, "one"), (2, "two"), (2, "three"), (3, "one"), (4, "one")]
        self.assertEqual(sorted(limits), sorted(wanted * rows))
        firsts = [limit for limit, name in limits if name == "one"]
        self.assertEqual(firsts, sorted(firsts))
        self.assertIn("8 items, 2 to 4 of each of 3 data sets", self.document())
        self.assertIn("speedups (–) have not been measured", self.document())
        self.assertRegex(self.row("**LazyLLM, preset 1%**"), r"\[\d+, \d+\] / – / [\d.]+x")
        self.assertTrue(self.row("loss <= 1 % of the average at").endswith("| yes |"))
        self.assertTrue(self.row("LazyLLM (preset 1%) above random").endswith("| yes |"))

    def test_a_bounded_run_measures_each_method_on_its_own_data(self):
        def collection(name):
            path = self.data / f"{name}.jsonl"
            path.write_text("{}\n{}\n")
            return planning.Collection(name, 2000, (planning.DataSet(path, "code completion", 1),))

        runs = [planning.Run(name, planning.DENSE, collection(name), 2) for name in ("short", "long")]
        plan = types.SimpleNamespace(options=None, runs=lambda part: runs,
                                     place=lambda run, data_set: self.folder / f"{run.title}.json")
        measured = []
        measurement = measure.Measurement(plan)
        measurement.run_all = lambda title, tasks, until: measured.extend((run.title, data_set.path.stem) for run, data_set, _ in tasks)
        measurement.measure_evenly("dense", 0)
        self.assertEqual(measured, [("short", "short"), ("long", "long")] * 2)

    def test_speedups_are_of_what_all_methods_have_times_of(self):
        self.run_it("table", "speed", hours="1")
        self.assertNotIn("–", self.row("**LazyLLM, preset 1%**"))
        next(path for path in self.folder.rglob("timed*.json") if path.parent.name == "one").unlink()
        # One method lacks the time of the only data set of a category, which then has no speedup, nor has the average.
        self.run_it("figures", hours="1")
        for method in ("random drop", "static pruning", "LazyLLM, preset 1%"):
            cells = self.row(f"**{method}**").split(" | ")
            self.assertEqual([" / – / " in cell for cell in cells[1:-1]], [True, False, True])

    def test_a_trace_that_fails_is_no_prompt_that_is_too_long(self):
        class Failing(stand_in.Program):
            def __call__(self, command, **options):
                if pathlib.Path(str(command[0])).name != "lazyllm-generate":
                    return super().__call__(command, **options)
                return types.SimpleNamespace(returncode=1, stderr="not enough memory")

        with self.assertRaisesRegex(SystemExit, "lazyllm-generate failed for .*: not enough memory"):
            self.run_it("usage", program=Failing())

    def test_results_are_of_one_chat_template(self):
        plans = []
        for template in ("a", "b"):
            (self.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
            plans.append(planning.Plan(planning.settings(str(self.model), str(self.data), None, True, {})).folder)
        self.assertNotEqual(*plans)

    def test_margins_of_a_bounded_run_name_both_speedups_and_a_draw(self):
        self.run_it("table", hours="1", program=stand_in.Program({"lazy": 0, "random-drop": 0}))
        row = self.row("LazyLLM (preset 1%) above random")
        self.assertRegex(row, r"0 of 2 categories at [\d.]+x, random drop at [\d.]+x; smallest margin \+0\.0 points")
        self.assertTrue(row.endswith("| no: equal in single-document QA |"), row)

    def test_table_2_has_every_method_but_dense(self):
        self.run_it("table", "speed", hours="1")
        table_2 = self.document().split("### The paper's Table 2")[1]
        for method in ("random drop", "static pruning", "prompt compression", "LazyLLM as in the paper",
                       *(f"LazyLLM, preset {preset}" for preset in PRESETS)):
            self.assertRegex(table_2, rf"\| \*\*{method}\*\* \| [\d.]+ % / [\d.]+x / \d+ % / \d+ % \|")
        self.assertNotIn("**dense", table_2)
        self.assertRegex(table_2, r"\| paper, Llama 2[^|]* \| [\d.]+ % / [\d.]+x \|")

    def test_a_bounded_run_of_dense_alone_has_nothing_to_write_yet(self):
        printed, _ = self.run_it("dense", hours="1")
        self.assertIn("dense is left out: there is no result of", printed)
        self.assertFalse((self.folder / "docs").exists())
        self.run_it("dense", "table", hours="1")
        self.assertIn("8 items, 2 to 4 of each of 3 data sets", self.document())
        with self.assertRaisesRegex(SystemExit, "there are no results in"):
            self.run_it("figures", hours="1", BUILD=str(self.folder / "nothing"))

    def test_a_run_whose_time_is_over_keeps_what_all_methods_have(self):
        clock = types.SimpleNamespace(now=0, monotonic=lambda: clock.now, gmtime=lambda: None, strftime=lambda *_: "today")

        def slow(after):
            program = stand_in.Program()

            def run(command, **_):
                clock.now += 60
                return program(command)
            with mock.patch("measure.time", clock), mock.patch("quality.time", clock):
                printed, _ = self.run_it("table", program=run, hours=str(after / 60), JOBS="1", COMMIT=f"after{after}")
            return printed, len(program.calls)

        rows = len(PRESETS) + 5
        printed, calls = slow(4 * rows + 2)  # the fourth of 8 rounds has been begun
        self.assertEqual(calls, 4 * rows + 2)
        self.assertRegex(printed, r"table, item 1 of each data set: \d+ of 21 runs; \d+m00s, about \d+m\d\ds left\n")
        self.assertIn("4 items, 1 to 2 of each of 3 data sets", self.document())
        self.assertIn("a machine; commit after30; today", self.document())
        self.assertEqual(self.document().count("| **average** | **96.0** | 4 |"), 1)  # dense, with more items measured
        self.run_it("figures", hours="1", JOBS="1", COMMIT="later")
        self.assertNotIn("later", self.document())
        _, more = slow(100)
        self.assertEqual(calls + more, 8 * rows)
        self.assertIn("commit after30, after100", self.document())

    def test_a_bounded_run_has_fewer_points_in_its_figures(self):
        for hours, sweep, location in ((None, 24, 31), ("1", 15, 11)):
            for part, runs in (("sweep", sweep), ("location", location)):
                _, program = self.run_it(part, hours=hours, SWEEP_ITEMS="1", BUILD=str(self.folder / f"{part}{hours}"))
                self.assertEqual(len(program.calls), 3 * runs)  # of three data sets

    def test_a_bounded_run_takes_points_of_its_figures_from_the_table(self):
        counts = {"TABLE_ITEMS": "1", "SWEEP_ITEMS": "1", "SEEDS": "2", "SWEEP_SEEDS": "2"}
        _, program = self.run_it("table", hours="1", **counts)
        table = len(program.calls)
        self.assertEqual(table, 3 * 7)  # dense, three baselines, the paper's and two presets
        self.run_it("sweep", program=program, hours="1", **counts)
        self.assertEqual(len(program.calls) - table, 3 * 8)  # two more points of each baseline and of the paper's
        self.assertIn("that of our score has the presets", self.document())

    def test_pretrained_models_are_measured_as_in_the_paper(self):
        with mock.patch("plan.fetched", lambda name: self.folder / name):
            o = planning.settings("smollm2", None, None, False, {"LAZYLLM_TEST_DATA": str(self.folder)})
            self.assertEqual((o.hours, o.chat, o.context, o.longest_answer), (3, True, 4096, 128))
            self.assertEqual((o.model, o.data), (self.folder / "smollm2", self.folder / "longbench"))
            self.assertTrue(o.preset_file.exists())
            o = planning.settings("qwen2.5-coder-1.5b", None, None, False, {"LAZYLLM_TEST_DATA": str(self.folder)})
            self.assertEqual(o.preset_file, self.folder / "qwen2.5-coder-1.5b" / "schedules.json")  # it is not there: automatic
            o = planning.settings("smollm2", str(self.data), 0.5, False, {"CONTEXT": "2048", "SCHEDULES": "mine.json"})
            self.assertEqual((o.hours, o.context, o.data, str(o.preset_file)), (0.5, 2048, self.data, "mine.json"))
        o = planning.settings(str(self.model), str(self.data), None, False, {})
        self.assertEqual((o.hours, o.chat, o.context, o.longest_answer), (0, False, 0, 0))

    def test_every_program_gets_the_limits(self):
        (self.data / "three.jsonl").write_text(
            json.dumps({"category": "few-shot learning", "prompt": "text", "length": 2000, "max_tokens": 9}) + "\n")
        with mock.patch.object(planning, "is_pretrained", lambda _: True), \
                mock.patch.object(planning, "fetched", pathlib.Path):
            _, program = self.run_it("table", "usage", SCHEDULES=str(self.model / "schedules.json"), LONGEST_ANSWER="3")
        for call in program.calls:
            self.assertEqual(call[call.index("--context") + 1], "4096")
            if "--trace" in call:
                self.assertEqual(call[call.index("--max-tokens") + 1], "3")
            else:
                self.assertEqual(call[call.index("--longest-answer") + 1], "3")
                self.assertIn("--chat", call)
        # lazyllm-evaluate knows the few-shot sets itself.
        traces = ["--chat" in call for call in program.calls if "--trace" in call]
        self.assertEqual((traces.count(True), traces.count(False)), (4, 2))
        self.assertRegex(self.document(), "LONGEST_ANSWER=3 .*bash bench/quality/run.sh table usage --model model")
        self.assertIn("--chat --context 4096 --longest-answer 3 --dtype bf16", self.document())

    def test_a_model_that_is_neither_a_folder_nor_a_name_is_refused_before_the_build(self):
        errors = io.StringIO()
        with mock.patch.object(subprocess, "run", side_effect=AssertionError), mock.patch.dict("os.environ", {"BIN": ""}), \
                contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
            quality.main(["--model", "smolm2"])
        self.assertIn("--model smolm2: there is no such folder, nor a model of this name; known are: "
                      "qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, smollm2\n", errors.getvalue())

    def test_a_model_that_nobody_has_calibrated_has_the_recommended_presets(self):
        (self.model / "schedules.json").unlink()
        _, program = self.run_it("table")
        used = {(call[call.index("--schedule") + 1], call[call.index("--score") + 1], call[call.index("--decode-revived") + 1],
                 "--first-revived" in call, call[call.index("--revive-from") + 1] if "--revive-from" in call else "")
                for call in program.calls if "--decode-revived" in call}
        widths = recommended.Widths(128, 4, 2, 32, 256)
        expected = {(schedules.text_of(tuple(recommended.recommended(12, speedup, widths).items())),
                     "mean:32+heads:max+pool:15", *(("3", True, "7") if speedup > 2 else ("4", False, "7")))
                    for speedup in (1.5, 2.34, 3)}
        self.assertEqual(used, expected)
        for name in ("auto:1.5x", "auto:2.34x", "auto:3x"):
            self.assertTrue(self.row(f"**LazyLLM, preset {name}**"))

    def test_dense_needs_no_schedules(self):
        printed, _ = self.run_it("dense", SCHEDULES="nowhere.json")
        self.assertIn("table is left out: nowhere.json is missing", printed)
        self.assertIn("dense score at data", self.row("dense score"))

    def test_timing_has_the_machine_for_itself(self):
        _, program = self.run_it("table", "speed", JOBS="2")
        for call in program.calls:
            timed = call[call.index("--speed-items") + 1] != "0"
            self.assertEqual(call[call.index("--threads") + 1], "2" if timed else "1")

    def test_failures_are_said_and_leave_the_document(self):
        for environment, program, message in (
                ({}, stand_in.Program(bad="three"), r"failed for .* on .*three.*the data are bad"),
                ({"ITEMS": "0"}, None, "ITEMS=0 is out of range"),
                ({"SCHEDULES": "nowhere.json"}, None, "nowhere.json is missing: lazyllm-calibrate")):
            with self.assertRaisesRegex(SystemExit, message):
                self.run_it(program=program, **environment)
            self.assertFalse((self.folder / "docs").exists())
        for wrong in (["dense", "one"], ["--hours", "0"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
                quality.main(wrong)
            self.assertRegex(said.getvalue(), "'one' is not a part|--hours 0 is out of range")

    def test_other_text_of_the_document_stays(self):
        (self.folder / "docs").mkdir()
        (self.folder / "docs/benchmarks.md").write_text("# Title\n\nBefore.\n")
        self.run_it("dense")
        once = self.document()
        self.assertTrue(once.startswith("# Title\n\nBefore.\n\n## Quality of model\n\n<!-- quality-model begin -->\n"))
        (self.folder / "docs/benchmarks.md").write_text(once + "\nAfter.\n")
        self.run_it("usage")
        self.assertTrue(self.document().startswith("# Title\n\nBefore.\n"))
        self.assertTrue(self.document().endswith("<!-- quality-model end -->\n\nAfter.\n"))
        self.assertEqual(self.document().count("## Quality of model"), 1)
        self.run_it("table", CONTEXT="2048")
        self.assertIn("\n## Quality of model, context 2048\n\n<!-- quality-model-2048 begin -->\n", self.document())
        self.assertEqual(self.document().count("<!-- quality-model begin -->"), 1)
        with self.assertRaisesRegex(ValueError, "one '<!-- quality-model begin -->'"):
            quality.with_section(once + once, "quality-model", "", "")


if __name__ == "__main__":
    unittest.main()
