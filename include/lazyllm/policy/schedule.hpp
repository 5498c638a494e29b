#pragma once

#include <array>
#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lazyllm/core/positions.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm {

/// After `layers_run` layers, keep the share `keep`: 2 means between the second and the third layer, by the scores of
/// the second, whose `LayerPlan::layer()` is 1.
struct LayerKeep {
  Index layers_run = 0;
  double keep = 1;
};

/// The pruning layers of a policy in ascending order, each with a share in (0, 1].
class Schedule {
 public:
  Schedule() = default;
  Schedule(std::initializer_list<LayerKeep> points) : Schedule(std::vector<LayerKeep>(points)) {}

  /// Throws `invalid_argument` if a layer is below 1 or not above the one before, or a share is outside (0, 1].
  explicit Schedule(std::vector<LayerKeep> points) : points_(std::move(points)) {
    Index previous = 0;
    for (const auto& [layer, keep] : points_) {
      if (layer <= previous) {
        detail::fail("schedule: layer ", layer, " is out of range: it must be above ", previous,
                     " (layers ascend, the first is at least 1)");
      }
      if (!(keep > 0 && keep <= 1)) {
        detail::fail("schedule: keep ", keep, " at layer ", layer, " is out of range (0, 1]");
      }
      previous = layer;
    }
  }

  /// Reads `LAYER:KEEP,LAYER:KEEP,…`, e.g. `9:0.7,19:0.7,28:0.7`, or `dense` for no points. Throws `invalid_argument`
  /// on anything else.
  static Schedule parse(std::string_view text) {
    if (text == "dense") return {};
    std::vector<LayerKeep> points;
    for (std::string_view rest = text;;) {
      const std::size_t comma = rest.find(',');
      const std::string_view item = rest.substr(0, comma);
      const std::size_t colon = item.find(':');
      LayerKeep point;
      if (colon == std::string_view::npos || !read(item.substr(0, colon), point.layers_run) ||
          !read(item.substr(colon + 1), point.keep)) {
        detail::fail("schedule '", text, "': '", item, "' is not LAYER:KEEP, e.g. 9:0.7");
      }
      points.push_back(point);
      if (comma == std::string_view::npos) return Schedule(std::move(points));
      rest.remove_prefix(comma + 1);
    }
  }

  /// What `parse` reads, digit for digit.
  std::string text() const {
    if (points_.empty()) return "dense";
    std::string result;
    for (const auto& [layer, keep] : points_) {
      std::array<char, 32> digits;
      char* end = std::to_chars(digits.data(), digits.data() + digits.size(), keep).ptr;
      if (!result.empty()) result += ',';
      result.append(std::to_string(layer) + ':').append(digits.data(), end);
    }
    return result;
  }

  /// Throws `invalid_argument` unless every pruning layer lies before the last of `layers` layers.
  void check(Index layers) const {
    if (!points_.empty() && points_.back().layers_run >= layers) {
      detail::fail("schedule: layer ", points_.back().layers_run, " is out of range 1 to ", layers - 1,
                   " of a model with ", layers, " layers");
    }
  }

  /// The share to keep after `layers_run` layers, or null where nothing is pruned.
  const double* find(Index layers_run) const {
    for (const LayerKeep& point : points_) {
      if (point.layers_run == layers_run) return &point.keep;
    }
    return nullptr;
  }

  const std::vector<LayerKeep>& points() const { return points_; }

 private:
  template <class Number>
  static bool read(std::string_view text, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  }

  std::vector<LayerKeep> points_;
};

}  // namespace lazyllm
