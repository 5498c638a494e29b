#!/usr/bin/env bash
# run.sh [OPTION...]: builds what needs CUDA, tests it, measures it and prints a short table last, all within a time
# budget. Needs nvcc and cmake, and no network. Without a CUDA device it builds only.
#
#   --parts LIST           what to run after the build, of tests,sanitizer,micro,ttft,peers (default: all)
#   --seconds N            the time for everything (480); what does not fit is stopped or left out, and said to be
#   --results DIR          where results go, as JSON, and the output of each part (build/cuda-bench/results);
#                          measurements that are there already are not made again
#   --build DIR            build folder (build/cuda-bench)
#   --prefix DIR           where packages are that are not installed, Eigen for example; can be repeated
#   --architectures LIST   compute capabilities to build for, such as 90 (the device's; without one "80;90")
#   --document FILE        also writes the tables into FILE, between its markers for them (docs/benchmarks.md has them)
#   --jobs N               compilers at once (all cores)
#   --help                 this text
#
# Parts whose packages are missing are left out and named: Google Benchmark (micro), CLI11, fmt or nlohmann-json (ttft),
# doctest (tests), PyTorch or transformers (peers). Fails if the build, a test or a measurement fails, or if the tests
# did not finish. Give the same --results again to go on with the measurements that there was no time for.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; }
fail_usage() { echo "run.sh: $1 (--help tells more)" >&2; exit 2; }

all_parts=(tests sanitizer micro ttft peers)
parts=$(IFS=,; echo "${all_parts[*]}")
budget=480
build=$root/build/cuda-bench
results=
prefixes=()
architectures=
document=
jobs=$(nproc)
while (($#)); do
  case $1 in
    --help) usage; exit 0 ;;
    --parts | --seconds | --results | --build | --prefix | --architectures | --document | --jobs)
      (($# > 1)) || fail_usage "$1 needs a value"
      case $1 in
        --parts) parts=$2 ;;
        --seconds) budget=$2 ;;
        --results) results=$2 ;;
        --build) build=$2 ;;
        --prefix) prefixes+=("$(realpath -m "$2")") ;;
        --architectures) architectures=$2 ;;
        --document) document=$2 ;;
        --jobs) jobs=$2 ;;
      esac
      shift 2 ;;
    *) fail_usage "unknown option '$1'" ;;
  esac
done
for number in "$budget" "$jobs"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || fail_usage "'$number' is not a whole number of at least 1"
done
for part in ${parts//,/ }; do
  [[ " ${all_parts[*]} " == *" $part "* ]] || fail_usage "part '$part' is none of ${all_parts[*]}"
done
for prefix in ${prefixes[@]+"${prefixes[@]}"}; do
  [[ -d $prefix ]] || fail_usage "--prefix $prefix is not a folder"
done
for tool in nvcc cmake; do
  command -v $tool >/dev/null || { echo "run.sh: $tool was not found on the PATH" >&2; exit 1; }
done
build=$(realpath -m "$build")
results=$(realpath -m "${results:-$build/results}")
mkdir -p "$build" "$results" || exit 1

SECONDS=0
summary=()
failed=0
note() { summary+=("$(printf '%-12s %s' "$1" "$2")"); echo "== $1: $2 =="; }
seconds_left() { echo $((budget - SECONDS - 5)); }  # five for the table

# run NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds, less where less time is left, with its output
# in NAME.log. Returns its status, 124 if it was stopped, and 125 if there was no time to start.
run() {
  local name=$1 limit=$2 left
  shift 2
  left=$(seconds_left)
  if ((left < 3)); then return 125; fi
  if ((limit > left)); then limit=$left; fi
  timeout --kill-after=3 "$limit" "$@" >"$results/$name.log" 2>&1
  local status=$?
  if ((status == 137)); then status=124; fi
  return $status
}

# told STATUS SECONDS: a status of `run` in words.
told() {
  case $1 in
    0) echo "done in $2 s" ;;
    124) echo "stopped after $2 s" ;;
    125) echo "left out: no time was left of $budget s" ;;
    *) echo "FAILED after $2 s" ;;
  esac
}

