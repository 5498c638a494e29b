#include "examples/llama/kernels/cuda/attention.cuh"

namespace lazyllm::llama {

template void attention(cuda::Context&, const DevicePlan<__nv_bfloat16>&, Index, RowsView<const __nv_bfloat16>,
                        RowsView<__nv_bfloat16>);

}  // namespace lazyllm::llama
