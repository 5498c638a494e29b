#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "examples/llama/kernels/cpu/packed_weights.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"
#include "examples/llama/kernels/cpu/team.hpp"

// Weights are whole numbers of -127 to 127 times a scale for each output. The rows of x become such numbers as they
// come, with a scale for each row. Sums of products are exact, so a row's result depends on no other row, library,
// thread or instruction set. The processors' instructions multiply unsigned with signed bytes: x is stored 128 above
// its value, and 128 times the sum of an output's weights is taken off again.

namespace llama {
namespace {

constexpr float largest = 127;
constexpr Index shift = 128;

/// NaN where a value is. The bits of absolute values have their order, and a maximum of whole numbers is one that
/// compilers take with vectors.
template <class T>
float scale_of(const T* values, Index count) {
  std::int32_t highest = 0;
  for (Index i = 0; i < count; ++i) {
    highest = std::max(highest, std::bit_cast<std::int32_t>(widen(values[i])) & 0x7fffffff);
  }
  return std::bit_cast<float>(highest) / largest;
}

template <class T>
class Int8Weights final : public PackedWeights {
 public:
  Int8Weights(const UnpackedWeights<T>& from, int threads)
      : scales_(static_cast<std::size_t>(from.out)),
        shifts_(static_cast<std::size_t>(from.out)),
        panels_(from.in, from.out, threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index j = 0; j < from.out; ++j) {
      const T* const output = from.weights.data() + j * from.in;
      const float scale = scale_of(output, from.in);
      Index sum = 0;
      for (Index k = 0; k < from.in; ++k) {
        const auto value = static_cast<std::int8_t>(scale > 0 ? std::lround(widen(output[k]) / scale) : 0);
        panels_.at(j, k) = value;
        sum += value;
      }
      scales_[static_cast<std::size_t>(j)] = scale;
      shifts_[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(shift * sum);
    }
  }

  void multiply(const void* x, Index rows, const Output& output, int threads) const override {
    Index piece = 4 * panel_block_rows;
#ifdef LLAMA_HAS_ONEDNN
    constexpr Index piece_sums = Index{1} << 22;  // oneDNN gives those of a piece all at once
    if (onednn_multiplies_int8(threads)) piece = std::clamp(piece_sums / panels_.out, few_product_rows, Index{256});
#endif
    for (Index row = 0; row < rows; row += piece) {
      multiply(static_cast<const T*>(x), row, std::min(piece, rows - row), output, threads);
    }
  }

 private:
  /// Rows `first_row` to `first_row + rows - 1`.
  void multiply(const T* x, Index first_row, Index rows, const Output& output, int threads) const {
    static thread_local std::vector<std::uint8_t> numbers;
    static thread_local std::vector<float> scales;
    const Index stride = panels_.groups() * Panels<std::int8_t>::depth;
    numbers.resize(static_cast<std::size_t>(rows * stride));
    scales.resize(static_cast<std::size_t>(rows));
    std::uint8_t* const to = numbers.data();
    float* const row_scales = scales.data();
    const auto round = [&](Index i) {
      row_scales[i] = round_row(x + (first_row + i) * panels_.in, to + i * stride, stride);
    };
#ifdef LLAMA_HAS_ONEDNN
    if (rows > few_product_rows && onednn_multiplies_int8(threads)) {
#pragma omp parallel for num_threads(threads) schedule(static)
      for (Index i = 0; i < rows; ++i) round(i);
      static thread_local std::vector<std::int32_t> sums;
      sums.resize(static_cast<std::size_t>(rows * panels_.out));
      std::int32_t* const all = sums.data();
      multiply_int8(panels_, to, stride, rows, all, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
      for (Index i = 0; i < rows; ++i) {
        for (Index first = 0; first < panels_.out; first += Panels<std::int8_t>::width) {
          const Index count = std::min(Panels<std::int8_t>::width, panels_.out - first);
          finish(all + i * panels_.out + first, row_scales + i, first_row + i, 1, first, count, output);
        }
      }
      return;
    }
#endif
    // The panels' threads round, too: OpenMP's would go on spinning beside them. A row is little work: below so many
    // threads are not worth their start.
    constexpr Index most_alone = 4096;
    share_parts(rows * panels_.in > most_alone ? threads : 1, rows, 1, [&](Index i, Index, int) { round(i); });
    multiply_panels(kernel_, panels_, reinterpret_cast<const std::byte*>(to), stride, rows, threads,
                    [&](Index row, Index count, Index first, Index outputs, const std::int32_t* part) {
                      finish(part, row_scales + row, first_row + row, count, first, outputs, output);
                    });
  }

  /// A row as whole numbers, 128 above their values and 128 behind the last; returns their scale.
  float round_row(const T* from, std::uint8_t* to, Index stride) const {
    const Index in = panels_.in;  // a written byte may alias the member: compilers would load it for each number
    const float scale = scale_of(from, in);
    const float factor = scale > 0 ? 1 / scale : 0;
    for (Index k = 0; k < in; ++k) {
      // Adding 3 * 2^22 rounds to the nearest whole number, which is then in the lowest bits.
      const float shifted = widen(from[k]) * factor + 12582912.0f;
      to[k] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(shifted) + std::uint32_t{shift});
    }
    std::fill(to + in, to + stride, std::uint8_t{shift});
    return scale;
  }

  /// Sums of `rows` rows from `row` on and of outputs from `first` on, `[rows x 64]`, to results.
  void finish(const std::int32_t* sums, const float* row_scales, Index row, Index rows, Index first, Index count,
              const Output& output) const {
    float results[few_product_rows * Panels<std::int8_t>::width];
    constexpr Index width = Panels<std::int8_t>::width;
    const float* const scales = scales_.data() + first;
    const std::int32_t* const shifts = shifts_.data() + first;
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < count; ++j) {
        results[i * width + j] = static_cast<float>(sums[i * width + j] - shifts[j]) * (scales[j] * row_scales[i]);
      }
    }
    output.write<T>(results, width, row, rows, first, count);
  }

  PanelKernel kernel_ = panel_kernel<std::int8_t>();
  std::vector<float> scales_;         // [out]
  std::vector<std::int32_t> shifts_;  // [out] 128 times the sum of an output's weights
  OwnPanels<std::int8_t> panels_;
};

}  // namespace

template <class T>
std::unique_ptr<const PackedWeights> pack_int8(const UnpackedWeights<T>& weights, int threads) {
  // Sums of 255 * 127 must fit 31 bits.
  constexpr Index most = 65536;
  if (weights.in > most) fail("weights in int8 have ", weights.in, " inputs, allowed are at most ", most);
  return std::make_unique<Int8Weights<T>>(weights, threads);
}

template std::unique_ptr<const PackedWeights> pack_int8(const UnpackedWeights<float>&, int);
template std::unique_ptr<const PackedWeights> pack_int8(const UnpackedWeights<Eigen::bfloat16>&, int);

}  // namespace llama
