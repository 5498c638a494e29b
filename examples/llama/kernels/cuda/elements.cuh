#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

/// \file
/// Elements of rows, one by one and by 16 bytes.

namespace llama::kernels {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ T round_to(float value);
template <>
__device__ inline float round_to(float value) {
  return value;
}
template <>
__device__ inline __half round_to(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 round_to(float value) {
  return __float2bfloat16_rn(value);
}

/// Elements that are read or written by one access.
template <class T, int count>
struct alignas(sizeof(T) * count) Pack {
  T values[count];
};

template <class T>
inline constexpr int whole_pack = 16 / static_cast<int>(sizeof(T));

template <int count, class T>
__device__ Pack<T, count> load(const T* from) {
  return *reinterpret_cast<const Pack<T, count>*>(from);
}

template <class T, int count>
__device__ void store(const Pack<T, count>& pack, T* to) {
  *reinterpret_cast<Pack<T, count>*>(to) = pack;
}

/// Reads `count` floats by accesses of up to 16 bytes.
template <int count>
__device__ void load_floats(const float* from, float (&to)[count]) {
  constexpr int step = count < 4 ? count : 4;
#pragma unroll
  for (int i = 0; i < count; i += step) {
    const auto part = load<step>(from + i);
#pragma unroll
    for (int j = 0; j < step; ++j) to[i + j] = part.values[j];
  }
}

/// Whether all of these addresses, and strides and widths in elements of T, are multiples of 16 bytes.
template <class T, class... Strides>
bool by_16_bytes(std::initializer_list<const void*> addresses, Strides... strides) {
  std::uintptr_t bits = 0;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  ((bits |= static_cast<std::uintptr_t>(strides) * sizeof(T)), ...);
  return bits % 16 == 0;
}

}  // namespace llama::kernels
