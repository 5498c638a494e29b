#!/usr/bin/env bash
# run.sh [CTEST_OPTION…]: builds everything and runs the tests; installs what is missing on a Debian machine.
# Real model files, where there are any, are found in $LAZYLLM_TEST_DATA; tests that lack theirs are said to be skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
bash cmake/install_packages.sh libopenmpi-dev openmpi-bin python3 python3-venv
bash cmake/build_release.sh

echo "== Test =="
log=build/release/Testing/Temporary/LastTest.log
status=0
ctest --preset release -j "$(nproc)" --no-tests=error "$@" | tee build/release/ctest.out || status=$?
sed -nE 's/^(.*MESSAGE: )?(skipped: )/\2/p' "$log" | sort -u
grep 'tests passed' build/release/ctest.out || echo "No tests were run"
exit "$status"
