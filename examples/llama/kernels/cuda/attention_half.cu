#include "examples/llama/kernels/cuda/attention.cuh"

namespace llama {

template void attention(lazyllm::cuda::Context&, const DevicePlan<__half>&, Index, RowsView<const __half>,
                        RowsView<__half>);

}  // namespace llama
