#!/usr/bin/env bash
# run.sh [micro] [ttft] [overhead] [attention] [decode] [decode-attention] [int8] [peers] [generation] [short] [serving]
# [busy]: builds the benchmarks, runs those named (by default all) and writes each table into docs/benchmarks.md once all
# of it is measured, between two marks of its kind and of the machine's instruction sets.
# Takes about three hours; nothing else should run meanwhile. Changes that are not committed are refused: a figure names its commit.
# Results lie by commit in build/release/bench-results; what is there is not measured again, so the same command goes on
# with the rest. After $SECONDS_AT_MOST seconds no further case begins, and it ends with status 3. $THREADS (2) and
# $REPEATS (5, in long cases 3 or 1) are those of the programs, $PYTHON (python3) has PyTorch and transformers for
# peers, $GGUF a file of each shape for llama-bench: "SHAPE=FILE SHAPE=FILE", and $GGUF_INT8 files to compare int8 with.
# int8, generation, short, serving and busy fetch the pretrained models; int8 and serving read the prompts in
# $LAZYLLM_TEST_DATA/longbench, by default ../shared/data/longbench.
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- micro ttft overhead attention decode decode-attention int8 peers generation short serving busy
declare -A program=([micro]=lazyllm_micro_bench [ttft]=ttft_bench [overhead]=ttft_bench [attention]=attention_bench [decode]=kernels_bench
  [decode-attention]=kernels_bench [int8]=int8_loss [peers]=ttft_bench [generation]=lazyllm-generate
  [short]=lazyllm-generate [serving]=serving_bench [busy]=lazyllm-generate)
programs=()
for kind in "$@"; do
  [[ -v program[$kind] ]] || { echo "run.sh: '$kind' is none of ${!program[*]}" >&2; exit 2; }
  programs+=("${program[$kind]}")
done
threads=${THREADS:-2}
repeats=${REPEATS:-5}

sources=(include examples bench cmake CMakeLists.txt CMakePresets.json)
commit=$(bash bench/commit.sh "${sources[@]}")

machine=$(bash bench/machine.sh)
# Tables of processors with other instruction sets have places of their own. Their programs run with all of these, and
# with less where that is less.
case $machine in
  *amx_bf16*) section=-amx isas=(ALL AVX512_CORE AVX2) ;;
  *avx512_bf16*) section='' isas=(ALL AVX512_CORE AVX2) ;;
  *avx512f*) section=-avx512 isas=(ALL AVX2) ;;
  *avx2*) section=-avx2 isas=(ALL) ;;
  *) echo "run.sh: docs/benchmarks.md has no tables for $machine, expected AVX2 or better" >&2; exit 1 ;;
esac
has_isa() { [[ " ${isas[*]} " == *" $1 "* ]]; }
for kind in "$@"; do
  for mark in "<!-- $kind$section begin -->" "<!-- $kind$section end -->"; do
    grep -qF "$mark" docs/benchmarks.md || { echo "run.sh: docs/benchmarks.md needs a line '$mark' for $machine" >&2; exit 1; }
  done
done

bash cmake/build_release.sh "${programs[@]}"
bin=build/release/bin
results=build/release/bench-results/$commit-$threads-$repeats
mkdir -p "$results"
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' build/release/CMakeCache.txt)
context="$machine; $("$compiler" --version | head -1); \
commit $commit; $(date -u +%F)"

# measure FILE OPTION PROGRAM…: PROGRAM… OPTION FILE, unless the file of this very command is there.
measure() {
  local file=$1 option=$2
  shift 2
  file=${file%.json}-$(printf '%s\0' "$@" | sha256sum | head -c 8).json
  files+=("$file")
  [[ ! -e $file ]] || return 0
  if ((SECONDS >= ${SECONDS_AT_MOST:-86400})); then
    echo "run.sh: stopped after $SECONDS seconds; the same command goes on" >&2
    exit 3
  fi
  echo "${file##*/}"
  "$@" "$option$file.part" >"$results/output"
  mv "$file.part" "$file"
}

# write KIND COMMAND: makes the tables of `files` and writes them into the document.
write() {
  python3 bench/make_tables.py "$1" "${files[@]}" docs/benchmarks.md "--section=$section" --context "$context" --command "$2"
}

