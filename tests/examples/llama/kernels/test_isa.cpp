#include "examples/llama/kernels/cpu/isa.hpp"

#include <doctest/doctest.h>

#include <Eigen/Core>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "examples/llama/kernels/cpu/block_kernels.hpp"
#include "examples/llama/kernels/cpu/panels.hpp"

namespace llama::test {
namespace {

enum Level { baseline, avx2, avx512, avx512_vnni, avx512_bf16 };

/// The best that the environment allows; ctest runs this file under several values.
Level allowed() {
#ifdef LLAMA_HAS_ONEDNN
  if (const char* const mask = std::getenv("ONEDNN_MAX_CPU_ISA")) {
    static const std::map<std::string, Level> levels{{"SSE41", baseline},
                                                     {"AVX2", avx2},
                                                     {"AVX512_CORE", avx512},
                                                     {"AVX512_CORE_VNNI", avx512_vnni},
                                                     {"AVX512_CORE_BF16", avx512_bf16},
                                                     {"AVX512_CORE_AMX", avx512_bf16},
                                                     {"ALL", avx512_bf16}};
    return levels.at(mask);
  }
#endif
  return avx512_bf16;
}

/// Whether the processor has the instructions of a level.
bool has([[maybe_unused]] Level level) {
#ifdef __x86_64__
  if (level == avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (level == avx512) return has(avx2) && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (level == avx512_vnni) return has(avx512) && __builtin_cpu_supports("avx512vnni");
  if (level == avx512_bf16) return has(avx512) && __builtin_cpu_supports("avx512bf16");
#endif
  return level == baseline;
}

bool expected(Level level) { return level <= allowed() && has(level); }

}  // namespace

TEST_CASE("the best instruction set that the processor has and the environment allows is chosen") {
  CHECK(usable(Isa::baseline));
  CHECK(usable(Isa::avx2) == expected(avx2));
  CHECK(usable(Isa::avx512) == expected(avx512));
  CHECK(usable(Isa::avx512_vnni) == expected(avx512_vnni));
  CHECK(usable(Isa::avx512_bf16) == expected(avx512_bf16));
  const std::string best = expected(avx512_bf16) ? "avx512_bf16"
                           : expected(avx512)    ? "avx512"
                           : expected(avx2)      ? "avx2"
                                                 : "baseline";
  CHECK(block_kernels().isa == best);
  // tests/support/amx_emulation.cpp shows oneDNN a processor with AMX, and asks for this variable.
  if (std::getenv("AMX_CPUID_PLACES") != nullptr) CHECK(best_isa() == std::string("amx"));
  if (allowed() < avx512_bf16) CHECK(best_isa() == best);
}

TEST_CASE_TEMPLATE("products in panels run with what the environment allows", T, float, Eigen::bfloat16, std::int8_t) {
  const PanelKernel plain = panel_kernel<T>(Isa::baseline), narrow = panel_kernel<T>(Isa::avx2),
                    wide = panel_kernel<T>(Isa::avx512), with_vnni = panel_kernel<T>(Isa::avx512_vnni),
                    best = panel_kernel<T>();
  CHECK((narrow != plain) == expected(avx2));
  CHECK((wide != narrow) == (sizeof(T) != 1 && expected(avx512)));
  CHECK((with_vnni != wide) == (sizeof(T) == 1 && expected(avx512_vnni)));
  CHECK((best != with_vnni) == (sizeof(T) == 2 && expected(avx512_bf16)));
  CHECK((panel_kernel<T>(Isa::avx512_bf16, 32 * 1024) != panel_kernel<T>(Isa::avx512_bf16, 48 * 1024)) ==
        expected(sizeof(T) == 1 ? avx512_vnni : avx512));
}

}  // namespace llama::test
