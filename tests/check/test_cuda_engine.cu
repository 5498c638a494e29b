#include <doctest/doctest.h>
#include <lazyllm/check.hpp>
#include <limits>

#include "examples/cuda_engine/engine.cuh"
#include "support/prompt.hpp"

using lazyllm::Index;

namespace {

std::vector<float> host(const on_cuda::Floats& values) {
  std::vector<float> result(values.size());
  thrust::copy(values.begin(), values.end(), result.begin());
  return result;
}

struct CheckedEngine : on_cuda::Engine {
  static constexpr Index hidden_size = on_cuda::hidden_size;

  void embed(auto&, auto tokens, auto, auto rows) { Engine::embed(tokens, rows); }
  std::vector<float> logits(auto&, auto row) {
    const on_cuda::Floats& device = Engine::logits(row);
    context.synchronize();
    return host(device);
  }
  void poison(auto& ctx, Index layer, Index, Index position) {
    auto& block = layers[static_cast<std::size_t>(layer)].attention();
    const std::vector<float> nan(hidden_size, std::numeric_limits<float>::quiet_NaN());
    for (auto* cache : {&block.key_cache, &block.value_cache}) {
      ctx.upload(std::span(nan), on_cuda::pointer(*cache) + position * hidden_size);
    }
  }
  /// On the host, from what `attend` has left.
  std::vector<float> probabilities(auto& ctx, const lazyllm::LayerPlan& plan, Index, Index row) {
    const auto at = [](Index i) { return static_cast<std::size_t>(i); };
    ctx.synchronize();
    const std::vector<float> keys = host(layers[at(plan.layer())].attention().key_cache),
                             queries = host(buffers.queries);
    std::vector<float> p;
    float highest = -INFINITY, sum = 0;
    for (const lazyllm::Position key : plan.keys().first(at(plan.key_limits()[at(row)]))) {
      float logit = 0;
      for (Index d = 0; d < hidden_size; ++d)
        logit += queries[at(row * hidden_size + d)] * keys[at(key * hidden_size + d)];
      p.push_back(logit * on_cuda::scale);
      highest = std::max(highest, p.back());
    }
    for (float& value : p) sum += value = std::exp(value - highest);
    for (float& value : p) value /= sum;
    return p;
  }
};

}  // namespace

TEST_CASE("the CUDA engine is right") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  {
    lazyllm::cuda::Context context(stream);
    const auto make = [stream](Index, Index) { return CheckedEngine{{stream, lazyllm::KeepAll()}}; };
    const auto prompt = lazyllm::test::prompt_of(60);
    const auto report = lazyllm::check_engine(context, make, prompt, {.sequences = 1});
    INFO(report.text());
    CHECK(report.passed());
  }
  cudaStreamDestroy(stream);
}
