"""bench/recommended.py has the library's presets: test_recommended_copy.py PRINT_RECOMMENDED."""

import json
import pathlib
import subprocess
import sys
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "quality")]
sys.dont_write_bytecode = True

import recommended  # noqa: E402
import schedules  # noqa: E402

PROGRAM = sys.argv.pop()
CONFIG = {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
          "intermediate_size": 1536}


class Copy(unittest.TestCase):
    def test_presets_are_the_librarys(self):
        lines = subprocess.run([PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines()
        self.assertEqual(len(lines), 96 * 7 * 2)
        for line in map(json.loads, lines):
            layers, speedup = line.pop("layers"), line.pop("speedup")
            widths = recommended.Widths(576, 9, 3, 64, 1536) if line.pop("hidden_size") == 576 else None
            with self.subTest(layers=layers, speedup=speedup):
                if layers > 1:  # a model of one layer is not pruned
                    schedule = schedules.parse(line.pop("schedule"))
                    cuts = recommended.recommended(layers, speedup, widths)
                    self.assertEqual(schedule, tuple(cuts.items()))
                    self.assertEqual(line, recommended.options(cuts, speedup))
                else:
                    self.assertEqual((line["schedule"], recommended.recommended(1, speedup)), ("dense", {}))

    def test_names_are_the_programs_schedules(self):
        self.assertEqual(list(schedules.automatic(CONFIG)), ["auto:1.5x", "auto:2.34x", "auto:3x"])


if __name__ == "__main__":
    unittest.main()
