#!/usr/bin/env bash
# llama_cpp.sh: builds llama.cpp for the ggml engine, without GPUs and for this machine's processor, and prints the folder
# it is installed in, in $XDG_CACHE_HOME/lazyllm (~/.cache/lazyllm). Where it is there already, that is all. Progress goes
# to stderr. The source is that in the source distribution of llama-cpp-python on PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lazyllm
version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
prefix=$cache/llama.cpp-$version
work=$prefix.build

say() { echo "$*" >&2; }
fail() { say "llama_cpp.sh: $*"; exit 1; }

if [[ -d $prefix ]]; then
  echo "$prefix"
  exit
fi
mkdir -p "$work"
exec 9>"$work.lock"
flock --nonblock 9 || fail "another llama_cpp.sh is building it"
say "llama.cpp: 77 MB to download, licence MIT, at most 500 MB on disk in $cache, some minutes of compiling"
free=$(($(df --output=avail -k "$cache" | tail -1) / 1000))
((free >= 500)) || fail "500 MB are needed in $cache, $free MB are free"
bash "$here/../../cmake/install_packages.sh" cmake ninja-build g++ python3 python3-venv >&2

if [[ ! -d $work/source ]]; then
  [[ -x $work/venv/bin/pip ]] || python3 -m venv --clear "$work/venv"
  "$work/venv/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --no-cache-dir --retries 2 --require-hashes \
    --dest "$work" --requirement <(echo "llama-cpp-python==$version --hash=sha256:$sha256") >&2 9>&- ||
    fail "llama-cpp-python==$version could not be downloaded: is there a network?"
  rm -rf "$work/unpacked"
  mkdir "$work/unpacked"
  tar -C "$work/unpacked" -xzf "$work/llama_cpp_python-$version.tar.gz" --strip-components=3 \
    "llama_cpp_python-$version/vendor/llama.cpp"
  mv "$work/unpacked" "$work/source"
  rm "$work/llama_cpp_python-$version.tar.gz"
fi

launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
without=(-DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}"=OFF")
cmake -S "$work/source" -B "$work/build" -G Ninja --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DGGML_NATIVE=ON -DGGML_CCACHE=OFF "${launcher[@]}" "${without[@]}" >&2
cmake --build "$work/build" >&2
cmake --install "$work/build" --prefix "$prefix.part" >"$work/install.log"
mv "$prefix.part" "$prefix"
rm -rf "$work" "$work.lock"
echo "$prefix"
