#include "examples/llama/checkpoint/tensor.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "examples/llama/base.hpp"

namespace llama {
namespace {

/// Goes through a small aligned buffer: the source may be unaligned, and Eigen's conversions are vectorised.
template <class Element>
void convert(const std::byte* from, std::span<float> out) {
  constexpr std::size_t block = 512;
  std::array<Element, block> buffer;
  for (std::size_t at = 0; at < out.size(); at += block) {
    const std::size_t count = std::min(block, out.size() - at);
    std::memcpy(static_cast<void*>(buffer.data()), from + at * sizeof(Element), count * sizeof(Element));
    const auto length = static_cast<Eigen::Index>(count);
    Eigen::Map<Eigen::ArrayXf>(out.data() + at, length) =
        Eigen::Map<const Eigen::Array<Element, Eigen::Dynamic, 1>>(buffer.data(), length).template cast<float>();
  }
}

}  // namespace

Index size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

Index Tensor::elements() const { return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>()); }

Tensor rows_of(const Tensor& tensor, Index first, Index count) {
  if (first < 0 || count < 0 || first + count > tensor.shape.at(0)) {
    fail("rows ", first, " to ", first, " + ", count, " of a tensor that has ", tensor.shape.at(0));
  }
  const Index width = tensor.elements() / std::max<Index>(tensor.shape[0], 1);
  Tensor rows = tensor;
  rows.shape[0] = count;
  rows.data += first * (tensor.row_stride > 0 ? tensor.row_stride : width) * size_of(tensor.dtype);
  return rows;
}

Tensor columns_of(const Tensor& tensor, Index first, Index count) {
  if (tensor.shape.size() != 2 || first < 0 || count < 0 || first + count > tensor.shape[1]) {
    fail("columns ", first, " to ", first, " + ", count, " of a tensor that has ", tensor.shape.back());
  }
  Tensor columns = tensor;
  columns.row_stride = tensor.row_stride > 0 ? tensor.row_stride : tensor.shape[1];
  columns.shape[1] = count;
  columns.data += first * size_of(tensor.dtype);
  return columns;
}

void to_float(const Tensor& tensor, Index first, std::span<float> out) {
  const auto count = static_cast<Index>(out.size());
  if (first < 0 || first > tensor.elements() || count > tensor.elements() - first)
    fail("elements ", first, " to ", first, " + ", count, " of a tensor that has ", tensor.elements());
  if (count == 0) return;
  if (tensor.row_stride > 0) {
    const Index width = tensor.shape[1];
    if (first % width + count > width) {
      fail("elements ", first, " to ", first, " + ", count, " of a tensor with gaps between its rows of ", width);
    }
    first += first / width * (tensor.row_stride - width);
  }
  const std::byte* const from = tensor.data + first * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case DType::f32: std::memcpy(out.data(), from, out.size_bytes()); return;
    case DType::f16: return convert<Eigen::half>(from, out);
    case DType::bf16: return convert<Eigen::bfloat16>(from, out);
  }
}

}  // namespace llama
