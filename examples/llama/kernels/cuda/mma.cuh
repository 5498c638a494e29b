#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// \file
/// The instructions that CUDA C++ has no names for: tensor cores, matrix loads and asynchronous copies of sm_80;
/// and what is computed fast but not to the last place.
/// Fragments are laid out as the PTX manual says for `mma.m16n8k16`: with row = lane / 4 and pair = 2 * (lane % 4),
/// - A `[16 x 16]`: a[0] = A[row][pair, pair + 1], a[1] = A[row + 8][the same], a[2] and a[3] eight columns further;
/// - B `[16 x 8]`: b[0] = B[pair, pair + 1][row], b[1] eight rows further;
/// - C `[16 x 8]`: c[0], c[1] = C[row][pair, pair + 1], c[2] and c[3] eight rows further.

#ifdef __CUDACC__

namespace llama::kernels {

/// c += a b, by the whole warp.
template <class T>
__device__ void multiply(const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, float (&c)[4]);

#define LLAMA_MULTIPLY(T, name)                                                                                      \
  template <>                                                                                                        \
  __device__ inline void multiply<T>(const std::uint32_t(&a)[4], std::uint32_t b0, std::uint32_t b1, float(&c)[4]) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                              \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                              \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                    \
  }
LLAMA_MULTIPLY(__half, "f16")
LLAMA_MULTIPLY(__nv_bfloat16, "bf16")
#undef LLAMA_MULTIPLY

/// The address of shared memory that these instructions take.
__device__ inline std::uint32_t shared_address(const void* address) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 m + i gives the address of row i of matrix
/// m, 16 bytes. Register m then holds, of matrix m, row lane / 4, elements 2 * (lane % 4) and the next.
__device__ inline void load_matrices(std::uint32_t row, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

/// The same of the transposed matrices: column lane / 4 of matrix m, rows 2 * (lane % 4) and the next.
__device__ inline void load_transposed_matrices(std::uint32_t row, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

/// Begins to copy 16 bytes from global to shared memory, or to clear them unless `wanted`: `from` is then not read.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(wanted ? 16 : 0)
               : "memory");
}

/// Waits for all copies that this thread has begun; the other threads' need a barrier behind it.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// The value, which the compiler takes for a new one: what follows from it is not computed before.
__device__ inline std::uint32_t computed_here(std::uint32_t value) {
  asm volatile("mov.b32 %0, %0;" : "+r"(value));
  return value;
}

/// 2^x, with an error of some units in the last place.
__device__ inline float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// a / b, with an error of some units in the last place; 0 for a `b` above 2^126.
__device__ inline float fast_divide(float a, float b) { return __fdividef(a, b); }

}  // namespace llama::kernels

#endif
