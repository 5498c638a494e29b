"""The page of `lazyllm-generate --report` as Chromium draws it: test_report_browser.py LAZYLLM_GENERATE."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BROWSER = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
GENERATE = sys.argv.pop()
EXAMPLES = pathlib.Path(__file__).resolve().parents[4] / "examples"
MODEL = EXAMPLES / "models" / "tiny"
SMOLLM2 = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lazyllm" / "smollm2"


class Page(unittest.TestCase):
    def draw(self, *options):
        """As `draw_run`, of a short run of the embedded model."""
        return self.draw_run("--model", MODEL, "--prompt", "The mill is red. " * 30, "--max-tokens", "5", "--schedule", "2:0.5",
                             "--ignore-stop", *options)

    def draw_run(self, *options):
        """The elements of the page after its script has run, and the figures of the run."""
        with tempfile.TemporaryDirectory() as folder:
            page, figures = pathlib.Path(folder) / "page.html", pathlib.Path(folder) / "figures.json"
            subprocess.run([GENERATE, "--report", page, "--json", figures, *options], check=True, capture_output=True)
            self.assertLess(page.stat().st_size, 5_000_000)
            drawn = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
                                    "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True, timeout=120)
            return drawn.stdout, json.loads(figures.read_text())

    def check(self, dom, figures):
        # A token has a colour, is the one that is written, or comes later.
        tokens = re.findall(r'<span [^>]*class="t (d\d+|new|later)[ "]', dom)
        self.assertEqual(len(tokens), figures["prompt_tokens"] + 5)
        self.assertEqual(sum(kind.startswith("d") for kind in tokens), figures["prompt_tokens"])
        self.assertEqual(tokens[-5:], ["new"] + ["later"] * 4)
        self.assertIn(">mill</span>", dom.replace("> ", ">"))
        settings = re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', dom)
        self.assertIn(("schedule", "2:0.5"), settings)
        names = {name for name, _ in settings}
        self.assertLessEqual({"model", "dtype", "threads", "score", "max tokens"}, names)
        self.assertFalse({"text", "ttft ms", "kv bytes", "revived tokens"} & names)

    def test_a_lazy_run_alone(self):
        dom, figures = self.draw()
        self.check(dom, figures)
        self.assertNotIn("Generation speedup", re.sub("<script.*?</script>", "", dom, flags=re.DOTALL))

    def test_a_mark_wider_than_its_token_has_room(self):
        dom, _ = self.draw()
        room = re.findall(r'<span [^>]*data-r="\d+"[^>]*--room: ([\d.]+)px[^>]*>([^<]*)</span>', dom)
        self.assertTrue(any(text.strip() == "." and float(width) > 0 for width, text in room), room)
        self.assertTrue(any(text.strip() == "mill" and float(width) == 0 for width, text in room), room)

    def test_a_pretrained_model_and_a_prompt_of_4000_tokens(self):
        if not SMOLLM2.is_dir():
            print("skipped: a page of smollm2: it is not in the cache")
            self.skipTest("smollm2 is not in the cache")
        dom, figures = self.draw_run(
            "--model", SMOLLM2, "--chat", "--dtype", "bf16", "--prompt-file", EXAMPLES / "prompts" / "keepers_log.txt",
            "--schedule", f"@{EXAMPLES / 'models' / 'presets' / 'smollm2.json'}#2.34x", "--max-tokens", "5", "--ignore-stop")
        self.assertGreater(figures["prompt_tokens"], 3900)
        tokens = re.findall(r'<span [^>]*class="t (d\d+|new|later)[ "]', dom)
        self.assertEqual(len(tokens), figures["prompt_tokens"] + 5)
        # Most of the prompt has stopped at one of the cuts; the question at its end has gone on.
        depths = [int(kind[1:]) for kind in tokens if kind.startswith("d")]
        self.assertLess(sum(depth == max(depths) for depth in depths), len(depths) / 2)
        self.assertEqual(set(depths[-32:]), {max(depths)})

    def test_dense_and_lazy(self):
        dom, figures = self.draw("--compare")
        self.check(dom, figures)
        self.assertIn("Generation speedup", re.sub("<script.*?</script>", "", dom, flags=re.DOTALL))


if __name__ == "__main__":
    if not BROWSER:
        print("skipped: all of test_report_browser: there is no chromium")
        sys.exit()
    unittest.main()
