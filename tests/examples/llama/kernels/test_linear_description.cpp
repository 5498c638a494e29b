#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "examples/llama/kernels/cuda/linear_description.hpp"

namespace llama {
namespace {

using T = __nv_bfloat16;

/// An attribute of an object, read back by `get`.
template <class Value, class Get, class Object, class Attribute>
Value read(Get* get, Object object, Attribute attribute) {
  Value value{};
  std::size_t written = 0;
  check_blas(get(object, attribute, &value, sizeof(value), &written), "an attribute");
  CHECK(written == sizeof(value));
  return value;
}

template <class Value>
Value of_product(const ProductDescription& description, cublasLtMatmulDescAttributes_t attribute) {
  return read<Value>(cublasLtMatmulDescGetAttribute, description.product.get(), attribute);
}

template <class Value>
Value of_preference(const ProductPreference& allowed, cublasLtMatmulPreferenceAttributes_t attribute) {
  return read<Value>(cublasLtMatmulPreferenceGetAttribute, allowed.preference.get(), attribute);
}

/// Type, rows, columns and distance of columns.
std::array<std::int64_t, 4> shape(const ProductDescription::Layout& layout) {
  const auto number = [&]<class Value>(cublasLtMatrixLayoutAttribute_t attribute, Value) {
    return static_cast<std::int64_t>(read<Value>(cublasLtMatrixLayoutGetAttribute, layout.get(), attribute));
  };
  return {number(CUBLASLT_MATRIX_LAYOUT_TYPE, std::uint32_t{}), number(CUBLASLT_MATRIX_LAYOUT_ROWS, std::uint64_t{}),
          number(CUBLASLT_MATRIX_LAYOUT_COLS, std::uint64_t{}), number(CUBLASLT_MATRIX_LAYOUT_LD, std::int64_t{})};
}

/// An address that nothing reads.
template <class Element = T>
Element* at(std::uintptr_t address) {
  return reinterpret_cast<Element*>(address);
}

constexpr Index rows = 5;
constexpr Index in = 64;
constexpr Index out = 96;

LinearProblem problem_at(std::uintptr_t x) {
  return LinearProblem::of(LinearView<T>{at(0x20000), nullptr, in, out}, RowsView<const T>(at(x), rows, in, 80),
                           RowsView<T>(at(0x40000), rows, out), false);
}

TEST_CASE("cuBLASLt is told the transposed weights, the rows of x and y with their gaps, and the bias") {
  const LinearView<T> linear{at(0x20000), at(0x30000), in, out};
  const auto problem = LinearProblem::of(linear, RowsView<const T>(at(0x10000), rows, in, 80),
                                         RowsView<T>(at(0x40000), rows, out, 104), true);
  CHECK(problem.accumulate);
  const ProductDescription description(problem, linear.bias);
  CHECK(of_product<std::int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T);
  CHECK(of_product<std::int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_N);
  CHECK(of_product<std::int32_t>(description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) == CUBLAS_COMPUTE_32F);
  CHECK(of_product<std::uint32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BIAS);
  CHECK(of_product<const void*>(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER) == linear.bias);
  CHECK(shape(description.a) == std::array<std::int64_t, 4>{CUDA_R_16BF, in, out, in});
  CHECK(shape(description.b) == std::array<std::int64_t, 4>{CUDA_R_16BF, in, rows, 80});
  CHECK(shape(description.c) == std::array<std::int64_t, 4>{CUDA_R_16BF, out, rows, 104});
}

TEST_CASE("cuBLASLt is told of no bias where there is none, and of results in float") {
  const LinearView<__half> linear{at<__half>(0x20000), nullptr, in, out};
  const auto problem = LinearProblem::of(linear, RowsView<const __half>(at<__half>(0x10000), rows, in),
                                         RowsView<float>(at<float>(0x40000), rows, out), false);
  const ProductDescription description(problem, nullptr);
  CHECK(of_product<std::uint32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_DEFAULT);
  CHECK(of_product<const void*>(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER) == nullptr);
  CHECK(shape(description.b) == std::array<std::int64_t, 4>{CUDA_R_16F, in, rows, in});
  CHECK(shape(description.c) == std::array<std::int64_t, 4>{CUDA_R_32F, out, rows, out});
}

TEST_CASE("algorithms may use the workspace, and rely on 16 bytes at most") {
  struct Place {
    std::uintptr_t x;
    std::uint32_t alignment;
  };
  for (const Place& place : {Place{0x10000, 16}, {0x10010, 16}, {0x10008, 8}}) {
    CAPTURE(place.x);
    const ProductPreference allowed(problem_at(place.x));
    CHECK(of_preference<std::uint64_t>(allowed, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) == 32 << 20);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      CHECK(of_preference<std::uint32_t>(allowed, attribute) == place.alignment);
    }
  }
}

TEST_CASE("rows get the same algorithm wherever they lie, but for odd addresses") {
  CHECK(problem_at(0x10010) == problem_at(0x10000));
  CHECK(problem_at(0x10100) == problem_at(0x10000));
  CHECK(problem_at(0x10008) != problem_at(0x10000));
}

}  // namespace
}  // namespace llama
