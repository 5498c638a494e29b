#!/usr/bin/env bash
# build_release.sh [TARGET…]: installs what is missing, then configures the preset `release` and builds the targets, by
# default all. Programs land in build/release/bin.
set -euo pipefail
cd "$(dirname "$0")/.."

bash cmake/install_packages.sh cmake ninja-build g++ pkg-config libeigen3-dev libdnnl-dev libsentencepiece-dev libicu-dev \
  nlohmann-json3-dev libcli11-dev libfmt-dev doctest-dev libbenchmark-dev

echo "== Configure =="
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
cmake --preset release --log-level=NOTICE

echo "== Build =="
cmake --build --preset release ${1:+--target "$@"}
