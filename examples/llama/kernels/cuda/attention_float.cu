#include "examples/llama/kernels/cuda/attention.cuh"

namespace lazyllm::llama {

template void attention(cuda::Context&, const DevicePlan<float>&, Index, Rows<const float>, Rows<float>);

}  // namespace lazyllm::llama