run_micro() {
  echo "== Micro benchmarks =="
  local files=() part
  for part in score 'select|pool|prune' 'gather|scatter|merge|park|revive|prefill|decode'; do
    measure "$results/micro-${part%%|*}.json" --benchmark_out= "$bin/lazyllm_micro_bench" --benchmark_min_time=0.2 \
      --benchmark_out_format=json --benchmark_filter="^($part)"
  done
  write micro "lazyllm_micro_bench --benchmark_min_time=0.2"
}

# shape, dtype, prompt tokens, schedule or preset, turns; what follows the first token is in the tables of generation
ttft_cases=(
  "smollm2 bf16 2000 8:0.3,16:0.5 $repeats"
  "smollm2 bf16 4000 8:0.3,16:0.5 $repeats"
  "smollm2 bf16 8000 8:0.3,16:0.5 3"
  "smollm2 bf16 32000 8:0.3,16:0.5 1"
  "qwen2.5-0.5b bf16 2000 7:0.3,13:0.5 $repeats"
  "qwen2.5-0.5b bf16 4000 7:0.3,13:0.5 $repeats"
  "qwen2.5-0.5b bf16 8000 7:0.3,13:0.5 $repeats"
  "smollm2 bf16 4000 @examples/models/presets/smollm2.json#1.5x 3"
  "smollm2 bf16 4000 @examples/models/presets/smollm2.json#2.34x 3"
  "smollm2 bf16 4000 @examples/models/presets/smollm2.json#3x 3"
  "qwen2.5-0.5b bf16 4000 @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x 3"
  "qwen2.5-0.5b bf16 4000 @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x 3"
  "qwen2.5-0.5b bf16 4000 @examples/models/presets/qwen2.5-coder-0.5b.json#3x 3"
  "134m bf16 1000 4:0.5,7:0.5,10:0.5 3"
  "134m bf16 2000 4:0.5,7:0.5,10:0.5 3"
  "134m bf16 2000 paper 3"
  "134m f32 2000 4:0.5,7:0.5,10:0.5 3"
)

run_ttft() {
  echo "== Time to first token =="
  local files=() case shape dtype prompt schedule turns
  for case in "${ttft_cases[@]}"; do
    read -r shape dtype prompt schedule turns <<<"$case"
    measure "$results/ttft-${case//[ :,\/@#]/-}.json" --json= "$bin/ttft_bench" --shape "$shape" --dtype "$dtype" \
      --prompt "$prompt" --schedule "$schedule" --threads "$threads" --repeats "$turns" --generate 1
  done
  write ttft "ttft_bench --shape SHAPE --dtype TYPE --prompt TOKENS --schedule SCHEDULE --threads $threads --repeats TURNS --generate 1"
}

# shape, prompt tokens, turns; longer prompts have more work beside the same library
overhead_cases=("smollm2 2000 40" "qwen2.5-0.5b 2000 20")

run_overhead() {
  echo "== Overhead at keep 1 =="
  local files=() case shape prompt turns
  for case in "${overhead_cases[@]}"; do
    read -r shape prompt turns <<<"$case"
    measure "$results/overhead-${case// /-}.json" --json= "$bin/ttft_bench" --shape "$shape" --prompt "$prompt" \
      --threads "$threads" --repeats 1 --overhead-turns "$turns" --generate 1
  done
  write overhead "ttft_bench --shape SHAPE --prompt TOKENS --threads $threads --repeats 1 --overhead-turns TURNS --generate 1"
}

