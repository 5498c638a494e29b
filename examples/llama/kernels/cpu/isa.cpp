#include "examples/llama/kernels/cpu/isa.hpp"

#include "examples/llama/kernels/cpu/block_kernels.hpp"

#ifdef LLAMA_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace llama {
namespace {

#ifdef LLAMA_HAS_ONEDNN
bool allowed(dnnl::cpu_isa isa) {
  // The values are sets of bits, one for each part of an instruction set.
  const auto asked = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & asked) == asked;
}
#endif

#ifdef LLAMA_HAS_X86_KERNELS
bool processor_has(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case Isa::baseline: return true;
    case Isa::avx2: return avx2;
    case Isa::avx512: return avx2 && avx512;
    case Isa::avx512_vnni: return avx2 && avx512 && __builtin_cpu_supports("avx512vnni");
    case Isa::avx512_bf16: return avx2 && avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

bool allowed([[maybe_unused]] Isa isa) {
#ifdef LLAMA_HAS_ONEDNN
  switch (isa) {
    case Isa::baseline: return true;
    case Isa::avx2: return allowed(dnnl::cpu_isa::avx2);
    case Isa::avx512: return allowed(dnnl::cpu_isa::avx512_core);
    case Isa::avx512_vnni: return allowed(dnnl::cpu_isa::avx512_core_vnni);
    case Isa::avx512_bf16: return allowed(dnnl::cpu_isa::avx512_core_bf16);
  }
#endif
  return true;
}
#endif

}  // namespace

bool usable(Isa isa) {
#ifdef LLAMA_HAS_X86_KERNELS
  return processor_has(isa) && allowed(isa);
#else
  return isa == Isa::baseline;
#endif
}

bool onednn_has_amx() {
#ifdef LLAMA_HAS_ONEDNN
  return allowed(dnnl::cpu_isa::avx512_core_amx);
#else
  return false;
#endif
}

const char* best_isa() { return onednn_has_amx() ? "amx" : block_kernels().isa; }

}  // namespace llama
