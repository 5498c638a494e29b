#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lazyllm/engine/positions.hpp"

/// \file
/// Products of queries with the keys of listed tokens, in float, from a K of any element and layout. Written for the
/// lanes of Eigen, whatever the instruction set: BLAS would need K in one piece, and its bits may depend on how many
/// keys there are.

namespace lazyllm::cpu::detail {

/// Eigen's own conversion of bfloat16 keeps compilers from vectorising.
inline float to_float(Eigen::bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.value} << 16); }

template <class T>
float to_float(T value) {
  return static_cast<float>(value);
}

/// Element number `i` of those in a word of memory, which is one float or two shorter elements.
template <class T, int i>
float element_of(float word) {
  if constexpr (std::is_same_v<T, float>) {
    return word;
  } else {
    constexpr int shift = (std::endian::native == std::endian::little) == (i == 0) ? 0 : 16;
    return to_float(std::bit_cast<T>(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(word) >> shift)));
  }
}

/// So many keys lie side by side in the lanes of a product, each with sums of its own: a key's products do not depend
/// on its neighbours, and nothing is summed up across lanes.
constexpr Index key_lanes = 16;
using Lanes = Eigen::Array<float, key_lanes, 1>;

/// Floats of the largest packet of Eigen, as its largest static alignment tells it.
constexpr int packet_floats = std::clamp<int>(EIGEN_MAX_STATIC_ALIGN_BYTES / 4, 4, key_lanes);

/// Rows of products begin on a multiple of so many bytes.
constexpr int product_alignment = std::min<int>(Eigen::AlignedMax, key_lanes * sizeof(float));

/// across[j * key_lanes + lane] = keys[lane][j], for j below `elements`. Words of one float or two shorter elements are
/// moved, in squares that Eigen transposes in packets.
template <class T>
void put_across(const std::array<const T*, key_lanes>& keys, Index elements, float* across) {
  constexpr int side = packet_floats, in_word = std::is_same_v<T, float> ? 1 : 2;
  static_assert(key_lanes % side == 0);
  Index j = 0;
  for (; j + side * in_word <= elements; j += side * in_word) {
    for (Index lane = 0; lane < key_lanes; lane += side) {
      Eigen::Matrix<float, side, side> words;
      for (int i = 0; i < side; ++i) {
        std::memcpy(words.data() + i * side, keys[lazyllm::detail::to_size(lane + i)] + j, side * sizeof(float));
      }
      words.transposeInPlace();
      for (int i = 0; i < side; ++i) {
        float* const to = across + (j + i * in_word) * key_lanes + lane;
        for (int k = 0; k < side; ++k) to[k] = element_of<T, 0>(words(k, i));
        if constexpr (in_word == 2) {
          for (int k = 0; k < side; ++k) to[key_lanes + k] = element_of<T, 1>(words(k, i));
        }
      }
    }
  }
  for (; j < elements; ++j) {
    for (Index lane = 0; lane < key_lanes; ++lane) {
      across[j * key_lanes + lane] = to_float(keys[lazyllm::detail::to_size(lane)][j]);
    }
  }
}

/// products[i * stride + lane] += queries[i * head_dim + j] * across[j * key_lanes + lane] for every j below
/// `elements`, one after the other; `first` begins the sums.
template <int count>
void add_products(const float* queries, Index head_dim, Index elements, const float* across, bool first,
                  float* products, Index stride) {
  using Memory = Eigen::Map<Lanes, product_alignment>;
  Lanes sums[count];
  for (int i = 0; i < count; ++i) {
    if (first) {
      sums[i].setZero();
    } else {
      sums[i] = Memory(products + i * stride);
    }
  }
  for (Index j = 0; j < elements; ++j) {
    const Eigen::Map<const Lanes, product_alignment> element(across + j * key_lanes);
    for (int i = 0; i < count; ++i) sums[i] += queries[i * head_dim + j] * element;
  }
  for (int i = 0; i < count; ++i) Memory(products + i * stride) = sums[i];
}

/// Calls `body(std::integral_constant<int, count>())`, for a count from 1 to `most`.
template <int most, class Body>
void with_constant(Index count, const Body& body) {
  if (count == most) {
    body(std::integral_constant<int, most>());
  } else if constexpr (most > 1) {
    with_constant<most - 1>(count, body);
  }
}

template <class T>
Lanes load(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return Eigen::Map<const Lanes>(from);
  } else {
    Lanes lanes;
    for (Index lane = 0; lane < lanes.size(); ++lane) lanes[lane] = to_float(from[lane]);
    return lanes;
  }
}

/// a . b, both `[head_dim]`. The lanes have a fixed number and order, so that the bits do not depend on where a and b
/// lie.
template <class T>
float dot(const float* a, const T* b, Index head_dim) {
  constexpr Index size = Lanes::SizeAtCompileTime;
  Lanes lanes = Lanes::Zero();
  Index j = 0;
  for (; j + size <= head_dim; j += size) lanes += load(a + j) * load(b + j);
  float sum = lanes.sum();
  for (; j < head_dim; ++j) sum += a[j] * to_float(b[j]);
  return sum;
}

/// The products of queries `[kv_heads x count x head_dim]`, `count` for each key head, with the keys `keys` of their
/// heads, to `products` `[kv_heads x count x stride]`, whose rows begin on a multiple of `product_alignment`. Of more
/// than one query it writes products of a multiple of `key_lanes` keys, those behind the last key of no meaning. The
/// bits of a product do not depend on `count`, but for 1.
template <class Keys>
void multiply_keys(const float* queries, Index count, Index head_dim, const Keys& key_view, Positions keys,
                   float* products, Index stride) {
  if (count == 1) {  // which does not pay for bringing keys into lanes
    for (Index i = 0; i < std::ssize(keys); ++i) {
      for (Index kv_head = 0; kv_head < key_view.kv_heads; ++kv_head) {
        products[kv_head * stride + i] =
            dot(queries + kv_head * head_dim, key_view.key(keys[lazyllm::detail::to_size(i)], kv_head), head_dim);
      }
    }
    return;
  }
  constexpr Index slab = 128;              // elements of a head at a time
  constexpr int most = packet_floats / 2;  // queries at a time: with 8 registers of sums
  alignas(64) float across[slab * key_lanes];
  for (Index i = 0; i < std::ssize(keys); i += key_lanes) {
    for (Index kv_head = 0; kv_head < key_view.kv_heads; ++kv_head) {
      std::array<const typename Keys::value_type*, key_lanes> lanes;
      for (Index lane = 0; lane < key_lanes; ++lane) {  // spare lanes have the last key
        const Index key = std::min(i + lane, std::ssize(keys) - 1);
        lanes[lazyllm::detail::to_size(lane)] = key_view.key(keys[lazyllm::detail::to_size(key)], kv_head);
      }
      for (Index j = 0; j < head_dim; j += slab) {
        const Index elements = std::min(slab, head_dim - j);
        put_across(lanes, elements, across);
        for (auto& lane : lanes) lane += elements;
        const Index end = (kv_head + 1) * count;
        for (Index query = kv_head * count; query < end; query += most) {
          with_constant<most>(std::min<Index>(most, end - query), [&]<int number>(std::integral_constant<int, number>) {
            add_products<number>(queries + query * head_dim + j, head_dim, elements, across, j == 0,
                                 products + query * stride + i, stride);
          });
        }
      }
    }
  }
}

}  // namespace lazyllm::cpu::detail