run_attention() {
  echo "== Attention =="
  local case allowed dtype keys turns options files=() cases=() without_bf16=("${isas[@]}")
  if [[ $machine == *bf16* ]]; then without_bf16=("${isas[@]:1}"); fi
  for allowed in "${isas[@]}"; do cases+=("$allowed f32 1000,2000,4000,16000 3"); done
  for allowed in "${without_bf16[@]}"; do
    cases+=("$allowed bf16 1000,2000,4000,16000 1" "$allowed f32 4000 1 --rows 512" "$allowed f32 4000 1 --kept 50"
      "$allowed f32 4000 1 --rows 512 --scattered --kept 50")
  done
  cases+=("ALL bf16 4000,32000 3 --heads 9 --group 3 --head-dim 64" "ALL bf16 2000,4000 3 --kept 50"
    "ALL bf16 1000,4000,16000 3 --rows 512" "ALL bf16 1000,4000,16000 3 --rows 512 --scattered --kept 50")
  if [[ $machine == *bf16* ]]; then
    cases=("ALL bf16 1000,2000,4000 $repeats" "ALL bf16 16000 3" "${cases[@]}")
  fi
  for case in "${cases[@]}"; do  # what oneDNN may use, and with it the host, the type, keys, turns and options
    read -r allowed dtype keys turns options <<<"$case"
    # shellcheck disable=SC2086
    measure "$results/attention-${case//[ ,]/-}.json" --json= env ONEDNN_MAX_CPU_ISA="$allowed" "$bin/attention_bench" \
      --dtype "$dtype" --keys ${keys//,/ } --threads "$threads" --repeats "$turns" $options
  done
  write attention "ONEDNN_MAX_CPU_ISA=ISA attention_bench --dtype TYPE --keys KEYS --rows ROWS --scattered --kept PERCENT \
--heads HEADS --group GROUP --head-dim WIDTH --threads $threads --repeats TURNS"
}

# kernels KIND BENCHMARK CASE…: measures the benchmark of kernels_bench with what oneDNN may use, and with it the host, and
# with a type.
kernels() {
  local kind=$1 benchmark=$2 files=() case allowed type
  shift 2
  for case in "$@"; do
    read -r allowed type <<<"$case"
    has_isa "$allowed" || continue
    measure "$results/$kind-${case// /-}.json" --benchmark_out= env ONEDNN_MAX_CPU_ISA="$allowed" "$bin/kernels_bench" \
      --benchmark_out_format=json --benchmark_filter="$benchmark<$type>"
  done
  write "$kind" "ONEDNN_MAX_CPU_ISA=ISA kernels_bench --benchmark_filter='$benchmark<'"
}

run_decode() {
  echo "== Products of few rows =="
  kernels decode few_rows "ALL bf16" "ALL int8" "ALL f32" "AVX512_CORE bf16" "AVX512_CORE int8" "AVX2 bf16" "AVX2 int8" "AVX2 f32"
}

run_decode-attention() {
  echo "== Attention of few rows =="
  kernels decode-attention few_layers_attend "ALL bf16" "AVX512_CORE bf16" "AVX2 bf16" "ALL f32" "AVX2 f32"
}

run_int8() {
  echo "== Weights in int8 =="
  local files=() model
  local fixed=(--dtype bf16 --prompts-limit 16 --prompt-tokens 2048 --tokens 32 --threads "$threads")
  for model in smollm2 qwen2.5-coder-0.5b; do
    measure "$results/int8-$model.json" --json= "$bin/int8_loss" --model "$(bash examples/models/fetch.sh "$model")" \
      --data "${LAZYLLM_TEST_DATA:-../shared/data}/longbench" "${fixed[@]}"
  done
  write int8 "int8_loss --model MODEL --data longbench ${fixed[*]}"
}

# shape, prompt tokens, schedule, the host's weights, turns
peers_cases=(
  "smollm2 2000 8:0.3,16:0.5 dtype $repeats"
  "smollm2 4000 8:0.3,16:0.5 dtype $repeats"
  "smollm2 8000 8:0.3,16:0.5 dtype 1"
  "smollm2 2000 8:0.3,16:0.5 int8 3"
  "smollm2 4000 8:0.3,16:0.5 int8 3"
  "qwen2.5-0.5b 2000 7:0.3,13:0.5 dtype $repeats"
  "qwen2.5-0.5b 4000 7:0.3,13:0.5 dtype $repeats"
  "qwen2.5-0.5b 2000 7:0.3,13:0.5 int8 1"
  "qwen2.5-0.5b 4000 7:0.3,13:0.5 int8 1"
)

run_peers() {
  echo "== Peers =="
  local files=() gguf case file shape prompt schedule weights turns
  for case in "${peers_cases[@]}"; do
    read -r shape prompt schedule weights turns <<<"$case"
    gguf=()
    [[ $weights == int8 ]] && file=${GGUF_INT8:-} || file=${GGUF:-}
    for file in $file; do gguf+=(--gguf "$file"); done
    measure "$results/peers-${case//[ :,]/-}.json" --json= "${PYTHON:-python3}" bench/peers/compare.py \
      --ttft-bench "$bin/ttft_bench" --shape "$shape" --prompt "$prompt" --schedule "$schedule" --weights "$weights" \
      --threads "$threads" --repeats "$turns" "${gguf[@]}"
  done
  write peers "bench/peers/compare.py --ttft-bench ttft_bench --shape SHAPE --prompt TOKENS --schedule SCHEDULE --weights WEIGHTS --threads $threads \
--repeats TURNS --gguf SHAPE=FILE"
}

# model, what oneDNN may use and with it the engine, if not all, and options: its presets, those for any model, prompts of
# 1024 tokens (--context counts the answer's 256, too), and the paper's schedule and unlimited revival
generation_cases=(
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#3x"
  "smollm2 --schedule auto:1.5x"
  "smollm2 --schedule auto:2.34x"
  "smollm2 --schedule auto:3x"
  "smollm2 --schedule auto:1.5x --weights int8"
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x --context 1280"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x --context 1280"
  "smollm2 --schedule @examples/models/presets/smollm2.json#3x --context 1280"
  "smollm2 --schedule auto:2.34x --context 1280"
  "smollm2 --schedule auto:1.5x --context 1280"
  "smollm2 --schedule auto:3x --context 1280"
  "smollm2 --schedule paper"
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x --weights int8"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x --weights int8"
  "smollm2 --schedule @examples/models/presets/smollm2.json#3x --weights int8"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x --weights int8 --context 1280"
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x --weights int8 --context 1280"
  "smollm2 --schedule @examples/models/presets/smollm2.json#3x --weights int8 --context 1280"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x"
  "qwen2.5-coder-0.5b --schedule auto:1.5x"
  "qwen2.5-coder-0.5b --schedule auto:2.34x"
  "qwen2.5-coder-0.5b --schedule auto:3x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x --context 1280"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x --context 1280"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x --context 1280"
  "qwen2.5-coder-0.5b --schedule auto:2.34x --context 1280"
  "qwen2.5-coder-0.5b --schedule auto:1.5x --context 1280"
  "qwen2.5-coder-0.5b --schedule auto:3x --context 1280"
  "qwen2.5-coder-0.5b --schedule paper"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x --weights int8"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x --weights int8"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x --weights int8"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x --weights int8 --context 1280"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x --weights int8 --context 1280"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x --weights int8 --context 1280"
  "smollm2 AVX2 --schedule @examples/models/presets/smollm2.json#2.34x --context 1280"
  "smollm2 AVX2 --schedule @examples/models/presets/smollm2.json#3x --context 1280"
  "smollm2 AVX2 --schedule @examples/models/presets/smollm2.json#2.34x --weights int8 --context 1280"
  "qwen2.5-coder-0.5b AVX2 --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x --context 1280"
  "qwen2.5-coder-0.5b AVX2 --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x --context 1280"
  "qwen2.5-coder-0.5b AVX2 --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x --weights int8 --context 1280"
  "smollm2 AVX2 --schedule @examples/models/presets/smollm2.json#1.5x --context 1280"
  "qwen2.5-coder-0.5b AVX2 --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x --context 1280"
  "smollm2 AVX2 --schedule auto:1.5x --context 1280"
  "qwen2.5-coder-0.5b AVX2 --schedule auto:1.5x --context 1280"
  "smollm2 AVX512_CORE --schedule @examples/models/presets/smollm2.json#2.34x --context 1280"
  "smollm2 AVX512_CORE --schedule @examples/models/presets/smollm2.json#3x --context 1280"
  "qwen2.5-coder-0.5b AVX512_CORE --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x --context 1280"
  "qwen2.5-coder-0.5b AVX512_CORE --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x --context 1280"
)

# Sets `prompt`, which generation and busy answer: a report of LongBench's, whose middle goes where it does not fit; without
# LongBench a text of 4000 tokens.
choose_prompt() {
  local reports=${LAZYLLM_TEST_DATA:-../shared/data}/longbench/gov_report.jsonl
  prompt=examples/prompts/keepers_log.txt
  [[ -e $reports ]] || return 0
  prompt=$results/gov_report-2.txt
  python3 -c 'import json, sys; print(json.loads(sys.stdin.readlines()[1])["prompt"], end="")' <"$reports" >"$prompt"
}

# The same, for 384 tokens of prompt, the fewest that presets prune, and 256 of answer.
short_cases=(
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#3x"
  "smollm2 --schedule auto:1.5x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#1.5x --weights int8"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x"
  "qwen2.5-coder-0.5b --schedule auto:1.5x"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x --weights int8"
  "smollm2 AVX2 --schedule @examples/models/presets/smollm2.json#1.5x"
  "smollm2 AVX2 --schedule @examples/models/presets/smollm2.json#3x"
  "qwen2.5-coder-0.5b AVX2 --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#1.5x"
  "qwen2.5-coder-0.5b AVX2 --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#3x"
)

# answers KIND CASE…: measures the cases and writes their tables.
answers() {
  local kind=$1 files=() case model allowed options
  shift
  choose_prompt
  local fixed=(--chat --dtype bf16 --prompt-file "$prompt" --max-tokens "${TOKENS:-256}" --ignore-stop --compare
    --threads "$threads" --repeats 3)
  for case in "$@"; do
    read -r model options <<<"$case"
    allowed=ALL
    [[ $options == --* ]] || read -r allowed options <<<"$options"
    has_isa "$allowed" || continue
    [[ $options == *--context* ]] || options+=" --context 4096"
    # shellcheck disable=SC2086
    measure "$results/$kind-${case//[ :,\/@#]/-}.json" --json= env ONEDNN_MAX_CPU_ISA="$allowed" "$bin/lazyllm-generate" \
      --model "$(bash examples/models/fetch.sh "$model")" $options "${fixed[@]}"
  done
  write "$kind" "ONEDNN_MAX_CPU_ISA=ISA lazyllm-generate --model MODEL --schedule SCHEDULE --weights WEIGHTS --context TOKENS ${fixed[*]/#*\//}"
}

run_generation() {
  echo "== Generation =="
  answers generation "${generation_cases[@]}"
}

run_short() {
  echo "== Generation after 384 tokens =="
  answers short "${short_cases[@]/%/ --context 640}"
}

serving_cases=(
  "smollm2 auto:1.5x"
  "smollm2 @examples/models/presets/smollm2.json#2.34x"
  "qwen2.5-coder-0.5b auto:1.5x"
  "qwen2.5-coder-0.5b @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x"
)

run_serving() {
  echo "== Serving =="
  local files=() case model schedule
  local fixed=(--dtype bf16 --threads "$threads" --slots 4 --load 80 --prompt-tokens 2048 --conversations 8)
  for case in "${serving_cases[@]}"; do
    read -r model schedule <<<"$case"
    measure "$results/serving-${case//[ :,\/@#]/-}.json" --json= "$bin/serving_bench" --schedule "$schedule" \
      --model "$(bash examples/models/fetch.sh "$model")" --data "${LAZYLLM_TEST_DATA:-../shared/data}/longbench" "${fixed[@]}"
  done
  write serving "serving_bench --model MODEL --schedule SCHEDULE --data longbench ${fixed[*]}"
}

busy_cases=(
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x"
  "smollm2 --schedule @examples/models/presets/smollm2.json#2.34x --weights int8"
  "qwen2.5-coder-0.5b --schedule @examples/models/presets/qwen2.5-coder-0.5b.json#2.34x"
)

busy_process=
trap '[[ -z $busy_process ]] || kill "$busy_process"' EXIT

# beside_busy PROGRAM…: PROGRAM… beside a process that needs a whole core.
beside_busy() {
  yes >/dev/null 2>&1 &
  busy_process=$!
  disown
  "$@"
  kill "$busy_process"
  busy_process=
}

run_busy() {
  echo "== Beside a busy process =="
  choose_prompt
  local files=() case model options run
  local fixed=(--chat --dtype bf16 --prompt-file "$prompt" --max-tokens 96 --ignore-stop --compare --threads "$threads"
    --repeats 3 --context 2048)
  for case in "${busy_cases[@]}"; do
    read -r model options <<<"$case"
    # shellcheck disable=SC2206
    run=("$bin/lazyllm-generate" --model "$(bash examples/models/fetch.sh "$model")" $options "${fixed[@]}")
    measure "$results/busy-${case//[ :,\/@#]/-}-quiet.json" --json= "${run[@]}"
    measure "$results/busy-${case//[ :,\/@#]/-}-busy.json" --json= beside_busy "${run[@]}"
  done
  write busy "lazyllm-generate --model MODEL --schedule SCHEDULE --weights WEIGHTS ${fixed[*]/#*\//}
yes >/dev/null & lazyllm-generate --model MODEL --schedule SCHEDULE --weights WEIGHTS ${fixed[*]/#*\//}"
}

for kind in "$@"; do "run_$kind"; done
echo "Tables written to docs/benchmarks.md"
