#include <algorithm>
#include <memory>
#include <vector>

#include "examples/llama/kernels/cpu/packed_weights.hpp"

namespace llama {
namespace {

template <class T>
class PanelWeights final : public PackedWeights {
 public:
  PanelWeights(const UnpackedWeights<T>& from, int threads) : panels_(from.in, from.out, threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index j = 0; j < from.out; ++j) {
      const T* const output = from.weights.data() + j * from.in;
      for (Index k = 0; k < from.in; ++k) panels_.at(j, k) = output[k];
    }
  }

  void multiply(const void* x, Index rows, const Output& output, int threads) const override {
    const auto* from = static_cast<const T*>(x);
    const Index in = panels_.in, filled = panels_.groups() * Panels<T>::depth;
    if (in == filled) return multiply_panels(kernel_, panels_, from, rows, output, threads);
    static thread_local std::vector<T> with_gaps;
    with_gaps.assign(static_cast<std::size_t>(rows * filled), T(0));
    for (Index i = 0; i < rows; ++i) std::copy_n(from + i * in, in, with_gaps.data() + i * filled);
    multiply_panels(kernel_, panels_, with_gaps.data(), rows, output, threads);
  }

 private:
  PanelKernel kernel_ = panel_kernel<T>();
  OwnPanels<T> panels_;
};

}  // namespace

template <class T>
std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<T>& weights, int threads) {
  return std::make_unique<PanelWeights<T>>(weights, threads);
}

template std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<float>&, int);
template std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<Eigen::bfloat16>&, int);

}  // namespace llama
