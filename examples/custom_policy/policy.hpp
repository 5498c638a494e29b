#pragma once
// A policy and a score of the user's own. Neither derives from anything.
#include <cstdint>
#include <lazyllm/lazyllm.hpp>
#include <span>
#include <vector>

namespace custom {

// [policy]
/// Keeps half of the tokens after every second layer, and all punctuation. A policy is any callable from a PrunePoint
/// to a Selection. It is asked anew in every step, so it may read what changes between steps: here a mask that grows
/// with the text.
struct KeepPunctuation {
  const std::vector<std::uint8_t>* punctuation;

  lazyllm::Selection operator()(const lazyllm::PrunePoint& point) const {
    if (point.layers_run % 2 != 0) return {};  // keeps everything
    return {.kind = lazyllm::Selection::Kind::top_k,
            .k = lazyllm::keep_count(0.5, point.active_tokens),
            .protect_first = 4,
            .protect_mask = *punctuation};
  }
};

/// Ranks a token by what it adds to the last row: its attention probability times the size of its value.
struct AttentionTimesValue {
  lazyllm::Index last_queries = 1;  // the last token scores

  template <class Context, class Block>
  static void score(Context& context, Block& block, const lazyllm::LayerPlan& plan,
                    std::span<const lazyllm::ScoreWindow> windows, std::span<const AttentionTimesValue* const>) {
    lazyllm::score_by_attention(context, block, plan, windows);
    for (const lazyllm::ScoreWindow& window : windows) {
      const lazyllm::Positions keys = plan.sequence(window.sequence).keys;
      for (std::size_t i = 0; i < keys.size(); ++i) window.scores[i] *= block.value_cache.row(keys[i]).norm();
    }
  }
};

using Pruner = lazyllm::TokenPruner<KeepPunctuation, AttentionTimesValue>;
// [policy-end]

}  // namespace custom
