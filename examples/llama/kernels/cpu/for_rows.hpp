#pragma once

#include <lazyllm/lazyllm.hpp>

#include "examples/llama/kernels/cpu/team.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// Calls `body(i)` for each of `rows` rows of `width` elements, by the context's threads where it pays: those of decode
/// steps for as few rows as such steps have. `body` must not throw.
template <class Body>
void for_rows(lazyllm::cpu::Context& context, Index rows, Index width, const Body& body) {
  /// Below this many elements starting the threads costs more than the work.
  constexpr Index min_parallel = 16384, min_shared = 4096;
  constexpr Index few = 64;
  const int threads = rows * width >= (rows <= few ? min_shared : min_parallel) ? context.threads() : 1;
  if (threads > 1 && rows <= few) {
    share_parts(threads, rows, 1, [&](Index first, Index last, int) {
      for (Index i = first; i < last; ++i) body(i);
    });
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (Index i = 0; i < rows; ++i) body(i);
}

}  // namespace llama
