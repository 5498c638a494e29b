#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "examples/llama/base.hpp"
#include "examples/llama/kernels/cpu/isa.hpp"
#include "examples/llama/kernels/cpu/large_pages.hpp"
#include "examples/llama/kernels/cpu/team.hpp"

/// \file
/// Products of rows with weights in panels. A few rows take the time of reading the weights: each weight is read once
/// for all of them.
namespace llama {

/// Weights `[out x in]` in panels of 64 outputs. In a panel the groups of neighbouring inputs follow each other, 4
/// bytes of each output: a float, pairs of bfloat16, or fours of int8. Behind the last input and output are zeros. It
/// is the layout that oneDNN chooses for large matrices on processors with AVX-512 (BA16a64b, BA16a64b2a and
/// BA16a64b4a).
template <class T>
struct Panels {
  static constexpr Index width = 64;
  static constexpr Index depth = 4 / static_cast<Index>(sizeof(T));  ///< inputs of a group

  const T* data = nullptr;
  Index in = 0;
  Index out = 0;

  Index groups() const { return (in + depth - 1) / depth; }       ///< that hold inputs
  Index all_groups() const { return (groups() + 15) / 16 * 16; }  ///< of a panel
  Index count() const { return (out + width - 1) / width; }
  Index panel_elements() const { return all_groups() * width * depth; }  ///< zeros included
  Index elements() const { return count() * panel_elements(); }          ///< of all panels

  const T* panel(Index i) const { return data + i * panel_elements(); }
  Index place(Index output, Index input) const {
    return ((output / width * all_groups() + input / depth) * width + output % width) * depth + input % depth;
  }
};

/// Panels that own their memory, on a multiple of 64 bytes; all zeros at first. Each of `threads` threads touches its
/// share of the memory first, as it will read it.
template <class T>
class OwnPanels : public Panels<T> {
 public:
  OwnPanels(Index in, Index out, [[maybe_unused]] int threads) : Panels<T>{nullptr, in, out} {
    memory_ = large_page_array<T>(this->elements(), Pages::together);
    T* const memory = memory_.get();
    this->data = memory;
    const Index panels = this->count(), each = this->panel_elements();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index i = 0; i < panels; ++i) std::fill_n(memory + i * each, each, T());
  }

  T& at(Index output, Index input) { return memory_.get()[this->place(output, input)]; }

 private:
  std::shared_ptr<T> memory_;
};

/// Most rows that are few: a kernel reads each weight once for them.
constexpr Index few_product_rows = 24;
/// Most rows that meet a panel again while a cache has it, if it fits.
constexpr Index panel_block_rows = 8 * few_product_rows;

/// Sums of products of `rows` rows, at least 1 and at most `few_product_rows`, with outputs `first` to `first + count -
/// 1` of a panel: its first 32, its last 32 or all 64. `x` are groups, row i at `x + i * x_stride` bytes. `sums` is
/// `[rows x 64]`, on a multiple of 64 bytes, of float, but for int8 of std::int32_t, whose `x` is of std::uint8_t. A
/// sum's bits do not depend on the other rows and outputs.
using PanelKernel = void (*)(const void* panel, Index groups, const std::byte* x, Index x_stride, Index rows,
                             Index first, Index count, void* sums);

/// Bytes of a core's first cache for data; 0 or less where the system does not say.
Index first_cache_bytes();

/// The fastest kernel, with AVX-512 (bfloat16: also AVX512-BF16, int8: only AVX512-VNNI), AVX2 or the baseline, of
/// those that are `usable` and for which `best` is enough. With AVX-512 one of two, by the size of the first cache. `T`
/// is `float`, `Eigen::bfloat16` or `std::int8_t`.
template <class T>
PanelKernel panel_kernel(Isa best = Isa::avx512_bf16, Index first_cache = first_cache_bytes());

/// Multiplies `rows` rows `x` by `weights` with `kernel`, and calls `finish(row, count, first, outputs, sums)` by
/// several threads: `sums` `[count x 64]` of the rows from `row` on begin with those of output `first`. `count` is at
/// most `few_product_rows`.
template <class T, class Finish>
void multiply_panels(PanelKernel kernel, const Panels<T>& weights, const std::byte* x, Index x_stride, Index rows,
                     int threads, const Finish& finish) {
  using Sum = std::conditional_t<std::is_same_v<T, std::int8_t>, std::int32_t, float>;
  // Work is shared out in half panels of a block of rows, so that there is enough for many threads.
  constexpr Index half = Panels<T>::width / 2;
  const Index halves = 2 * weights.count();
  Index block = panel_block_rows;
  const auto blocks_of_rows = [&] { return (rows + block - 1) / block; };
  while (block > few_product_rows && blocks_of_rows() * halves < threads) block /= 2;
  const Index blocks = blocks_of_rows();
  share_parts(threads, blocks * halves, 2, [&](Index begin, Index end, int) {
    alignas(64) Sum sums[few_product_rows * Panels<T>::width];
    const Index from_half = begin % halves, first = from_half * half;
    const Index outputs = std::min((end - begin) * half, weights.out - first);
    if (outputs <= 0) return;  // the second half of the last panel
    const Index columns = outputs <= half ? half : 2 * half;
    const Index from_row = begin / halves * block, to_row = std::min(from_row + block, rows);
    for (Index row = from_row; row < to_row; row += few_product_rows) {
      const Index count = std::min(few_product_rows, to_row - row);
      kernel(weights.panel(from_half / 2), weights.groups(), x + row * x_stride, x_stride, count, from_half % 2 * half,
             columns, sums);
      finish(row, count, first, outputs, sums);
    }
  });
}

}  // namespace llama
