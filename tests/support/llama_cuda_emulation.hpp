#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/cuda_emulation.hpp"

// The library is compiled for the emulation from here on.
#include <lazyllm/cuda.cuh>

/// \file
/// What the Llama host's kernels need beside cuda_emulation.hpp: launches with shared memory, and the tensor-core and
/// copy instructions of examples/llama/kernels/cuda/mma.cuh, each fragment laid out as the PTX manual says. Copies
/// arrive as late as they may.

namespace lazyllm::test::cuda_emulation {

struct AsyncCopy {
  std::uint32_t to;
  const void* from;
  bool wanted;
};
inline std::array<std::vector<AsyncCopy>, 1024> async_copies;  // by thread

inline void check_copies() {
  for (const auto& copies : async_copies) {
    if (!copies.empty()) throw std::logic_error("a block ended before its copies");
  }
}
inline const bool checks_copies = (block_ended = check_copies, true);

/// Writes 16 bytes of shared memory. Not by memcpy, which the thread sanitizer would not see.
template <class Word>
void set_chunk(std::uint32_t at, const Word& word) {
  auto* const chunk = reinterpret_cast<std::uint32_t*>(&shared_bytes[at]);
  for (unsigned i = 0; i < 4; ++i) chunk[i] = word(i);
}

/// The fragments of a warp's matrix product: two numbers of each register.
struct Fragments {
  float a[4][2];
  float b[2][2];
};

inline std::atomic<std::size_t> tensor_products = 0;  // so far, counted by thread

/// Gives this thread's fragments to the other lanes of the warp; those of all 32, valid until the next call but one.
LAZYLLM_UNWATCHED inline const Fragments* exchange_fragments(const Fragments& own) {
  static Fragments of_warps[32][2][32];
  static std::array<unsigned, 1024> exchanges;
  Fragments* const fragments = of_warps[threadIdx.x / 32][exchanges[threadIdx.x]++ % 2];
  fragments[threadIdx.x % 32] = own;
  exchange(0);
  return fragments;
}

/// The two T in a register, as floats.
template <class T>
void unpack(std::uint32_t bits, float (&numbers)[2]) {
  T pair[2];
  std::memcpy(static_cast<void*>(pair), &bits, sizeof(pair));
  for (unsigned i = 0; i < 2; ++i) numbers[i] = static_cast<float>(pair[i]);
}

/// Calls `read(row, register number)` with the addresses of the matrices' rows.
template <class Read>
void load_rows(std::uint32_t row, const Read& read) {
  const std::uint64_t* const rows = exchange_value(row);
  for (unsigned m = 0; m < 4; ++m) {
    read([&](unsigned i) { return reinterpret_cast<const std::uint16_t*>(&shared_bytes[rows[m * 8 + i]]); }, m);
  }
}

}  // namespace lazyllm::test::cuda_emulation

namespace llama::kernels {

namespace emulation = lazyllm::test::cuda_emulation;

using lazyllm::cuda::detail::launch;

inline std::byte* shared_memory() { return emulation::shared_bytes; }

template <class... Parameters, class... Arguments>
void launch_shared(lazyllm::cuda::Context& context, dim3 blocks, unsigned threads, std::size_t shared,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  lazyllm::cuda::detail::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared)),
      "cudaFuncSetAttribute");
  lazyllm::cuda::detail::check(
      emulation::launch_kernel(context.stream(), blocks, threads, shared, kernel, arguments...), "kernel launch");
}

template <class T>
void multiply(const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, float (&c)[4]) {
  emulation::tensor_products.fetch_add(1, std::memory_order_relaxed);  // puts no accesses in order
  emulation::Fragments own;
  for (unsigned i = 0; i < 4; ++i) emulation::unpack<T>(a[i], own.a[i]);
  emulation::unpack<T>(b0, own.b[0]);
  emulation::unpack<T>(b1, own.b[1]);
  const emulation::Fragments* const lanes = emulation::exchange_fragments(own);
  const unsigned lane = threadIdx.x % 32;
  // A[row][k] is in register row / 8 + 2 * (k / 8) of lane row % 8 * 4 + k % 8 / 2; B[k][column] in register k / 8 of
  // lane column * 4 + k % 8 / 2; C[row][column] in c[row / 8 * 2 + column % 2] of lane row % 8 * 4 + column / 2.
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8;
    const unsigned column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const float left = lanes[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2][k % 2];
      const float right = lanes[column * 4 + k % 8 / 2].b[k / 8][k % 2];
      sum += left * right;
    }
    c[i] += sum;
  }
}

inline void load_matrices(std::uint32_t row, std::uint32_t (&m)[4]) {
  const unsigned lane = threadIdx.x % 32;
  emulation::load_rows(row, [&](const auto& address, unsigned number) {
    m[number] = *reinterpret_cast<const std::uint32_t*>(address(lane / 4) + lane % 4 * 2);
  });
}

inline void load_transposed_matrices(std::uint32_t row, std::uint32_t (&m)[4]) {
  const unsigned lane = threadIdx.x % 32;
  emulation::load_rows(row, [&](const auto& address, unsigned number) {
    const std::uint32_t low = address(lane % 4 * 2)[lane / 4];
    const std::uint32_t high = address(lane % 4 * 2 + 1)[lane / 4];
    m[number] = low | high << 16;
  });
}

inline std::uint32_t shared_address(const void* address) {
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(address) - emulation::shared_bytes);
}

inline void copy_async(std::uint32_t to, const void* from, bool wanted) {
  if ((to | reinterpret_cast<std::uintptr_t>(from)) % 16 != 0) throw std::logic_error("a copy is not aligned");
  emulation::set_chunk(to, [](unsigned) { return ~0U; });  // what was there may be gone from here on
  emulation::async_copies[threadIdx.x].push_back({to, from, wanted});
}

inline void wait_for_copies() {
  for (const emulation::AsyncCopy& copy : emulation::async_copies[threadIdx.x]) {
    const auto* const from = static_cast<const std::uint32_t*>(copy.from);
    emulation::set_chunk(copy.to, [&](unsigned i) { return copy.wanted ? from[i] : 0; });
  }
  emulation::async_copies[threadIdx.x].clear();
}

inline std::uint32_t computed_here(std::uint32_t value) { return value; }

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_divide(float a, float b) { return a / b; }

}  // namespace llama::kernels
