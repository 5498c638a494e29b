#include <memory>

#include "examples/llama/kernels/cpu/packed_weights.hpp"

namespace llama {
namespace {

template <class T>
class PanelWeights final : public PackedWeights {
 public:
  PanelWeights(const UnpackedWeights<T>& from, PanelKernel kernel, int threads)
      : kernel_(kernel), panels_(from.in, from.out, threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index j = 0; j < from.out; ++j) {
      const T* const output = from.weights.data() + j * from.in;
      for (Index k = 0; k < from.in; ++k) panels_.at(j, k) = output[k];
    }
  }

  void multiply(const void* x, Index rows, const Output& output, int threads) const override {
    multiply_panels<T>(kernel_, panels_, x, rows, output, threads);
  }

 private:
  PanelKernel kernel_;
  OwnPanels<T> panels_;
};

}  // namespace

template <class T>
std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<T>& weights, int threads) {
  const PanelKernel kernel = weights.in % Panels<T>::depth == 0 ? panel_kernel<T>() : nullptr;
  return kernel == nullptr ? nullptr : std::make_unique<PanelWeights<T>>(weights, kernel, threads);
}

template std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<float>&, int);
template std::unique_ptr<const PackedWeights> pack_in_panels(const UnpackedWeights<Eigen::bfloat16>&, int);

}  // namespace llama
