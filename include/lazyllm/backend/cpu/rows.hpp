#pragma once

#include <algorithm>
#include <span>

#include "lazyllm/backend/cpu/context.hpp"

namespace lazyllm::cpu {

/// Does all `copies`.
template <class T>
void copy_rows(Context& context, std::span<const RowCopy<T>> copies) {
  for (const RowCopy<T>& copy : copies) {
    if (copy.from.empty()) continue;  // a matrix without rows may have no width
    const Index width = copy.source.width;
    // Below about 64 KiB a second thread costs more than it copies.
    const Index grain = std::max<Index>(1, 65536 / (width * static_cast<Index>(sizeof(T))));
    context.for_chunks(std::ssize(copy.from), grain, [&](Index first, Index last) {
      for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
        std::copy_n(copy.source.row(copy.from[i]), width, copy.target.row(copy.to[i]));
      }
    });
  }
}

}  // namespace lazyllm::cpu
