#!/usr/bin/env bash
# run.sh [PART...] [MODEL] [DATA]: measures quality and speed of every method and writes tables into
# docs/benchmarks.md and figures into docs/. Parts: dense, table, sweep, location, usage (by default all), and figures,
# which writes both from the results there are. MODEL is a Hugging Face folder (examples/models/tiny), DATA a folder of
# JSONL; without it questions are made. What is finished is not run again. README.md has the variables that set counts.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

if [[ -z ${BIN:-} ]]; then
  bash "$root/cmake/build_release.sh" lazyllm-evaluate lazyllm-generate
  export BIN=$root/build/release/bin
fi
commit=$(git -C "$root" rev-parse --short HEAD)
git -C "$root" diff --quiet HEAD -- include examples bench || commit+=" with changes"
CONTEXT="$(lscpu | sed -n 's/^Model name: *//p' | head -1), $(nproc) cores; commit $commit; $(date -u +%F)"
export CONTEXT
exec python3 "$here/quality.py" "$@"
