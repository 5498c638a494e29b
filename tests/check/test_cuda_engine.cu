#include <doctest/doctest.h>
#include <lazyllm/check.hpp>
#include <limits>

#include "examples/cuda_engine/engine.cuh"

namespace {

struct CheckedEngine : on_cuda::Engine {
  using value_type = float;
  using Index = lazyllm::Index;

  CheckedEngine(cudaStream_t stream, Index tokens) : Engine(stream, lazyllm::KeepAll(), tokens) {}
  Index hidden_size() const { return on_cuda::hidden_size; }
  auto& layers() { return Engine::layers; }
  void embed(lazyllm::cuda::Context& ctx, std::span<const std::int32_t> tokens, lazyllm::Positions,
             lazyllm::RowsView<float> rows) {
    Engine::embed(ctx, tokens, rows);
  }
  std::vector<float> logits(lazyllm::cuda::Context& ctx, lazyllm::RowsView<float> rows) {
    std::vector<float> values(static_cast<std::size_t>(rows.rows * rows.width));
    copy_to_host(ctx, lazyllm::RowsView<const float>(rows), values.data());
    return values;
  }
  void poison(lazyllm::cuda::Context& ctx, Index layer, Index /*sequence*/, lazyllm::Position position) {
    auto& block = layers()[static_cast<std::size_t>(layer)].attention();
    const std::vector<float> poison(on_cuda::hidden_size, std::numeric_limits<float>::quiet_NaN());
    for (auto* cache : {&block.key_cache, &block.value_cache}) {
      ctx.upload(std::span(poison), on_cuda::pointer(*cache) + position * on_cuda::hidden_size);
    }
  }
  /// On the host, from what `attend` has left.
  std::vector<float> probabilities(lazyllm::cuda::Context& ctx, const lazyllm::LayerPlan& plan, Index, Index row) {
    const auto at = [](Index i) { return static_cast<std::size_t>(i); };
    ctx.synchronize();
    const std::vector<float> all_keys = host(layers()[at(plan.layer())].attention().key_cache);
    const std::vector<float> queries = host(lists.query);
    std::vector<float> p;
    float highest = -INFINITY, sum = 0;
    for (const lazyllm::Position key : plan.keys().first(at(plan.key_limits()[at(row)]))) {
      float logit = 0;
      for (Index d = 0; d < on_cuda::hidden_size; ++d) {
        logit += queries[at(row * on_cuda::hidden_size + d)] * all_keys[at(key * on_cuda::hidden_size + d)];
      }
      p.push_back(logit * on_cuda::scale);
      highest = std::max(highest, p.back());
    }
    for (float& value : p) sum += value = std::exp(value - highest);
    for (float& value : p) value /= sum;
    return p;
  }

 private:
  static std::vector<float> host(const thrust::device_vector<float>& values) {
    std::vector<float> result(values.size());
    thrust::copy(values.begin(), values.end(), result.begin());
    return result;
  }
};

}  // namespace

TEST_CASE("the CUDA engine is right") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  {
    lazyllm::cuda::Context context(stream);
    const auto make = [stream](lazyllm::Index, lazyllm::Index tokens) { return CheckedEngine(stream, tokens); };
    std::vector<std::int32_t> prompt(60);
    for (std::int32_t i = 0; i < 60; ++i) prompt[static_cast<std::size_t>(i)] = i * i % on_cuda::vocabulary;
    const auto report = lazyllm::check_engine(context, make, prompt, {.sequences = 1});
    INFO(report.text());
    CHECK(report.passed());
  }
  cudaStreamDestroy(stream);
}
