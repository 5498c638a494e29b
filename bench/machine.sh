#!/usr/bin/env bash
# machine.sh: the machine of a measurement in one line: processor, cores, instruction sets of vectors and matrices.
set -euo pipefail
isa=
for feature in avx2 avx512f avx512_bf16 amx_bf16; do
  if grep -qw "$feature" /proc/cpuinfo; then isa+=" $feature"; fi
done
echo "$(lscpu | sed -n 's/^Model name: *//p' | head -1), $(nproc) cores, ISA:${isa:- none of AVX}"
