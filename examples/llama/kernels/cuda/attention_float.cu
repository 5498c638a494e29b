#include "examples/llama/kernels/cuda/attention.cuh"

namespace lazyllm::llama {

template void attention(cuda::Context&, const DevicePlan<float>&, Index, RowsView<const float>, RowsView<float>);

}  // namespace lazyllm::llama
