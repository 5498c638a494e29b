#include "examples/llama/kernels/cuda/linear.hpp"

#include <cublasLt.h>

#include <map>

#include "examples/llama/kernels/cuda/linear_description.hpp"
#include "examples/llama/library.hpp"

namespace llama {
namespace {

/// Shapes to remember: pruned prompts have new numbers of rows again and again.
constexpr std::size_t max_shapes = 4096;

}  // namespace

struct Gemm::State {
  BlasOwner<cublasLtHandle_t, cublasLtDestroy> handle;
  std::map<LinearProblem, cublasLtMatmulAlgo_t> algorithms;

  void multiply(lazyllm::cuda::Context& context, const LinearProblem& problem, const void* weights, const void* bias,
                const void* x, void* y) {
    const ProductDescription description(problem, bias);
    auto found = algorithms.find(problem);
    if (found == algorithms.end()) {
      if (algorithms.size() == max_shapes) algorithms.clear();
      found = algorithms.emplace(problem, best_algorithm(problem, description)).first;
    }
    const float one = 1;
    const float beta = problem.accumulate ? 1 : 0;
    const auto& [product, a, b, c] = description;
    check_blas(
        cublasLtMatmul(handle.get(), product.get(), &one, weights, a.get(), x, b.get(), &beta, y, c.get(), y, c.get(),
                       &found->second, context.workspace(blas_workspace_bytes), blas_workspace_bytes, context.stream()),
        "cublasLtMatmul");
  }

  cublasLtMatmulAlgo_t best_algorithm(const LinearProblem& problem, const ProductDescription& description) const {
    const auto& [product, a, b, c] = description;
    const ProductPreference allowed(problem);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    check_blas(cublasLtMatmulAlgoGetHeuristic(handle.get(), product.get(), a.get(), b.get(), c.get(), c.get(),
                                              allowed.preference.get(), 1, &result, &count),
               "cublasLtMatmulAlgoGetHeuristic");
    check_blas(count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state, "cublasLtMatmulAlgoGetHeuristic");
    return result.algo;
  }
};

Gemm::Gemm() : state_(std::make_unique<State>()) {
  cublasLtHandle_t made = nullptr;
  check_blas(cublasLtCreate(&made), "cublasLtCreate");
  state_->handle.reset(made);
}
Gemm::~Gemm() = default;

void Gemm::multiply(lazyllm::cuda::Context& context, const LinearProblem& problem, const void* weights,
                    const void* bias, const void* x, void* y) {
  state_->multiply(context, problem, weights, bias, x, y);
}

}  // namespace llama
