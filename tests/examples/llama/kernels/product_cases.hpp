#pragma once

#include <doctest/doctest.h>
#include <thrust/tabulate.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <lazyllm/cuda.cuh>
#include <random>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bench/examples/llama/model/shapes.hpp"
#include "examples/llama/kernels/cuda/device_array.hpp"
#include "examples/llama/kernels/cuda/download.hpp"
#include "examples/llama/kernels/cuda/linear.hpp"
#include "support/cuda_memory.hpp"

/// \file
/// Matrix products of the models' sizes: numbers are made on the device, and samples of the results are compared with
/// sums in double on the host.
namespace llama::test {

/// Element i of a matrix: a multiple of 1/128 between -1 and 1. All types hold it, and floats the sums of products.
template <class T>
struct Numbers {
  std::uint64_t seed;

  LAZYLLM_HOST_DEVICE T operator()(Index i) const {
    std::uint64_t bits = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15 + seed * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 29) * 0x94D049BB133111EB;
    return static_cast<T>(static_cast<float>(static_cast<int>(bits >> 56) - 128) / 128);
  }
  double at(Index i) const { return static_cast<double>(static_cast<float>((*this)(i))); }
};

/// Element `places[i]` of `from`.
template <class Y>
struct Picked {
  const Y* from;
  const Index* places;

  LAZYLLM_HOST_DEVICE float operator()(Index i) const { return static_cast<float>(from[places[i]]); }
};

template <class Y, class Function>
void tabulate(lazyllm::cuda::Context& context, Y* to, Index count, Function function) {
  lazyllm::cuda::detail::thrust_call(context, count,
                                     [=](const auto& policy) { thrust::tabulate(policy, to, to + count, function); });
}

template <class Y>
DeviceArray<Y> numbers(lazyllm::cuda::Context& context, Index count, std::uint64_t seed) {
  DeviceArray<Y> made(context, count);
  tabulate(context, made.data(), count, Numbers<Y>{seed});
  return made;
}

struct ModelProduct {
  std::string_view name;
  Index in, out;
  bool bias = false;
  bool accumulate = false;
  bool logits = false;  ///< results in float
};

inline std::vector<ModelProduct> products_of(std::string_view shape) {
  const ModelConfig config = shape_named(shape);
  const bool biased = shape.starts_with("qwen");
  const Index width = config.hidden_size;
  const Index q = config.heads * config.head_dim;
  const Index kv = 2 * config.kv_heads * config.head_dim;
  return {{"kv+q", width, kv + q, biased},
          {"kv", width, kv, biased},
          {"q", width, q, biased},
          {"o", q, width, false, true},
          {"gate_up", width, 2 * config.intermediate_size},
          {"down", config.intermediate_size, width, false, true},
          {"vocabulary", width, config.vocab, false, false, true}};
}

template <class T, class Y>
void multiply(lazyllm::cuda::Context& context, Gemm& gemm, const ModelProduct& product, const LinearView<T>& linear,
              RowsView<const T> x, RowsView<Y> y) {
  if constexpr (std::is_same_v<T, Y>) {
    if (product.accumulate) return gemm.accumulate(context, linear, x, y);
  }
  gemm.apply(context, linear, x, y);
}

/// y of one row, in bits: all but what is added to is the same as in `model_product`.
template <class T, class Y>
std::vector<Y> one_row(lazyllm::cuda::Context& context, Gemm& gemm, const ModelProduct& product,
                       const LinearView<T>& linear, RowsView<const T> x) {
  const auto y = numbers<Y>(context, product.out, 4);
  multiply<T, Y>(context, gemm, product, linear, x, {y.data(), 1, product.out});
  const Y* const values = download(context, y.data(), product.out);
  return {values, values + product.out};
}

/// About 200 samples of y of `rows` rows; then the last row where it lies and as a copy, which must be the same.
template <class T, class Y>
void model_product(lazyllm::cuda::Context& context, Gemm& gemm, const ModelProduct& product, Index rows,
                   double allowed) {
  constexpr Index samples = 200;
  const auto weights = numbers<T>(context, product.out * product.in, 1);
  const auto bias = numbers<T>(context, product.out, 2);
  const auto x = numbers<T>(context, rows * product.in, 3);
  const auto y = numbers<Y>(context, rows * product.out, 4);
  const LinearView<T> linear{weights.data(), product.bias ? bias.data() : nullptr, product.in, product.out};
  const RowsView<const T> inputs(x.data(), rows, product.in);
  multiply<T, Y>(context, gemm, product, linear, inputs, {y.data(), rows, product.out});

  std::mt19937_64 random(5);
  std::vector<Index> places{0, rows * product.out - 1};
  while (std::ssize(places) < samples) places.push_back(static_cast<Index>(random() >> 1) % (rows * product.out));
  const lazyllm::test::DeviceArray<Index> device_places(context, places);
  const DeviceArray<float> picked(context, samples);
  tabulate(context, picked.data(), samples, Picked<Y>{y.data(), device_places.data()});
  const float* const got = download(context, picked.data(), samples);
  double largest = 0;
  double worst = 0;
  for (Index i = 0; i < samples; ++i) {
    const Index place = places[static_cast<std::size_t>(i)];
    const Index row = place / product.out;
    const Index column = place % product.out;
    double expected = product.bias ? Numbers<T>{2}.at(column) : 0;
    if (product.accumulate) expected += Numbers<Y>{4}.at(place);
    for (Index k = 0; k < product.in; ++k) {
      expected += Numbers<T>{3}.at(row * product.in + k) * Numbers<T>{1}.at(column * product.in + k);
    }
    const double error = std::abs(static_cast<double>(got[i]) - expected);
    worst = error <= worst ? worst : error;  // keeps a NaN
    largest = std::max(largest, std::abs(expected));
  }
  CHECK(worst <= allowed * largest);

  const RowsView<const T> last = inputs.subrows(rows - 1, 1);
  const DeviceArray<T> copy(context, product.in);
  lazyllm::cuda::detail::check(cudaMemcpyAsync(copy.data(), last.data, static_cast<std::size_t>(product.in) * sizeof(T),
                                               cudaMemcpyDeviceToDevice, context.stream()),
                               "cudaMemcpyAsync");
  const auto there = one_row<T, Y>(context, gemm, product, linear, last);
  const auto copied = one_row<T, Y>(context, gemm, product, linear, {copy.data(), 1, product.in});
  CHECK(std::ranges::equal(std::as_bytes(std::span(there)), std::as_bytes(std::span(copied))));
}

/// `allowed` is the relative error of rounding to T.
template <class T>
void model_products(std::string_view shape, const std::vector<Index>& row_counts, double allowed) {
  auto context = lazyllm::test::CudaMemory::make_context();
  Gemm gemm;
  CAPTURE(shape);
  for (const ModelProduct& product : products_of(shape)) {
    CAPTURE(product.name);
    for (const Index rows : row_counts) {
      CAPTURE(rows);
      if (product.logits) {
        model_product<T, float>(context, gemm, product, rows, 1e-5);
      } else {
        model_product<T, T>(context, gemm, product, rows, allowed);
      }
    }
  }
}

}  // namespace llama::test
