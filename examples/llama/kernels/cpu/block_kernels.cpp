#include "examples/llama/kernels/cpu/block_kernels.hpp"

#include <vector>

#include "examples/llama/kernels/cpu/isa.hpp"

namespace llama {

namespace isa {
extern const BlockKernels baseline, avx2, avx512, avx512_bf16;
}

namespace {

std::vector<const BlockKernels*> find_usable() {
  std::vector<const BlockKernels*> found;
#ifdef LLAMA_HAS_X86_KERNELS
  const auto add = [&](Isa isa, const BlockKernels& kernels) {
    if (usable(isa)) found.push_back(&kernels);
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
