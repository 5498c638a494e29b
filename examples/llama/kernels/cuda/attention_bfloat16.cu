#include "examples/llama/kernels/cuda/attention.cuh"

namespace llama {

template void attention(lazyllm::cuda::Context&, const DevicePlan<__nv_bfloat16>&, Index, RowsView<const __nv_bfloat16>,
                        RowsView<__nv_bfloat16>);

}  // namespace llama
