#!/usr/bin/env bash
# run.sh [PART...] [--model NAME|FOLDER] [--data FOLDER] [--hours H] [--chat]: measures quality and speed of every method
# and writes tables into docs/benchmarks.md and figures into docs/. Parts: dense, table, speed, sweep, location, usage (by
# default all); with figures both are written from the results there are, of the parts named or of all. What is finished
# is not run again.
# README.md says what is measured, and which variables set counts.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

COMMIT=$(git -C "$root" rev-parse --short HEAD)
sources=(include examples bench/evaluate bench/quality cmake CMakeLists.txt CMakePresets.json)
(cd "$root" && bash bench/commit.sh "${sources[@]}" >/dev/null)
MACHINE=$(bash "$root/bench/machine.sh")
export COMMIT MACHINE
exec python3 "$here/quality.py" "$@"