show_end() { tail -n 25 "$results/$1.log"; }

# The device, if there is one, and what to build for.
gpu=
if ! run device 60 nvcc -o "$build/device" "$root/bench/cuda/device.cu"; then
  show_end device
  echo "run.sh: nvcc did not compile bench/cuda/device.cu within the time there was, $SECONDS s" >&2
  exit 1
fi
if device=$("$build/device" 2>>"$results/device.log"); then
  gpu=${device%|*}
  : "${architectures:=${device##*|}}"
fi
: "${architectures:=80;90}"

commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
git -C "$root" diff --quiet HEAD -- include examples bench 2>/dev/null || commit+=" with changes"
context="${gpu:-no CUDA device}; $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p'); commit $commit; $(date -u +%F)"
echo "$context"
if [[ -n $gpu ]]; then echo "$context" >"$results/context.txt"; fi

# Configuring, without the parts whose packages are missing.
configure() {
  local prefix_path
  prefix_path=$(IFS=';'; echo "${prefixes[*]-}")
  run configure 60 cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DLAZYLLM_CUDA=ON \
    "-DCMAKE_CUDA_ARCHITECTURES=$architectures" "-DCMAKE_PREFIX_PATH=$prefix_path" "$@"
}
missing() { grep -m1 -A3 'CMake Error' "$results/configure.log" | tr '\n' ' ' | sed 's/  */ /g'; }

if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache; fi
if command -v ninja >/dev/null; then export CMAKE_GENERATOR=Ninja; fi
for prefix in ${prefixes[@]+"${prefixes[@]}"}; do
  if [[ -d $prefix/bin ]]; then PATH=$prefix/bin:$PATH; fi
  for folder in "$prefix"/lib "$prefix"/lib/*-linux-gnu; do
    if [[ ! -d $folder ]]; then continue; fi
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}  # for shared libraries of libraries
    if [[ -d $folder/pkgconfig ]]; then
      export PKG_CONFIG_LIBDIR=$folder/pkgconfig PKG_CONFIG_SYSROOT_DIR=${prefix%/usr}  # its files say /usr
    fi
  done
done
with=(-DLAZYLLM_BUILD_EXAMPLES=ON -DLAZYLLM_BUILD_TESTS=ON -DLAZYLLM_BUILD_BENCH=ON)
configured=0
for part in examples tests neither; do
  configure "${with[@]}"
  status=$?
  if ((status == 0)); then configured=1; break; fi
  if ((status == 124 || status == 125)); then note configure "$(told "$status" "$SECONDS")"; exit 1; fi
  case $part in
    examples) with[0]=-DLAZYLLM_BUILD_EXAMPLES=OFF; note examples "left out: $(missing)" ;;
    tests) with[1]=-DLAZYLLM_BUILD_TESTS=OFF; note tests "left out: $(missing)" ;;
    neither) show_end configure ;;
  esac
done
if ((!configured)); then
  echo "run.sh: cmake failed" >&2
  exit 1
fi
grep -h 'Left out:' "$results/configure.log" | sed 's/^-- //' | sort -u

# The targets that there are.
available() { cmake --build "$build" --target help 2>/dev/null | sed 's/^\.\.\. //;s/:.*//' | grep -xE "$1" | sort -u; }
mapfile -t tests < <(available 'test_[a-z0-9_]*cuda[a-z0-9_]*' | grep -v emulated)
mapfile -t programs < <(available 'lazyllm_cuda_micro_bench|ttft_bench')

# What can be built is, even if something else cannot.
go_on=(-k)
if grep -q '^CMAKE_GENERATOR:INTERNAL=Ninja' "$build/CMakeCache.txt" 2>/dev/null; then go_on=(-k 0); fi
start=$SECONDS
run build 300 cmake --build "$build" --parallel "$jobs" --target ${tests[@]+"${tests[@]}"} ${programs[@]+"${programs[@]}"} \
  -- "${go_on[@]}"
