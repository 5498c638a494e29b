#pragma once

#include <algorithm>
#include <span>

#include "lazyllm/backend/cpu/context.hpp"

namespace lazyllm::cpu {

/// Copies row `from[i]` of `source` to row `to[i]` of `target` for every i. Gather, scatter and merge are all this. The
/// matrices must not overlap; no two `to` may be equal.
template <class T>
void copy_rows(Context& context, Rows<const T> source, std::span<const Index> from, Rows<T> target,
               std::span<const Index> to) {
  if (from.empty()) return;
  // Below about 64 KiB a second thread costs more than it copies.
  const Index grain = std::max<Index>(1, 65536 / (source.width * static_cast<Index>(sizeof(T))));
  context.for_chunks(std::ssize(from), grain, [&](Index first, Index last) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
      std::copy_n(source.row(from[i]), source.width, target.row(to[i]));
    }
  });
}

}  // namespace lazyllm::cpu
