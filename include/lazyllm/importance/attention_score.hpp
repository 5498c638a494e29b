#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lazyllm/concepts.hpp"
#include "lazyllm/core/layer_plan.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm {

/// The scores that one sequence of a batch needs in a layer, for a `TokenScore`.
template <class Score>
struct ScoreRequest {
  const Score* score = nullptr;  ///< the sequence's options
  Index sequence = 0;            ///< of the plan
  Index new_tokens = 0;          ///< that the step brought to it
  std::span<float> scores{};     ///< `[keys of the sequence]` output, in the memory of the backend
};

/// How the importance of a token comes from attention probabilities. The default is the paper's eq. 1: the probability
/// from the last token, mean over the query heads. The options are applied in the order in which they are declared.
struct AttentionScore {
  /// Score by the last `last_queries` positions of the sequence instead of the last one alone; of these, the tokens
  /// take part that the step brought and that are still active. In a decode step that is the last token.
  Index last_queries = 1;
  Reduce reduce = Reduce::mean;
  /// Add up the scores of all layers that have run in this step (the running mean, but for a factor that no selection
  /// depends on). Scores are then computed in every layer.
  bool over_layers = false;
  /// Give a token the highest score among the `pooling` active tokens around it; odd, 1 for none.
  Index pooling = 1;

  /// Reads `last`, `mean:N` or `max:N` (over the last N queries), followed by any of `+layers` and `+pool:W`, for
  /// example `mean:8+pool:5`. Throws `invalid_argument` on anything else.
  static AttentionScore parse(std::string_view text) {
    AttentionScore score;
    const auto bad = [text](std::string_view part) {
      detail::fail("score '", text, "': '", part,
                   "' is not understood; a score is last, mean:N or max:N, then any of +layers and +pool:W");
    };
    const auto number_after = [&](std::string_view part, std::string_view name) {
      Index number = 0;
      const char* end = part.data() + part.size();
      const auto [stop, error] = std::from_chars(part.data() + name.size(), end, number);
      if (error != std::errc() || stop != end) bad(part);
      return number;
    };
    std::size_t begin = 0;
    for (std::size_t end = 0; end != std::string_view::npos; begin = end + 1) {
      end = text.find('+', begin);
      const std::string_view part = text.substr(begin, end == std::string_view::npos ? end : end - begin);
      if (begin == 0 && part == "last") continue;
      if (begin == 0 && (part.starts_with("mean:") || part.starts_with("max:"))) {
        score.reduce = part.starts_with("max:") ? Reduce::max : Reduce::mean;
        score.last_queries = number_after(part, score.reduce == Reduce::max ? "max:" : "mean:");
      } else if (begin != 0 && part == "layers") {
        score.over_layers = true;
      } else if (begin != 0 && part.starts_with("pool:")) {
        score.pooling = number_after(part, "pool:");
      } else {
        bad(part);
      }
    }
    score.check();
    return score;
  }

  /// What `parse` reads.
  std::string text() const {
    std::string result = "last";
    if (last_queries > 1) result = (reduce == Reduce::max ? "max:" : "mean:") + std::to_string(last_queries);
    if (over_layers) result += "+layers";
    if (pooling > 1) result += "+pool:" + std::to_string(pooling);
    return result;
  }

  /// Throws `invalid_argument` for an option out of range.
  void check() const {
    if (last_queries < 1) detail::fail("AttentionScore: last_queries ", last_queries, " is out of range, at least 1");
    if (pooling < 1 || pooling % 2 == 0) {
      detail::fail("AttentionScore: pooling ", pooling, " is out of range: odd and at least 1");
    }
  }

  /// Writes the scores that `requests` ask for in the layer that `block` has just run, before options that look beyond
  /// the layer; may change the order of the requests. A score of the caller's own that derives from this one can call
  /// it and go on from there. Throws `invalid_argument` if the block scores by itself and a `last_queries` is not 1.
  template <class Context, class Block, std::derived_from<AttentionScore> Score>
  static void write(Context& context, Block& block, const LayerPlan& plan, std::span<ScoreRequest<Score>> requests) {
    constexpr bool by_block = ExposesScores<Block, Context>;
    constexpr bool by_library = ExposesQueriesAndKeys<Block>;
    static_assert(
        by_block || by_library,
        "lazyllm: to be scored, the attention block needs either `last_token_scores(context, plan, sequence, "
        "scores)` or both `queries(plan)`, which returns a QueryRows, and `keys(plan, sequence)`, which returns "
        "a KeyView");
    if constexpr (by_block) {
      const auto rest = std::partition(requests.begin(), requests.end(),
                                       [](const auto& request) { return request.score->last_queries == 1; });
      for (const auto& request : std::span(requests.begin(), rest)) {
        block.last_token_scores(context, plan, request.sequence, request.scores);
      }
      requests = {rest, requests.end()};
    }
    if (requests.empty()) return;
    if constexpr (by_library) {
      attention_scores(context, block.queries(plan), std::ssize(requests),
                       [&](Index i) { return task(block, plan, requests[static_cast<std::size_t>(i)]); });
    } else if constexpr (by_block) {
      detail::fail("AttentionScore: last_queries ", requests.front().score->last_queries,
                   " is out of range: 1 for an attention block that computes its own scores");
    }
  }

 private:
  /// The window of the sequence's rows that score.
  template <class Block, class Score>
  static auto task(Block& block, const LayerPlan& plan, const ScoreRequest<Score>& request) {
    const SequencePlan part = plan.sequence(request.sequence);
    const Index first_position = part.tokens - std::min(request.score->last_queries, request.new_tokens);
    const auto first = std::lower_bound(part.positions.begin(), part.positions.end(), first_position);
    const Index row = first - part.positions.begin();
    return ScoreTask<std::remove_cvref_t<decltype(block.keys(plan, request.sequence))>>{
        .first_row = part.first_row + row,
        .limits = part.key_limits.subspan(static_cast<std::size_t>(row)),
        .keys = block.keys(plan, request.sequence),
        .active = part.keys,
        .reduce = request.score->reduce,
        .scores = request.scores};
  }
};

}  // namespace lazyllm
