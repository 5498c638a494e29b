#!/usr/bin/env bash
# machine.sh: the machine of a measurement in one line: processor, cores, instruction sets of vectors and matrices. Family
# and model tell generations of one name apart.
set -euo pipefail
field() { lscpu | sed -n "s/^ *$1: *//p" | head -1; }
isa=
for feature in avx2 avx512f avx512_bf16 avx512_vnni amx_bf16 amx_int8 asimd sve; do
  if grep -qw "$feature" /proc/cpuinfo; then isa+=" $feature"; fi
done
family=$(field 'CPU family')
echo "$(field 'Model name')${family:+ (family $family, model $(field Model))}, $(nproc) cores, ISA:${isa:- none that is known here}"