status=$?
note build "$(told "$status" $((SECONDS - start))): for ${architectures//;/ and }, ${#tests[@]} test programs, ${programs[*]:-no benchmarks}"
if ((status != 0)); then
  failed=1
  show_end build
  # Ninja says which programs are up to date all the same.
  up_to_date() { cmake --build "$build" --target "$1" -- -n 2>&1 | grep -q 'no work to do'; }
  for target in ${tests[@]+"${tests[@]}"} ${programs[@]+"${programs[@]}"}; do
    if up_to_date "$target"; then continue; fi
    note "$target" "left out: not built"
    for i in "${!tests[@]}"; do if [[ ${tests[i]} == "$target" ]]; then unset "tests[i]"; fi; done
    for i in "${!programs[@]}"; do if [[ ${programs[i]} == "$target" ]]; then unset "programs[i]"; fi; done
  done
fi
bin=$build/bin

run_tests() {
  ((${#tests[@]})) || { note tests "left out: none were built"; return; }
  local start=$SECONDS pattern status skipped
  pattern="^($(IFS='|'; echo "${tests[*]}"))\$"
  run tests 90 ctest --test-dir "$build" --output-on-failure --no-tests=error -j 4 -R "$pattern"
  status=$?
  note tests "$(told "$status" $((SECONDS - start)))$(sed -n 's/^\([0-9]*% tests passed.*\)/; \1/p' "$results/tests.log")"
  skipped=$(sed -n 's/^.* - \(.*\) (Skipped)$/\1/p' "$results/tests.log" | tr '\n' ' ')
  if [[ -n $skipped ]]; then note tests "skipped: $skipped"; fi
  if ((status != 0)); then failed=1; show_end tests; fi
}

run_sanitizer() {
  command -v compute-sanitizer >/dev/null || { note sanitizer "left out: compute-sanitizer was not found"; return; }
  local tool test start status limit end=$((SECONDS + 100))
  export LAZYLLM_TEST_RUNS=0.02
  for tool in memcheck racecheck initcheck; do
    for test in ${tests[@]+"${tests[@]}"}; do
      start=$SECONDS
      limit=$((end - start < 45 ? end - start : 45))
      if ((limit < 3)); then note "$tool" "$test left out: 100 s for all of them were over"; continue; fi
      run "$tool-$test" "$limit" compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/$test"
      status=$?
      # Copies of whole buffers move rows that nothing has written yet, on purpose; kernels must not read such.
      if ((status == 9)) && [[ $tool == initcheck ]] && ! grep -q '__global__ memory read' "$results/$tool-$test.log"; then
        status=0
      fi
      note "$tool" "$test $(told "$status" $((SECONDS - start)))"
      if ((status != 0 && status != 124 && status != 125)); then failed=1; show_end "$tool-$test"; fi
    done
  done
  unset LAZYLLM_TEST_RUNS
}

built() { [[ " ${programs[*]-} " == *" $1 "* ]]; }

# measured NAME LIMIT COMMAND...: runs a measurement that writes NAME.json, unless all of it is there.
measured() {
  local name=$1 start=$SECONDS status
  if [[ -s $results/$name.json ]] && ! grep -q 'no time was left' "$results/$name.json"; then
    note "${name%%-*}" "$name was there"
    return
  fi
  run "$name" "$2" "${@:3}"
  status=$?
  note "${name%%-*}" "$(told "$status" $((SECONDS - start))) $name"
  if ((status != 0)); then rm -f "$results/$name.json"; fi
  if ((status != 0 && status != 124 && status != 125)); then failed=1; show_end "$name"; fi
}

run_micro() {
  built lazyllm_cuda_micro_bench || { note micro "left out: Google Benchmark was not found"; return; }
  measured micro 60 "$bin/lazyllm_cuda_micro_bench" --benchmark_min_time=0.01 --benchmark_out="$results/micro.json" \
    --benchmark_out_format=json
}

# Shape, schedule, batch sizes and prompt lengths, what matters most first.
ttft_cases=(
  "llama-2-7b 6:0.3,16:0.5 1 4096 16384"
  "llama-2-7b paper 1 4096 16384"
  "llama-2-7b 9:0.5,17:0.5,25:0.5 1 4096 16384"
  "llama-2-7b 6:0.3,16:0.5 8 4096 2048 8192"
  "llama-2-7b 6:0.3,16:0.5 1 2048 8192 32768"
  "llama-3-8b 6:0.3,16:0.5 1 4096 16384 2048 8192 32768"
  "llama-3-8b paper 1 4096 16384"
  "llama-3-8b 6:0.3,16:0.5 8 4096 2048 8192"
  "1.1b 4:0.3,11:0.5 1 4096 16384 2048 8192 32768"
  "1.1b paper 1 4096 16384"
  "1.1b 4:0.3,11:0.5 8 4096 2048 8192 16384"
)

run_ttft() {
  built ttft_bench || { note ttft "left out: ttft_bench was not built, its packages were not found"; return; }
  local case shape schedule batch prompts name left
  for case in "${ttft_cases[@]}"; do
    read -r shape schedule batch prompts <<<"$case"
    name=ttft-$shape-${schedule//[:,]/_}-$batch-${prompts// /_}
    left=$(seconds_left)
    if ((left > 240)); then left=240; fi
    # The program stops by itself, between two lengths, before it is stopped.
    # shellcheck disable=SC2086  # several lengths
    measured "$name" 240 "$bin/ttft_bench" --device cuda --shape "$shape" --schedule "$schedule" --batch "$batch" \
      --prompt $prompts --dtype bf16 --generate 17 --repeats 3 --seconds "$((left > 20 ? left - 15 : 5))" \
      --json "$results/$name.json"
  done
}

# run_peers SHAPE...
run_peers() {
  local python=${PYTHON:-python3} shape
  "$python" -c 'import torch, transformers' 2>"$results/peers.log" ||
    { note peers "left out: $(tail -1 "$results/peers.log")"; return; }
  for shape in "$@"; do
    measured "peers-$shape" 90 "$python" "$root/bench/peers/transformers_ttft.py" --shape "$shape" --prompt 4096 16384 \
      --batch 1 8 --repeats 3 --seconds 60 --json "$results/peers-$shape.json"
  done
}

wanted() { [[ ,$parts, == *,$1,* ]]; }

if [[ -z $gpu ]]; then
  note device "no CUDA device: built only"
else
  if wanted tests; then run_tests; fi
  if wanted sanitizer; then run_sanitizer; fi
  if wanted micro; then run_micro; fi
  if wanted peers; then run_peers llama-2-7b; fi  # a bar needs it
  if wanted ttft; then run_ttft; fi
  if wanted peers; then run_peers llama-3-8b 1.1b; fi
fi

# tables KIND FILE...: prints the tables of results, and writes them into the document.
tables() {
  local kind=$1
  shift
  (($#)) || return 0
  if [[ -n $document ]]; then
    python3 "$root/bench/make_tables.py" "$kind" "$@" "$document" --command "bash bench/cuda/run.sh" \
      --context "$(cat "$results/context.txt")" || failed=1
  fi
  if [[ $kind == cuda ]]; then python3 "$root/bench/make_tables.py" cuda-summary "$@" - || failed=1; fi
}

echo
printf '%s\n' "${summary[@]}"
shopt -s nullglob
measurements=("$results"/ttft-*.json "$results"/peers-*.json)
if command -v python3 >/dev/null; then
  [[ -s $results/micro.json ]] && tables cuda-micro "$results/micro.json"
  tables cuda ${measurements[@]+"${measurements[@]}"}
elif ((${#measurements[@]})); then
  echo "No python3 here for the tables: bench/make_tables.py makes them of $results/*.json"
fi
echo "$SECONDS of $budget s; results in $results"
exit "$failed"
