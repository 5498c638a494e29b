#!/usr/bin/env bash
# build_release.sh [TARGET…]: installs what is missing, then configures the preset `release` and builds the targets, by
# default all. Programs land in build/release/bin.
set -euo pipefail
cd "$(dirname "$0")/.."

# libdnnl-dev and libsentencepiece-dev need ocl-icd-opencl-dev and libprotobuf-dev but do not depend on them.
bash cmake/install_packages.sh cmake ninja-build g++ pkg-config libeigen3-dev libdnnl-dev ocl-icd-opencl-dev \
  libsentencepiece-dev libprotobuf-dev libicu-dev nlohmann-json3-dev libcli11-dev libfmt-dev doctest-dev libbenchmark-dev

echo "== Configure =="
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
  # Else it keeps nothing that has a precompiled header.
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:+$CCACHE_SLOPPINESS,}pch_defines,time_macros
fi
cmake --preset release --log-level=NOTICE

echo "== Build =="
cmake --build --preset release ${1:+--target "$@"}
