#include "examples/llama/kernels/cpu/block_kernels.hpp"

#include <vector>

#ifdef LLAMA_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace llama {

namespace isa {
extern const BlockKernels baseline, avx2, avx512, avx512_bf16;
}

namespace {

#ifdef LLAMA_HAS_X86_KERNELS
enum class Isa { avx2, avx512, avx512_bf16 };

bool processor_has(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (isa == Isa::avx2) return avx2;
  return avx2 && avx512 && (isa == Isa::avx512 || __builtin_cpu_supports("avx512bf16"));
}

bool allowed([[maybe_unused]] Isa isa) {
#ifdef LLAMA_HAS_ONEDNN
  // The values are sets of bits, one for each part of an instruction set.
  const auto asked = static_cast<unsigned>(isa == Isa::avx2     ? dnnl::cpu_isa::avx2
                                           : isa == Isa::avx512 ? dnnl::cpu_isa::avx512_core
                                                                : dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & asked) == asked;
#else
  return true;
#endif
}
#endif

std::vector<const BlockKernels*> find_usable() {
  std::vector<const BlockKernels*> found;
#ifdef LLAMA_HAS_X86_KERNELS
  const auto add = [&](Isa isa, const BlockKernels& kernels) {
    if (processor_has(isa) && allowed(isa)) found.push_back(&kernels);
  };
  add(Isa::avx512_bf16, isa::avx512_bf16);
  add(Isa::avx512, isa::avx512);
  add(Isa::avx2, isa::avx2);
#endif
  found.push_back(&isa::baseline);
  return found;
}

}  // namespace

std::span<const BlockKernels* const> usable_block_kernels() {
  static const std::vector<const BlockKernels*> found = find_usable();
  return found;
}

}  // namespace llama
