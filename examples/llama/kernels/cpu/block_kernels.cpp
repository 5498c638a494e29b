#include "examples/llama/kernels/cpu/block_kernels.hpp"

#ifdef LAZYLLM_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace llama {
namespace {

#ifdef LAZYLLM_HAS_X86_KERNELS
enum class Isa { avx2, avx512, avx512_bf16 };

bool processor_has(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (isa == Isa::avx2) return avx2;
  return avx2 && avx512 && (isa == Isa::avx512 || __builtin_cpu_supports("avx512bf16"));
}

bool allowed([[maybe_unused]] Isa isa) {
#ifdef LAZYLLM_HAS_ONEDNN
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

const BlockKernels& choose() {
#ifdef LAZYLLM_HAS_X86_KERNELS
  const auto usable = [](Isa isa) { return processor_has(isa) && allowed(isa); };
  if (usable(Isa::avx512_bf16)) return isa::avx512_bf16;
  if (usable(Isa::avx512)) return isa::avx512;
  if (usable(Isa::avx2)) return isa::avx2;
#endif
  return isa::baseline;
}

}  // namespace

const BlockKernels& block_kernels() {
  static const BlockKernels& chosen = choose();
  return chosen;
}

}  // namespace llama
