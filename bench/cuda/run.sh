#!/usr/bin/env bash
# run.sh [OPTION...]: builds what needs CUDA, tests it, measures it and prints a short table last, all within a time
# budget. Needs nvcc and cmake, and no network. Without a CUDA device it builds only. nvcc and compute-sanitizer are
# also looked for in $CUDA_HOME and in the usual folder of the toolkit.
#
#   --parts LIST           what to run after the build, of tests,sanitizer,micro,ttft,peers (default: all)
#   --seconds N            the time for everything (480); what does not fit is stopped or left out, and said to be
#   --results DIR          where results go, as JSON, and the output of each part (build/cuda-bench/results);
#                          what is there already of the same GPU, CUDA and commit is not measured again, and with
#                          results of others it ends before the build; DIR.tar.gz has all of it at the end
#   --build DIR            build folder (build/cuda-bench)
#   --prefix DIR           where packages are that are not installed, Eigen for example; can be repeated
#   --architectures LIST   compute capabilities to build for, such as 90 (the device's; without one "80;90")
#   --document FILE        also writes the tables into FILE, between its markers for them (docs/benchmarks.md has them);
#                          refused where the sources have changes that are not committed
#   --jobs N               compilers at once (all cores)
#   --commit TEXT          the commit, for a tree without .git
#   --dry-run              builds and measures nothing: prints the command of each step, and looks whether its options
#                          are right where its program is built; needs no device. Results are DIR/dry-run's
#   --help                 this text
#
# Parts whose packages are missing are left out and named: Google Benchmark (micro), CLI11, fmt or nlohmann-json (ttft),
# doctest (tests), PyTorch or transformers (peers). Fails if the build, a test, also under a sanitizer, or a measurement
# fails, or if the build or the tests did not finish. What else was stopped or left out is no failure but is named at
# the end; the same command goes on with that, and runs the tests again. The sanitizers share 100 s, or with
# --parts sanitizer all the time.
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
commit=
dry=
while (($#)); do
  case $1 in
    --help) usage; exit 0 ;;
    --dry-run) dry=1; shift ;;
    --parts | --seconds | --results | --build | --prefix | --architectures | --document | --jobs | --commit)
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
        --commit) commit=$2 ;;
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
for folder in "${CUDA_HOME:-}" /usr/local/cuda; do
  if [[ -n $folder ]]; then PATH+=:$folder/bin:$folder/compute-sanitizer; fi
done
for tool in nvcc cmake; do
  command -v $tool >/dev/null ||
    { echo "run.sh: $tool was not found on the PATH, in \$CUDA_HOME/bin or in /usr/local/cuda/bin" >&2; exit 1; }
done
build=$(realpath -m "$build")
results=$(realpath -m "${results:-$build/results}")
if [[ -n $dry ]]; then
  results+=/dry-run
  export CUDA_VISIBLE_DEVICES=  # none: nothing is measured
  rm -rf "$results"
fi
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

