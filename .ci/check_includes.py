#!/usr/bin/env python3
"""Checks the headers' lengths, that no folder of the library includes one below it in ORDER, and that the examples, and
the benchmarks of the reference engine, use only what the library shows its users."""

import pathlib
import re
import subprocess
import sys

# Each line may include itself and the lines above it; two names on a line may not include each other.
ORDER = """
version.hpp engine
backend
backend/cpu backend/cuda
aux_cache policy score
parallel
pruner
layer
core.hpp
cuda_context.hpp
check
check.hpp
lazyllm.hpp cuda.cuh mpi.hpp nccl.hpp
"""
MAX_LINES = {".hpp": 300, ".cuh": 400}

LIBRARY = pathlib.PurePath("include/lazyllm")
LINE_OF = {name: line for line, names in enumerate(ORDER.split("\n")) for name in names.split()}


def place(header):
    """The folder of a header such as core/rows.hpp, or itself where it lies in none."""
    path = pathlib.PurePath(header)
    return str(path if path.parent == pathlib.PurePath() else path.parent)


def wrong_lines(path, text):
    inside = LIBRARY in path.parents
    here = place(path.relative_to(LIBRARY)) if inside else None
    if inside and here not in LINE_OF:
        yield 1, f"{here} is not in ORDER"
        return
    if inside and text.count("\n") > MAX_LINES[path.suffix]:
        yield text.count("\n"), f"more than {MAX_LINES[path.suffix]} lines"
    for number, line in enumerate(text.split("\n"), 1):
        include = re.match(r'\s*#\s*include\s*["<]lazyllm/([^">]+)', line)
        if include and inside:
            there = place(include[1])
            if there != here and LINE_OF.get(there, len(LINE_OF)) >= LINE_OF[here]:
                yield number, f"{here} includes {include[1]}, which is not above it in ORDER"
        if not inside and include and "/" in include[1]:
            yield number, f"includes lazyllm/{include[1]}: users include the headers beside the folders"
        if not inside and re.search(r"\bdetail::", line):
            yield number, "names a detail:: of the library"
        if not inside and re.match(r"\s*#\s*(define|if).*\bLAZYLLM_", line):
            yield number, "has a macro with the library's prefix: those of the host begin with LLAMA_"


listed = subprocess.run(["git", "ls-files", "include", "examples", "bench/evaluate", "bench/examples"], capture_output=True, text=True, check=True)
failures = 0
for path in map(pathlib.PurePath, listed.stdout.split()):
    if path.suffix in (".hpp", ".cpp", ".cuh", ".cu"):
        for number, what in wrong_lines(path, pathlib.Path(path).read_text(encoding="utf-8")):
            print(f"{path}:{number}: {what}")
            failures += 1
sys.exit(failures > 0)
