#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "examples/llama/kernels/cuda/linear_problem.hpp"
#include "examples/llama/library.hpp"

/// \file
/// Matrix products as cuBLASLt is told of them. None of it needs a device.
namespace llama {

/// Throws `lazyllm::cuda_error` unless `status` is success.
inline void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw lazyllm::cuda_error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

/// Destroys an object of cuBLASLt.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct BlasDestroy {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
template <class Handle, cublasStatus_t (*destroy)(Handle)>
using BlasOwner = std::unique_ptr<std::remove_pointer_t<Handle>, BlasDestroy<Handle, destroy>>;

/// What NVIDIA advises for its largest devices.
inline constexpr std::size_t blas_workspace_bytes = std::size_t{32} << 20;

/// A product and its matrices. cuBLASLt's are column-major: there y^T `[out x rows]` = (W^T)^T x^T.
struct ProductDescription {
  using Layout = BlasOwner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  BlasOwner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout a, b, c;  ///< W^T, x^T and y^T, which is what is added to as well

  /// Throws `lazyllm::cuda_error` if a call fails, as all here.
  ProductDescription(const LinearProblem& problem, const void* bias)
      : a(layout(problem.type, problem.in, problem.out, problem.in)),
        b(layout(problem.type, problem.in, problem.rows, problem.x_stride)),
        c(layout(problem.y_type, problem.out, problem.rows, problem.y_stride)) {
    cublasLtMatmulDesc_t made = nullptr;
    check_blas(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    product.reset(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (problem.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
  }

 private:
  static Layout layout(cudaDataType_t type, Index height, Index width, Index stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check_blas(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(height),
                                          static_cast<std::uint64_t>(width), stride),
               "cublasLtMatrixLayoutCreate");
    return Layout(made);
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_blas(cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute");
  }
};

/// What an algorithm may use: the workspace, and the alignment of the matrices. Partial sums are added in float: by
/// default they may be rounded to the type of the result before.
struct ProductPreference {
  BlasOwner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;

  explicit ProductPreference(const LinearProblem& problem) {
    cublasLtMatmulPreference_t made = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    preference.reset(made);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, blas_workspace_bytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, static_cast<std::uint32_t>(problem.alignment));
    }
  }

 private:
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
               "cublasLtMatmulPreferenceSetAttribute");
  }
};

}  // namespace llama
