#pragma once

#include <string>

#include "examples/llama/timing.hpp"
#include "lazyllm/core/positions.hpp"

namespace lazyllm::llama {

/// `seconds` as 42s, 3m07s or 2h05m.
std::string short_time(double seconds);

/// The bar's text: `done` of `total` items, of which `earlier` were there before the clock started `seconds` ago; then
/// what is left of the time if the other items take as long as those so far.
std::string progress_text(Index done, Index earlier, Index total, double seconds);

/// A bar on the terminal with the time that is left; nothing where stderr is no terminal.
class ProgressBar {
 public:
  /// Shows an empty bar for `total` items.
  explicit ProgressBar(Index total);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  /// One more item is done with; `earlier`: it was so before this start. `dataset` is its own.
  void advance(bool earlier, const std::string& dataset);

  /// Makes room for a message.
  void clear();

 private:
  void show(const std::string& dataset);

  Clock::time_point start_ = Clock::now();
  Index total_;
  Index done_ = 0;
  Index earlier_ = 0;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace lazyllm::llama