# walk NAME COMMAND...: in a dry run prints the command. A program of the build that is there must understand its
# options: without a device it says so and ends.
walk() {
  local name=$1
  shift
  echo "+ ${*@Q}"
  if [[ $1 != "$build"/bin/* || ! -x $1 ]]; then return; fi
  run "$name" 60 "$@"
  if grep -q 'no CUDA device' "$results/$name.log"; then return; fi
  note "${name%%-*}" "FAILED $name: a dry run ends with 'no CUDA device'"
  failed=1
  show_end "$name"
}

# told STATUS SECONDS: a status of `run` in words.
told() {
  case $1 in
    0) if [[ -n $dry ]]; then echo "walked"; else echo "done in $2 s"; fi ;;
    124) echo "stopped after $2 s" ;;
    125) echo "left out: no time was left of $budget s" ;;
    *) echo "FAILED after $2 s" ;;
  esac
}

show_end() { tail -n 25 "$results/$1.log"; }

# The device, if there is one, and what to build for.
gpu=
no_gpu="no CUDA device"
if ! run device 60 nvcc -o "$build/device" "$root/bench/cuda/device.cu"; then
  show_end device
  echo "run.sh: nvcc did not compile bench/cuda/device.cu within the time there was, $SECONDS s" >&2
  exit 1
fi
if device=$("$build/device" 2>>"$results/device.log"); then
  gpu=${device%|*}
  : "${architectures:=${device##*|}}"
else
  no_gpu+=": $(tail -n 1 "$results/device.log")"
fi
if [[ -n $dry ]]; then gpu="no GPU, a dry run"; fi
: "${architectures:=80;90}"

if [[ -z $commit ]]; then
  if ! commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null); then
    commit=unknown
    echo "run.sh: no commit to name with the figures was found, --commit TEXT gives one" >&2
  fi
  sources=(include examples bench tests)
  if ! git -C "$root" diff --quiet HEAD -- "${sources[@]}" 2>/dev/null; then  # their checksum tells changes apart
    commit+=" with changes $(cd "$root" && find "${sources[@]}" -type f ! -name '*.pyc' -print0 2>/dev/null |
      sort -z | xargs -0 sha1sum | sha1sum | cut -c 1-7)"
  fi
  if [[ -n $document && -z $dry &&
    -n $(git -C "$root" status --porcelain -- "${sources[@]}" cmake CMakeLists.txt CMakePresets.json 2>/dev/null) ]]; then
    echo "run.sh: the sources have changes that are not committed; figures of --document must name a commit" >&2
    exit 1
  fi
fi
cuda=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p')
context="${gpu:-$no_gpu}; $cuda; commit $commit; $(date -u +%F)"
echo "$context"
shopt -s nullglob
if [[ -n $gpu ]]; then
  there=("$results"/*.json "$results"/*.json.before "$results"/*.passed "$results"/*.stopped)
  before=$(cat "$results/context.txt" 2>/dev/null || echo "an unknown GPU and commit; no date")
  if ((!${#there[@]})); then
    echo "$context" >"$results/context.txt"
  elif [[ ${before%;*} != "${context%;*}" ]]; then
    echo "run.sh: $results holds results of ${before%;*}, and this is ${context%;*}:" \
      "give another --results, or remove them" >&2
    exit 1
  fi
fi

# Configuring, without the parts whose packages are missing.
configure() {
  local prefix_path
  prefix_path=$(IFS=';'; echo "${prefixes[*]-}")
  local command=(cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DLAZYLLM_CUDA=ON -DLAZYLLM_WERROR=OFF
    "-DCMAKE_CUDA_ARCHITECTURES=$architectures" "-DCMAKE_PREFIX_PATH=$prefix_path" "$@")
  if [[ -n $dry ]]; then echo "+ ${command[*]@Q}"; fi
  if [[ -z $dry || ! -e $build/CMakeCache.txt ]]; then run configure 60 "${command[@]}"; fi  # else it stays as it is
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
# cuDNN is used where its headers, of version 9 or later, lie beside the toolkit's or in a prefix.
cudnn=OFF
no_cudnn="cuDNN 9 was not found"
for folder in "$(dirname "$(command -v nvcc)")/../include" /usr/include ${prefixes[@]+"${prefixes[@]/%//include}"}; do
  version=$(sed -n 's/^#define CUDNN_MAJOR \([0-9]*\).*/\1/p' "$folder/cudnn_version.h" 2>/dev/null)
  if [[ -e $folder/cudnn.h ]] && ((${version:-0} >= 9)); then cudnn=ON; fi
done
# without_cudnn WHY: goes on without it.
without_cudnn() {
  cudnn=OFF
  no_cudnn=$1
  note cudnn "$1: goes on without it"
}

# Examples need the most, tests doctest, and benchmarks cuBLASLt.
configured=0
tried=()
for with in "examples tests bench" "tests bench" bench tests; do
  switches=()
  for part in EXAMPLES TESTS BENCH; do
    if [[ " $with " == *" ${part,,} "* ]]; then switch=ON; else switch=OFF; fi
    switches+=("-DLAZYLLM_BUILD_$part=$switch")
  done
  configure "-DLAZYLLM_CUDNN=$cudnn" "${switches[@]}"
  status=$?
  if ((status != 0 && status < 124)) && [[ $cudnn == ON ]]; then
    reason=$(missing)
    configure -DLAZYLLM_CUDNN=OFF "${switches[@]}"
    status=$?
    if ((status == 0)); then without_cudnn "configuring failed with cuDNN: $reason"; fi
  fi
  if ((status == 0)); then configured=1; break; fi
  if ((status == 124 || status == 125)); then note configure "$(told "$status" "$SECONDS")"; exit 1; fi
  tried+=("$with: $(missing)")
done
if ((!configured)); then
  show_end configure
  echo "run.sh: cmake failed" >&2
  exit 1
fi
for reason in ${tried[@]+"${tried[@]}"}; do note configure "cannot build $reason"; done
grep -hs 'Left out:' "$results/configure.log" | sed 's/^-- //' | sort -u

# The targets that there are.
available() { cmake --build "$build" --target help 2>/dev/null | sed 's/^\.\.\. //;s/:.*//' | grep -xE "$1" | sort -u; }
mapfile -t tests < <(available 'test_[a-z0-9_]*cuda[a-z0-9_]*' | grep -v emulated)
mapfile -t programs < <(available 'lazyllm_cuda_micro_bench|ttft_bench')

# What can be built is, even if something else cannot.
go_on=(-k)
if grep -q '^CMAKE_GENERATOR:INTERNAL=Ninja' "$build/CMakeCache.txt" 2>/dev/null; then go_on=(-k 0); fi
start=$SECONDS
build_command=(cmake --build "$build" --parallel "$jobs" --target ${tests[@]+"${tests[@]}"} ${programs[@]+"${programs[@]}"} -- "${go_on[@]}")
if [[ -n $dry ]]; then
  echo "+ ${build_command[*]@Q}"
  build_command+=(-n)  # what would be built
fi
if ((${#tests[@]} + ${#programs[@]})); then
  run build 300 "${build_command[@]}"
  status=$?
  if ((status != 0 && status < 124)) && [[ $cudnn == ON && -z $dry ]]; then
    show_end build
    without_cudnn "the build failed with cuDNN"
    configure -DLAZYLLM_CUDNN=OFF "${switches[@]}" && run build 300 "${build_command[@]}"
    status=$?
  fi
else
  status=1
  echo "there is nothing to build" >"$results/build.log"
fi
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
  local command=(ctest --test-dir "$build" --output-on-failure --no-tests=error -j 4 -R "$pattern")
  if [[ -n $dry ]]; then
    echo "+ ${command[*]@Q}"
    command+=(-N)  # which there are
  fi
  run tests 90 "${command[@]}"
  status=$?
  note tests "$(told "$status" $((SECONDS - start)))$(sed -n 's/^\([0-9]*% tests passed.*\)/; \1/p' "$results/tests.log")"
  skipped=$(sed -n 's/^.* - \(.*\) (Skipped)$/\1/p' "$results/tests.log" | tr '\n' ' ')
  if [[ -n $skipped ]]; then note tests "skipped: $skipped"; fi
  if ((status != 0)); then failed=1; show_end tests; fi
}

# Each test that has not passed gets a share of the time, or twice what it was stopped after before if that is more.
run_sanitizer() {
  [[ -n $dry ]] || command -v compute-sanitizer >/dev/null ||
    { note sanitizer "left out: compute-sanitizer was not found"; return; }
  local tool test name given start status left limit waiting end=$((SECONDS + 100)) pending=() command
  if ! wanted micro && ! wanted ttft && ! wanted peers; then end=$((SECONDS + $(seconds_left))); fi
  for tool in memcheck racecheck initcheck synccheck; do
    for test in ${tests[@]+"${tests[@]}"}; do
      name=$results/$tool-$test
      if [[ -e $name.passed ]]; then note "$tool" "$test was passed"; continue; fi
      pending+=("$(cat "$name.stopped" 2>/dev/null || echo 0) $tool $test")
    done
  done
  ((${#pending[@]})) || return
  mapfile -t pending < <(printf '%s\n' "${pending[@]}" | sort -s -n -k 1,1)  # those that had no turn yet first
  waiting=${#pending[@]}
  export LAZYLLM_TEST_RUNS=0.02 LLAMA_OWN_ATTENTION=1  # cuDNN's kernels are as little this project's as cuBLAS's
  for name in "${pending[@]}"; do
    read -r given tool test <<<"$name"
    name=$tool-$test
    command=(compute-sanitizer --tool "$tool" --error-exitcode 9)
    if [[ $tool == memcheck ]]; then command+=(--track-stream-ordered-races all); fi
    # cuBLAS's kernels are not this project's, and take long. To initcheck what they do not write is not initialised.
    if [[ $tool != initcheck ]]; then command+=(--kernel-name kns=lazyllm --kernel-name kns=llama); fi
    command+=("$bin/$test")
    if [[ -n $dry ]]; then walk "$name" "${command[@]}"; continue; fi
    start=$SECONDS
    left=$((end - start))
    limit=$((left / waiting > 5 ? left / waiting : 5))
    waiting=$((waiting - 1))
    if ((limit < 2 * given)); then limit=$((2 * given)); fi
    if ((limit > left)); then limit=$left; fi
    if ((limit < 3)); then note "$tool" "$test left out: the time for the sanitizers was over"; continue; fi
    run "$name" "$limit" "${command[@]}"
    status=$?
    # Copies of whole buffers move rows that nothing has written yet, on purpose; kernels must not read such.
    if ((status == 9)) && [[ $tool == initcheck ]] && ! grep -q '__global__ memory read' "$results/$name.log"; then
      status=0
    fi
    note "$tool" "$test $(told "$status" $((SECONDS - start)))"
    case $status in
      0) : >"$results/$name.passed" ;;
      124) echo $((SECONDS - start)) >"$results/$name.stopped" ;;
      125) ;;
      *) failed=1; show_end "$name" ;;
    esac
  done
  unset LAZYLLM_TEST_RUNS LLAMA_OWN_ATTENTION
}

built() { [[ " ${programs[*]-} " == *" $1 "* ]]; }

whole() { [[ $(tail -n 1 "$1" 2>/dev/null) == [\]\}] ]]; }
missing_cases() { grep -o 'no time was left' "$1" | wc -l; }

# keep_more FILE: undoes a run that measured fewer cases than the one before.
keep_more() {
  [[ -e $1.before ]] || return
  if whole "$1" && (($(missing_cases "$1") <= $(missing_cases "$1.before"))); then
    rm "$1.before"
  else
    mv "$1.before" "$1"
  fi
}

# measured NAME LIMIT COMMAND...: runs a measurement that writes NAME.json, unless all of it is there. What a program
# had written of it when it was stopped stays.
measured() {
  local name=$1 start=$SECONDS status json=$results/$1.json
  if [[ -n $dry ]]; then walk "$name" "${@:3}"; return; fi
  keep_more "$json"
  if whole "$json"; then
    if (($(missing_cases "$json") == 0)); then note "${name%%-*}" "$name was there"; return; fi
    mv "$json" "$json.before"
  fi
  run "$name" "$2" "${@:3}"
  status=$?
  note "${name%%-*}" "$(told "$status" $((SECONDS - start))) $name"
  if ((status != 0)) && ! { ((status == 124)) && whole "$json"; }; then rm -f "$json"; fi
  keep_more "$json"
  if ((status != 0 && status != 124 && status != 125)); then failed=1; show_end "$name"; fi
}

# Google Benchmark closes its file at the end: what is stopped is lost, so each part is a measurement of its own. The
# last one needs the most memory.
declare -A micro_operations=([score]=score [select]=select [rows]='gather|scatter|merge' [aux]='park|revive')

run_micro() {
  built lazyllm_cuda_micro_bench || { note micro "left out: Google Benchmark was not found"; return; }
  local part
  for part in score select rows aux; do
    measured "micro-$part" 45 "$bin/lazyllm_cuda_micro_bench" "--benchmark_filter=^(${micro_operations[$part]})" \
      --benchmark_min_time=0.01 "--benchmark_out=$results/micro-$part.json" --benchmark_out_format=json
  done
}

# Shape, batch size, rows that a decode step may revive at each pruning layer, prompt lengths and schedules: what
# matters most first. The weights of a line are loaded once.
ttft_cases=(
  "llama-2-7b 1 16 4096,16384 6:0.3,16:0.5 paper 9:0.5,17:0.5,25:0.5"
  "llama-2-7b 8 16 4096,2048,8192 6:0.3,16:0.5"
  "llama-2-7b 1 0 4096,16384 6:0.3,16:0.5"
  "llama-2-7b 1 16 2048,8192,32768 6:0.3,16:0.5"
  "llama-3-8b 1 16 4096,16384 6:0.3,16:0.5 paper"
  "llama-3-8b 8 16 4096,2048,8192,16384,32768 6:0.3,16:0.5"
  "llama-3-8b 1 16 2048,8192,32768 6:0.3,16:0.5"
  "1.1b 1 16 4096,16384 4:0.3,11:0.5 paper"
  "1.1b 8 16 4096,2048,8192,16384,32768 4:0.3,11:0.5"
  "1.1b 1 16 2048,8192,32768 4:0.3,11:0.5"
)

# run_ttft FIRST COUNT: COUNT of the cases, from number FIRST.
run_ttft() {
  local case shape batch revived prompts name left schedules schedule
  for case in "${ttft_cases[@]:$1:$2}"; do
    read -r shape batch revived prompts schedules <<<"$case"
    name=ttft-$shape-batch-$batch-revived-$revived-${prompts//,/_}
    left=$(seconds_left)
    if ((left > 240)); then left=240; fi
    local command=("$bin/ttft_bench" --device cuda --shape "$shape" --batch "$batch" --decode-revived "$revived")
    for schedule in $schedules; do command+=(--schedule "$schedule"); done
    # The program stops by itself, between two cases, before it is stopped.
    # shellcheck disable=SC2086  # several lengths
    LLAMA_OWN_ATTENTION=1 measured "$name" 240 "${command[@]}" --prompt ${prompts//,/ } --dtype bf16 --generate 17 --repeats 5 \
      --seconds "$((left > 20 ? left - 15 : 5))" --json "$results/$name.json"
  done
}

# The prefills of the first case with cuDNN's attention, beside those with the host's own.
run_cudnn() {
  if [[ $cudnn == OFF ]]; then note cudnn "left out: $no_cudnn"; return; fi
  measured cudnn-llama-2-7b 60 "$bin/ttft_bench" --device cuda --shape llama-2-7b --batch 1 --schedule 6:0.3,16:0.5 \
    --prompt 4096 16384 --dtype bf16 --generate 1 --repeats 5 --seconds 50 --json "$results/cudnn-llama-2-7b.json"
}

# run_peers SHAPE...
run_peers() {
  local shape
  for shape in "$@"; do
    measured "peers-$shape" 90 "$python" "$root/bench/peers/transformers_ttft.py" --shape "$shape" --prompt 4096 16384 \
      --batch 1 8 --repeats 3 --seconds 60 --json "$results/peers-$shape.json"
  done
}

wanted() { [[ ,$parts, == *,$1,* ]]; }

if [[ -z $gpu ]]; then
  note device "$no_gpu: built only"
else
  if wanted tests; then run_tests; fi
  # What the bars need first.
  if wanted ttft && ! built ttft_bench; then
    note ttft "left out: ttft_bench was not built, its packages were not found"
    parts=${parts//ttft/}
  fi
  python=${PYTHON:-python3}
  if wanted peers && [[ -z $dry ]] && ! "$python" -c 'import torch, transformers' 2>"$results/peers.log"; then
    note peers "left out: $(tail -1 "$results/peers.log")"
    parts=${parts//peers/}
  fi
  if wanted ttft; then run_ttft 0 1; fi
  if wanted peers; then run_peers llama-2-7b; fi
  if wanted ttft; then run_cudnn; fi
  if wanted sanitizer; then run_sanitizer; fi
  if wanted micro; then run_micro; fi
  if wanted ttft; then run_ttft 1 "${#ttft_cases[@]}"; fi
  if wanted peers; then run_peers llama-3-8b 1.1b; fi
fi

# tables KIND FILE...: prints the tables of results, those of ttft in short, and writes them into the document.
tables() {
  local kind=$1 printed=$1
  shift
  (($#)) || return 0
  if [[ $kind == cuda ]]; then printed="cuda-summary"; fi
  if [[ -n $document ]] && { [[ $kind != cuda ]] || grep -q '"lazy_ms"' "$@"; }; then
    python3 "$root/bench/make_tables.py" "$kind" "$@" "$document" --command "bash bench/cuda/run.sh" \
      --context "$(cat "$results/context.txt")" || failed=1
  fi
  python3 "$root/bench/make_tables.py" "$printed" "$@" - || failed=1
}

echo
printf '%s\n' "${summary[@]}"
micro=("$results"/micro-*.json)
measurements=("$results"/ttft-*.json "$results"/peers-*.json)
with_cudnn=("$results"/cudnn-*.json)  # a table of its own: the bars are the own kernels'
if command -v python3 >/dev/null; then
  tables cuda-micro ${micro[@]+"${micro[@]}"}
  tables cuda ${measurements[@]+"${measurements[@]}"}
  if ((${#with_cudnn[@]})); then
    python3 "$root/bench/make_tables.py" cuda-cudnn "${with_cudnn[@]}" - || failed=1
  fi
elif ((${#micro[@]} + ${#measurements[@]})); then
  echo "No python3 here for the tables: bench/make_tables.py makes them of $results/*.json"
fi
if [[ -n $gpu ]] && tar -C "$(dirname "$results")" -czf "$results.tar.gz" "$(basename "$results")"; then
  echo "All of it: $results.tar.gz"
fi
echo "$SECONDS of $budget s; results in $results"
exit "$failed"
