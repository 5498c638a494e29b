#include "examples/llama/kernels/cpu/linear.hpp"

#include <cstring>
#include <type_traits>
#include <vector>

#include "examples/llama/kernels/cpu/packed_weights.hpp"
#include "examples/llama/kernels/cpu/rounding.hpp"
#include "examples/llama/library.hpp"

namespace llama {
namespace {

void check_shapes(std::span<const Tensor> weights, std::span<const Tensor> biases) {
  if (weights.empty()) fail("Linear: no weights given, at least 1 needed");
  if (!biases.empty() && biases.size() != weights.size())
    fail("Linear: ", biases.size(), " biases for ", weights.size(), " weights, allowed are 0 or as many");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto& shape = weights[i].shape;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[1] != weights[0].shape[1])
      fail("Linear: weight ", i, " must be [out x in] with the same in as weight 0");
    if (!biases.empty() && biases[i].elements() != shape[0])
      fail("Linear: bias ", i, " has ", biases[i].elements(), " elements, its weight ", shape[0], " rows");
  }
}

template <class T>
constexpr DType dtype_of = std::is_same_v<T, float> ? DType::f32 : DType::bf16;

/// Converts `tensor`, row-major with rows of `width`, to T.
template <class T>
void convert(const Tensor& tensor, Index width, T* to, [[maybe_unused]] int threads) {
  const Index rows = tensor.elements() / width;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> row(static_cast<std::size_t>(width));
#pragma omp for schedule(static)
    for (Index i = 0; i < rows; ++i) {
      if (tensor.dtype == dtype_of<T>) {
        const Index stride = tensor.row_stride > 0 ? tensor.row_stride : width;
        std::memcpy(static_cast<void*>(to + i * width), tensor.data + i * stride * size_of(tensor.dtype),
                    static_cast<std::size_t>(width) * sizeof(T));
      } else {
        to_float(tensor, i * width, row);
        round_to(row.data(), width, to + i * width);
      }
    }
  }
}

}  // namespace

template <class T>
HostLinear<T>::HostLinear(std::span<const Tensor> weights, std::span<const Tensor> biases, int threads,
                          WeightFormat format) {
  check_shapes(weights, biases);
  if (threads < 1) fail("Linear: threads ", threads, " is out of range, at least 1");
  in_ = weights[0].shape[1];
  for (const Tensor& weight : weights) out_ += weight.shape[0];

  UnpackedWeights<T> unpacked{in_, out_, {}};
  unpacked.weights.resize(static_cast<std::size_t>(in_ * out_));
  T* to = unpacked.weights.data();
  for (const Tensor& weight : weights) {
    convert(weight, in_, to, threads);
    to += weight.elements();
  }
  for (const Tensor& bias : biases) {
    bias_.resize(bias_.size() + static_cast<std::size_t>(bias.elements()));
    to_float(bias, 0, std::span(bias_).last(static_cast<std::size_t>(bias.elements())));
  }
  if (format == WeightFormat::int8) {
    weights_ = pack_int8(unpacked, threads);
    return;
  }
#ifdef LLAMA_HAS_ONEDNN
  weights_ = pack_for_onednn(unpacked, threads);
#endif
  if (!weights_) weights_ = pack_in_panels(unpacked, threads);
}

template <class T>
HostLinear<T>::HostLinear(HostLinear&&) noexcept = default;
template <class T>
HostLinear<T>& HostLinear<T>::operator=(HostLinear&&) noexcept = default;
template <class T>
HostLinear<T>::~HostLinear() = default;

template <class T>
void HostLinear<T>::check(RowsView<const T> x, Index y_rows, Index y_width, Index y_stride) const {
  if (x.width != in_ || y_width != out_ || x.rows != y_rows)
    fail("Linear: x [", x.rows, " x ", x.width, "] and y [", y_rows, " x ", y_width, "], allowed are [rows x ", in_,
         "] and [rows x ", out_, "]");
  if (x.rows > 1 && (x.stride != x.width || y_stride != y_width))
    fail("Linear: row strides ", x.stride, " of x and ", y_stride, " of y must be the widths ", in_, " and ", out_);
}

template <class T>
void HostLinear<T>::multiply(RowsView<const T> x, void* y, bool y_is_float, bool accumulate, int threads) const {
  const float* const bias = bias_.empty() ? nullptr : bias_.data();
  if (x.rows > 0) weights_->multiply(x.data, x.rows, {y, out_, bias, y_is_float, accumulate}, threads);
}

template class HostLinear<float>;
template class HostLinear<Eigen::bfloat16>;

}  // namespace llama
