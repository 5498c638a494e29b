#include "examples/llama/kernels/cuda/attention.cuh"

namespace llama {

template void attention(lazyllm::cuda::Context&, const DevicePlan<float>&, Index, RowsView<const float>,
                        RowsView<float>);

}  // namespace llama
