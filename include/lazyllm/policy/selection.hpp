#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// Where in a step a policy is asked: between two layers, for one sequence. It may be asked before the layers up to
/// there have run, and more than once. So its answer must depend only on the point, and on data that stays the same
/// until the prompt (all its chunks) or the decode step has ended. While more of a prompt is to come, it is asked with
/// the fewest and with the most tokens that there can be (2^31 - 1), and the prompt waits for its end where it prunes
/// for either. So results are those of the prompt in one step. A policy that keeps all for both but prunes for a number
/// in between makes the entry that ends the prompt fail.
struct PrunePoint {
  Index layers_run = 0;      ///< layers before the point, 1 … layers - 1
  Index layers = 0;          ///< layers of the model
  Index active_tokens = 0;   ///< tokens active in the layer that ran last
  Index tokens = 0;          ///< tokens of the sequence so far, prompt and generated
  Index new_tokens = 0;      ///< tokens of the prompt, all its chunks together, or of the decode step
  Index steps = 0;           ///< steps that the sequence had finished before this one; a prompt in chunks is one
  Index decoded_tokens = 0;  ///< that decode steps have brought since the last prompt, before this step
  Index outputs = 1;         ///< how many of the new tokens are returned
  /// What the step's entry says that the new tokens may continue with, the best first; see `Continuations`.
  std::span<const Position> continuations{};

  /// Whether this is a decode step: one new token, or several that are all returned, as drafted tokens are. A prompt of
  /// one token counts as one.
  bool decodes() const { return new_tokens <= std::max<Index>(outputs, 1); }
};

/// A policy's answer: which of the active tokens stay active in the next layer.
struct Selection {
  /// Which tokens stay.
  enum class Kind : std::uint8_t {
    all,               ///< every active token; all that are parked here come back, without a limit
    top_k,             ///< the `k` highest scores, equal scores to the smaller position
    top_p,             ///< the fewest highest scores that hold the share `p` of all active tokens' scores
    not_pruned_before  ///< without scores: the tokens that are not parked here, and `protect`
  };

  static constexpr Index unlimited = std::numeric_limits<Index>::max();  ///< no limit for `max_revived`

  Kind kind = Kind::all;  ///< decides which of the following count
  Index k = 0;            ///< with top_k; at least 1
  double p = 1;           ///< with top_p; in (0, 1]
  /// With top_k and top_p: positions below it are always kept. They count as kept.
  Index protect_first = 0;
  /// With top_k and top_p: the last `protect_last` positions of the sequence are always kept; at least 1.
  Index protect_last = 1;
  /// With top_k and top_p: positions i with mask[i] != 0 are always kept. Positions past its end are not protected.
  /// The memory must stay, and hold the same, until the step ends.
  std::span<const std::uint8_t> protect_mask{};
  /// With all kinds but `all`: these positions, in any order, are always kept, too. Memory as of `protect_mask`.
  std::span<const Position> protect{};
  /// With top_k and top_p: of the selected tokens that are parked here, the `max_revived` highest-scored ones are
  /// revived. The others stay parked and are not active in the next layer. Protected tokens are always revived, and
  /// count among them.
  Index max_revived = unlimited;

  /// Whether tokens are ranked by their scores.
  bool ranks() const { return kind == Kind::top_k || kind == Kind::top_p; }
};

/// A policy is any callable from a `PrunePoint` to a `Selection`: the types of this folder, a lambda, or a
/// `std::function` where the choice is made at run time.
template <class Policy>
concept SelectionPolicy = requires(const Policy& policy, const PrunePoint& point) {
  { policy(point) } -> std::convertible_to<Selection>;
};

/// A policy chosen at run time. All sequences of a step share one type of pruner: where they have different policies,
/// it is `TokenPruner<AnyPolicy>`.
using AnyPolicy = std::function<Selection(const PrunePoint&)>;

/// Tokens that a keep ratio in (0, 1] leaves of `active_tokens` >= 1: ceil(ratio * active_tokens), at least one.
inline Index keep_count(double ratio, Index active_tokens) {
  // The small term undoes the rounding of ratios such as 0.7 that binary numbers cannot hold.
  const auto count = static_cast<Index>(std::ceil(ratio * static_cast<double>(active_tokens) - 1e-9));
  return std::clamp<Index>(count, 1, active_tokens);
}

}  // namespace lazyllm
