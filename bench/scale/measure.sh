#!/usr/bin/env bash
# measure.sh MODEL PROMPT_FILE [OUT]: TTFT with 1, 2 and 4 ranks on this machine, dense and pruned, and the times of the
# collectives, as lines of JSON in OUT, by default build/scale.jsonl. Takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
sources=(include examples bench cmake CMakeLists.txt CMakePresets.json)
commit=$(bash bench/commit.sh "${sources[@]}")
model=${1:?usage: measure.sh MODEL PROMPT_FILE [OUT]}
prompt=${2:?usage: measure.sh MODEL PROMPT_FILE [OUT]}
out=${3:-build/scale.jsonl}
bin=build/release/bin
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1

json=$(mktemp)
trap 'rm -f "$json"' EXIT
: >"$out"

# What the machine can show: others' use of it, and one process beside two that know nothing of each other.
busy() { awk '/^cpu /{print $2 + $3 + $4 + $7 + $8, $2 + $3 + $4 + $5 + $6 + $7 + $8}' /proc/stat; }
dense_ms() {
  "$bin/lazyllm-generate" --threads 1 --dtype bf16 --model "$model" --prompt-file "$prompt" --chat --context 1025 \
    --max-tokens 1 --schedule dense 2>&1 >/dev/null | sed -n 's/.*TTFT \([0-9.]*\) ms.*/\1/p'
}
read -r used all < <(busy)
sleep 3
read -r used_then all_then < <(busy)
alone=$(dense_ms)
both=$({ dense_ms & dense_ms; wait; } | sort -n | tail -1)
awk -v u="$((used_then - used))" -v a="$((all_then - all))" -v alone="$alone" -v both="$both" \
  -v machine="$(bash bench/machine.sh)" -v commit="$commit" -v date="$(date -u +%F)" \
  'BEGIN {printf "{\"machine\": \"%s\", \"commit\": \"%s\", \"date\": \"%s\", ", machine, commit, date
          printf "\"others_use_percent\": %.0f, \"alone_ms\": %s, \"two_at_once_ms\": %s}\n", 100 * u / a, alone, both}' >>"$out"

for ranks in 1 2 4; do
  launch=(mpirun --oversubscribe --bind-to none -n "$ranks")
  "${launch[@]}" "$bin/lazyllm-collectives" >>"$out"
  for tokens in 512 1024 2048; do
    "${launch[@]}" "$bin/lazyllm-generate" --parallel mpi --threads 1 --dtype bf16 --model "$model" --prompt-file "$prompt" \
      --chat --context $((tokens + 1)) --max-tokens 1 --schedule auto:2.34x --compare --repeats 3 --json "$json" >/dev/null 2>&1
    python3 - "$json" "$ranks" >>"$out" <<'END'
import json
import sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
print(json.dumps({"ranks": int(sys.argv[2]), "prompt": report["prompt_tokens"], "dense_ms": report["dense"]["ttft_ms"],
                  "lazy_ms": report["lazy"]["ttft_ms"], "schedule": report["schedule"], "score": report["score"]}))
END
  done
done
cat "$out"
