#include "examples/llama/kernels/cuda/attention.cuh"

namespace lazyllm::llama {

template void attention(cuda::Context&, const DevicePlan<__half>&, Index, RowsView<const __half>, RowsView<__half>);

}  // namespace lazyllm::llama
