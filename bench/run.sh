#!/usr/bin/env bash
# run.sh [micro] [ttft] [generation]: builds the benchmarks, runs those named (by default all) and writes their tables
# into docs/benchmarks.md. Takes about half an hour; nothing else should run meanwhile. Changes that are not committed
# are refused: a figure names its commit. generation fetches the pretrained models. $THREADS (2), $REPEATS (5).
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- micro ttft generation
for kind in "$@"; do
  [[ $kind =~ ^(micro|ttft|generation)$ ]] || { echo "run.sh: '$kind' is not micro, ttft or generation" >&2; exit 2; }
done
threads=${THREADS:-2}
repeats=${REPEATS:-5}

commit=$(git rev-parse --short HEAD)
if ! git diff --quiet HEAD -- include examples bench; then
  echo "run.sh: include, examples or bench have changes that are not committed; figures must name a commit" >&2
  exit 1
fi
declare -A program=([micro]=lazyllm_micro_bench [ttft]=ttft_bench [generation]=lazyllm-generate)
programs=()
for kind in "$@"; do programs+=("${program[$kind]}"); done
bash cmake/build_release.sh "${programs[@]}"
bin=build/release/bin
results=build/release/bench-results
mkdir -p "$results"
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' build/release/CMakeCache.txt)
isa=
for feature in avx2 avx512f avx512_bf16 amx_bf16; do
  if grep -qw "$feature" /proc/cpuinfo; then isa+=" $feature"; fi
done
context="$(lscpu | sed -n 's/^Model name: *//p' | head -1), $(nproc) cores, ISA:${isa:- none of AVX}; $("$compiler" --version | head -1); \
commit $commit; $(date -u +%F)"

run_micro() {
  echo "== Micro benchmarks =="
  "$bin/lazyllm_micro_bench" --benchmark_min_time=0.2 --benchmark_out="$results/micro.json" --benchmark_out_format=json
  python3 bench/make_tables.py micro "$results/micro.json" docs/benchmarks.md --context "$context" --command \
    "lazyllm_micro_bench --benchmark_min_time=0.2"
}

# shape, dtype, prompt tokens, schedule
ttft_cases=(
  "134m bf16 1000 4:0.5,7:0.5,10:0.5"
  "134m bf16 2000 4:0.5,7:0.5,10:0.5"
  "134m bf16 2000 paper"
  "134m bf16 2000 6:0.7"
  "134m bf16 2000 10:0.9"
  "134m f32 2000 4:0.5,7:0.5,10:0.5"
  "1.1b bf16 2000 7:0.5,13:0.5,19:0.5"
  "1.1b bf16 2000 paper"
)

run_ttft() {
  echo "== Time to first token =="
  local files=() case shape dtype prompt schedule file
  for case in "${ttft_cases[@]}"; do
    read -r shape dtype prompt schedule <<<"$case"
    file=$results/ttft-${case//[ :,]/-}.json
    echo "$case"
    "$bin/ttft_bench" --shape "$shape" --dtype "$dtype" --prompt "$prompt" --schedule "$schedule" \
      --threads "$threads" --repeats "$repeats" --generate 68 --json "$file"
    files+=("$file")
  done
  local command="ttft_bench --shape SHAPE --dtype TYPE --prompt TOKENS --schedule SCHEDULE --threads $threads"
  command+=" --repeats $repeats --generate 68"
  python3 bench/make_tables.py ttft "${files[@]}" docs/benchmarks.md --context "$context" --command "$command"
}

# model, options: its presets, and the paper's schedule and unlimited revival
generation_cases=(
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#3x"
  "smollm2 --schedule paper"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x --weights int8"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x"
  "qwen2.5-coder-0.5b --schedule paper"
)

run_generation() {
  echo "== Generation =="
  local files=() case model options file
  local fixed=(--chat --dtype bf16 --prompt-file examples/prompts/keepers_log.txt --max-tokens "${TOKENS:-256}" --ignore-stop
    --compare --threads "$threads" --repeats "$repeats")
  for case in "${generation_cases[@]}"; do
    read -r model options <<<"$case"
    file=$results/generation-${case//[ :,\/@#]/-}.json
    echo "$case"
    # shellcheck disable=SC2086
    "$bin/lazyllm-generate" --model "$(bash examples/models/fetch.sh "$model")" $options "${fixed[@]}" --json "$file" >/dev/null
    files+=("$file")
  done
  python3 bench/make_tables.py generation "${files[@]}" docs/benchmarks.md --context "$context" --command \
    "lazyllm-generate --model MODEL --schedule SCHEDULE ${fixed[*]}"
}

for kind in "$@"; do "run_$kind"; done
echo "Tables written to docs/benchmarks.md"
