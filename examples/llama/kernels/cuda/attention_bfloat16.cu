#include "examples/llama/kernels/cuda/attention.cuh"

namespace lazyllm::llama {

template void attention(cuda::Context&, const DevicePlan<__nv_bfloat16>&, Index, Rows<const __nv_bfloat16>,
                        Rows<__nv_bfloat16>);

}  // namespace lazyllm::llama
