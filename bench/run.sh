#!/usr/bin/env bash
# run.sh [micro] [ttft] [attention] [peers] [generation]: builds the benchmarks, runs those named (by default all) and
# writes their tables into docs/benchmarks.md. Takes about two hours; nothing else should run meanwhile. Changes that are
# not committed are refused: a figure names its commit. $THREADS (2) and $REPEATS (5) are those of the programs, $PYTHON
# (python3) has PyTorch and transformers for peers, $GGUF a file of each shape for llama-bench: "SHAPE=FILE SHAPE=FILE".
# generation fetches the pretrained models.
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- micro ttft attention peers generation
declare -A program=([micro]=lazyllm_micro_bench [ttft]=ttft_bench [attention]=attention_bench [peers]=ttft_bench
  [generation]=lazyllm-generate)
programs=()
for kind in "$@"; do
  [[ -v program[$kind] ]] || { echo "run.sh: '$kind' is none of micro, ttft, attention, peers and generation" >&2; exit 2; }
  programs+=("${program[$kind]}")
done
threads=${THREADS:-2}
repeats=${REPEATS:-5}

commit=$(git rev-parse --short HEAD)
if [[ -n $(git status --porcelain -- include examples bench cmake CMakeLists.txt) ]]; then
  echo "run.sh: the sources have changes that are not committed; figures must name a commit" >&2
  exit 1
fi
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

run_attention() {
  echo "== Attention =="
  local case allowed dtype files=() cases=("ALL f32" "AVX512_CORE f32" "AVX2 f32")
  if [[ $isa == *bf16* ]]; then cases=("ALL bf16" "${cases[@]}"); fi
  for case in "${cases[@]}"; do  # what oneDNN may use, and with it the host, and the type
    read -r allowed dtype <<<"$case"
    echo "$case"
    ONEDNN_MAX_CPU_ISA=$allowed "$bin/attention_bench" --dtype "$dtype" --threads "$threads" --repeats "$repeats" \
      --json "$results/attention-$allowed-$dtype.json"
    files+=("$results/attention-$allowed-$dtype.json")
  done
  "$bin/attention_bench" --heads 9 --group 3 --head-dim 64 --keys 4000 32000 --threads "$threads" --repeats "$repeats" \
    --json "$results/attention-long.json"
  "$bin/attention_bench" --kept 50 --threads "$threads" --repeats "$repeats" \
    --json "$results/attention-listed.json"
  python3 bench/make_tables.py attention "${files[@]}" "$results"/attention-{long,listed}.json docs/benchmarks.md \
    --context "$context" --command "ONEDNN_MAX_CPU_ISA=ISA attention_bench --dtype TYPE --threads $threads --repeats $repeats"
}

run_peers() {
  echo "== Peers =="
  local files=() gguf=() file shape
  for file in ${GGUF:-}; do gguf+=(--gguf "$file"); done
  for shape in smollm2 qwen2.5-0.5b; do
    "${PYTHON:-python3}" bench/peers/compare.py --ttft-bench "$bin/ttft_bench" --shape "$shape" --prompt 2000 4000 8000 \
      --threads "$threads" --repeats "$repeats" "${gguf[@]}" --json "$results/peers-$shape.json"
    files+=("$results/peers-$shape.json")
  done
  python3 bench/make_tables.py peers "${files[@]}" docs/benchmarks.md --context "$context" --command \
    "bench/peers/compare.py --ttft-bench ttft_bench --prompt 2000 4000 8000 --threads $threads --repeats $repeats"
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
