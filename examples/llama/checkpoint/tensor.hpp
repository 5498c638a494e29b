#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// Element types that weights may have.
enum class DType { f32, f16, bf16 };

/// Bytes of one element.
Index size_of(DType dtype);

/// A view of one weight, row-major, inside a mapped file. Valid as long as its checkpoint, or a copy of it, lives.
/// `data` need not be aligned to the element type.
struct Tensor {
  DType dtype = DType::f32;
  std::vector<Index> shape;
  const std::byte* data = nullptr;
  Index row_stride = 0;  ///< elements from one row of a matrix to the next; 0: its width

  /// Product of `shape`.
  Index elements() const;
};

/// The rows [first, first + count) of `tensor`, or of a vector these elements. Throws `std::invalid_argument` where it
/// has fewer.
Tensor rows_of(const Tensor& tensor, Index first, Index count);

/// The columns [first, first + count) of the matrix `tensor`: rows with gaps. Throws `std::invalid_argument` where it
/// has fewer.
Tensor columns_of(const Tensor& tensor, Index first, Index count);

/// Converts the elements `first`, `first + 1`, ... of `tensor`, counted row-major, into all of `out`. Throws
/// `std::invalid_argument` when the tensor has fewer, or has gaps between its rows and these are not of one row.
void to_float(const Tensor& tensor, Index first, std::span<float> out);

/// A tensor as a file describes it, of any element type; its shape fits its bytes.
struct StoredTensor {
  std::string dtype;  ///< The name that safetensors uses, "F32" for example.
  std::vector<Index> shape;
  std::span<const std::byte> data;
};

/// Tensors of a file by name.
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

}  // namespace llama
