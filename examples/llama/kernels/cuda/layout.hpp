#pragma once

#include <cstddef>

#include "examples/llama/base.hpp"

namespace llama::kernels {

/// Lays out several arrays in one piece of memory.
class Layout {
 public:
  static constexpr Index alignment = 16;

  /// Where `count` elements of T begin, in bytes.
  template <class T>
  Index add(Index count) {
    const Index offset = bytes_;
    bytes_ += (count * static_cast<Index>(sizeof(T)) + alignment - 1) / alignment * alignment;
    return offset;
  }

  Index bytes() const { return bytes_; }

 private:
  Index bytes_ = 0;
};

/// The array that begins at `offset` bytes of `memory`.
template <class T>
T* at(std::byte* memory, Index offset) {
  return reinterpret_cast<T*>(memory + offset);
}

}  // namespace llama::kernels
