#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/finite.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/pruner/preset.hpp"
#include "lazyllm/pruner/text.hpp"

namespace lazyllm {

/// Widths of a model's layers, as in Hugging Face's configs, from which the work of a prefill follows. By default those
/// of a model of a billion parameters.
struct LayerWidths {
  Index hidden_size = 2048;        ///< of the rows between the layers
  Index heads = 32;                ///< of queries
  Index kv_heads = 8;              ///< of keys and values
  Index head_dim = 64;             ///< of each head
  Index intermediate_size = 8192;  ///< of a gated feed-forward
};

/// What presets have as `min_tokens`. After prompts of 256 tokens and fewer the first decode step, which revives much
/// of what was parked, or the later steps could take the time that the prompt's step had saved (docs/benchmarks.md,
/// "After 384 tokens"). Where only the first token counts, 0 is better.
inline constexpr Index recommended_min_tokens = 384;

/// What presets have as `max_revived`. Without a limit the step of a second prompt of 32 tokens took 2.0 to 3.0 times
/// dense's time, with this one 1.0 to 1.3 times. The KL of the answers became 0.83 to 1.17 times as high
/// (docs/quality.md, "A second turn").
inline constexpr Index recommended_max_revived = 8;

/// A preset for a model that nobody has calibrated. The cuts are at relative depths. The score was found on one model
/// and checked on another; both searches kept the cuts that they began with (docs/quality.md). `speedup` is that of the
/// prefill of 2048 tokens by operation count. Longer prompts get more of it, as attention is more of their work; the
/// tokens that are always kept make it less for prompts of a few hundred. Models of fewer than 5 layers may get less
/// than `speedup`, as they have few places to cut: there no cut keeps less than a fifth. A model of one layer is not
/// pruned, nor is a sequence of fewer than `recommended_min_tokens`. Throws `invalid_argument` for `layers` outside 1
/// to 65535, a width outside 1 to 2^31 - 1, and a speedup outside 1 to 4.
inline Preset recommended(Index layers, double speedup, const LayerWidths& widths = {}) {
  constexpr std::array<double, 4> weights = {1, 1, 0.5, 0.5};  // a cut keeps x^weight
  constexpr double tokens = 2048;
  const auto check = [](const char* name, Index value, Index most) {
    if (value < 1 || value > most) {
      detail::fail("recommended: ", name, " ", value, " is out of range 1 to ", most);
    }
  };
  check("layers", layers, detail::max_layers);
  check("hidden_size", widths.hidden_size, detail::most_tokens);
  check("heads", widths.heads, detail::most_tokens);
  check("kv_heads", widths.kv_heads, detail::most_tokens);
  check("head_dim", widths.head_dim, detail::most_tokens);
  check("intermediate_size", widths.intermediate_size, detail::most_tokens);
  if (!(detail::is_finite(speedup) && speedup >= 1 && speedup <= 4))
    detail::fail("recommended: speedup ", speedup, " is out of range 1 to 4");
  if (layers == 1) return {};
  const auto points_of = [&](double x) {
    std::vector<LayerKeep> points;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double depth = 1.0 / 6 + static_cast<double>(i) / 7;
      const auto layer = std::clamp<Index>(std::lround(depth * static_cast<double>(layers)), 1, layers - 1);
      if (!points.empty() && layer <= points.back().layers_run) continue;
      points.push_back({layer, std::round(std::pow(x, weights[i]) * 1e3) / 1e3});
    }
    return points;
  };
  // Multiply-adds of a layer for each token, in units of the hidden size: of the projections, of causal attention with
  // all tokens active, and of the feed-forward, of which the layer that prunes a token spares its own already.
  const auto query_width = static_cast<double>(widths.heads * widths.head_dim);
  const double key_value = 2 * static_cast<double>(widths.kv_heads * widths.head_dim);
  const double query_output = 2 * query_width;
  const double attention = tokens * query_width / static_cast<double>(widths.hidden_size);
  const double feed_forward = 3 * static_cast<double>(widths.intermediate_size);
  const auto work_of = [&](const std::vector<LayerKeep>& points) {
    double active = 1;
    double work = 0;
    auto next = points.begin();
    for (Index layer = 1; layer < layers; ++layer) {
      work += (key_value + query_output) * active + attention * active * active;
      if (next != points.end() && next->layers_run == layer) active *= next++->keep;
      work += feed_forward * active;
    }
    return work + key_value * active;  // the last layer has one output
  };
  const double dense = work_of({});
  double slow = 1;
  double fast = layers < 5 ? 0.2 : 0.05;  // 5 layers get 4x before 0.05
  for (int i = 0; i < 30; ++i) {
    const double x = (slow + fast) / 2;
    (dense / work_of(points_of(x)) >= speedup ? fast : slow) = x;
  }
  std::vector<LayerKeep> points = points_of(fast);
  std::erase_if(points, [](const LayerKeep& point) { return point.keep >= 1; });
  const bool mild = speedup < 2;
  const std::optional<Index> last_cut = points.empty() ? std::nullopt : std::optional<Index>(points.back().layers_run);
  return {.schedule = Schedule(std::move(points)),
          .score = {.over_heads = Reduce::max, .last_queries = 32, .pooling = 15},
          .protect_first = 4,
          .protect_last = 32,
          .max_revived = recommended_max_revived,
          // From 2x on 6 rows at most, the new token's among them: kernels that wait for the weights have them almost
          // for free. At 1.5x fewer than 4 and 4 lost on one of two models (docs/quality.md).
          .decode_revived = mild ? 4 : 3,
          // The step that misses most, once an answer.
          .first_revived = mild ? std::nullopt : std::optional<Index>(32),
          .continuations = mild ? 4 : 2,
          .revive_from = last_cut,  // where a row costs least
          .min_tokens = recommended_min_tokens};
}

/// Whether `text` asks for a recommended preset: `auto:SPEEDUPx`.
inline bool names_recommended(std::string_view text) { return text.starts_with("auto:"); }

/// The recommended preset that `text` asks for, e.g. `auto:2.3x`. Throws `invalid_argument` on anything else, and as
/// `recommended`.
inline Preset parse_recommended(std::string_view text, Index layers, const LayerWidths& widths = {}) {
  double speedup = 0;
  if (!names_recommended(text) || !text.ends_with('x') ||
      !detail::read_number(text.substr(5, text.size() - 6), speedup)) {
    detail::fail("schedule '", text, "' is not auto:SPEEDUPx, e.g. auto:2.3x");
  }
  return recommended(layers, speedup, widths);
}

}  // namespace lazyllm
