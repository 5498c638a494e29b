#pragma once

#include <lazyllm/lazyllm.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "examples/llama/kernels/attention_shape.hpp"
#include "examples/llama/kernels/kv_view.hpp"

namespace llama {

/// What the kernels of a layer share on the CPU, as `DevicePlan` on a CUDA device: the layer's plan and the caches of
/// its sequences. Copies no list.
template <class T>
class HostPlan {
 public:
  /// The rows of a sequence that have queries, and where they begin among those of the batch.
  struct Queries {
    Index first_row;
    Positions positions;
    Positions key_limits;
  };

  explicit HostPlan(const AttentionShape& shape) : shape_(shape) {}

  /// `caches` are the sequences' in the order of the plan. Both must stay until the layer has run. Throws
  /// `std::invalid_argument` if there is not one cache for each sequence, or one is too small.
  void update(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, std::span<const KvView<T>> caches) {
    if (std::ssize(caches) != plan.sequences())
      fail("HostPlan: ", caches.size(), " caches for ", plan.sequences(), " sequences");
    for (Index s = 0; s < plan.sequences(); ++s) {
      const Index tokens = plan.sequence(s).tokens;
      const Index capacity = caches[static_cast<std::size_t>(s)].capacity;
      if (tokens > capacity)
        fail("HostPlan: sequence ", s, " has ", tokens, " tokens, out of range 0 to ", capacity,
             ", the capacity of its cache");
    }
    layer_ = plan;
    caches_ = caches;
  }

  const AttentionShape& shape() const { return shape_; }
  Index sequences() const { return layer_->sequences(); }
  Index rows() const { return layer_->rows(); }
  Index query_rows() const {
    const auto outputs = layer_->outputs();
    return layer_->outputs_only() ? std::accumulate(outputs.begin(), outputs.end(), Index{0}) : rows();
  }
  lazyllm::SequencePlan sequence(Index s) const { return layer_->sequence(s); }
  const KvView<T>& cache(Index s) const { return caches_[static_cast<std::size_t>(s)]; }

  /// All rows of a sequence or, in the last layer, its output rows.
  Queries queries(Index s) const {
    const lazyllm::SequencePlan part = sequence(s);
    if (!layer_->outputs_only()) return {part.first_row, part.positions, part.key_limits};
    const auto before = layer_->outputs().first(static_cast<std::size_t>(s));
    const auto outputs = static_cast<std::size_t>(part.outputs);
    return {std::accumulate(before.begin(), before.end(), Index{0}), part.positions.last(outputs),
            part.key_limits.last(outputs)};
  }

 private:
  AttentionShape shape_;
  std::optional<lazyllm::LayerPlan> layer_;
  std::span<const KvView<T>> caches_;
};

}  // namespace llama
