#include "examples/llama/kernels/cuda/linear.hpp"

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>

#include "examples/llama/library.hpp"

namespace llama {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw lazyllm::cuda_error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
template <class Handle, cublasStatus_t (*destroy)(Handle)>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;

using LayoutOwner = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

LayoutOwner layout(cudaDataType_t type, Index height, Index width, Index stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(height), static_cast<std::uint64_t>(width),
                                   stride),
        "cublasLtMatrixLayoutCreate");
  return LayoutOwner(made);
}

/// What NVIDIA advises for its largest devices.
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

/// Shapes to remember: pruned prompts have new numbers of rows again and again.
constexpr std::size_t max_shapes = 4096;

}  // namespace

struct Gemm::State {
  Owner<cublasLtHandle_t, cublasLtDestroy> handle;
  std::map<Problem, cublasLtMatmulAlgo_t> algorithms;

  /// cuBLASLt's matrices are column-major: there y^T `[out x rows]` = (W^T)^T x^T.
  void multiply(lazyllm::cuda::Context& context, const Problem& problem, const void* weights, const void* bias,
                const void* x, void* y) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description(made);
    const auto set = [&]<class Value>(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
      check(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (problem.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    const LayoutOwner a = layout(problem.type, problem.in, problem.out, problem.in);
    const LayoutOwner b = layout(problem.type, problem.in, problem.rows, problem.x_stride);
    const LayoutOwner c = layout(problem.y_type, problem.out, problem.rows, problem.y_stride);
    auto found = algorithms.find(problem);
    if (found == algorithms.end()) {
      if (algorithms.size() == max_shapes) algorithms.clear();
      found = algorithms.emplace(problem, best_algorithm(problem, made, a.get(), b.get(), c.get())).first;
    }
    const float one = 1;
    const float beta = problem.accumulate ? 1 : 0;
    check(cublasLtMatmul(handle.get(), made, &one, weights, a.get(), x, b.get(), &beta, y, c.get(), y, c.get(),
                         &found->second, context.workspace(workspace_bytes), workspace_bytes, context.stream()),
          "cublasLtMatmul");
  }

  cublasLtMatmulAlgo_t best_algorithm(const Problem& problem, cublasLtMatmulDesc_t description,
                                      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                      cublasLtMatrixLayout_t c) const {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
    const auto set = [&]<class Value>(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
      check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, static_cast<std::uint32_t>(problem.alignment));
    }
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle.get(), description, a, b, c, c, made, 1, &result, &count),
          "cublasLtMatmulAlgoGetHeuristic");
    check(count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state, "cublasLtMatmulAlgoGetHeuristic");
    return result.algo;
  }
};

Gemm::Gemm() : state_(std::make_unique<State>()) {
  cublasLtHandle_t made = nullptr;
  check(cublasLtCreate(&made), "cublasLtCreate");
  state_->handle.reset(made);
}
Gemm::~Gemm() = default;

void Gemm::multiply(lazyllm::cuda::Context& context, const Problem& problem, const void* weights, const void* bias,
                    const void* x, void* y) {
  state_->multiply(context, problem, weights, bias, x, y);
}

}  // namespace llama
