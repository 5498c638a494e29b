#include "examples/llama/kernels/cuda/attention.cuh"

namespace lazyllm::llama {

template void attention(cuda::Context&, const DevicePlan<__half>&, Index, Rows<const __half>, Rows<__half>);

}  // namespace lazyllm::llama
