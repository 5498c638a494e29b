#pragma once

#include <limits>
#include <string>

#include "examples/llama/base.hpp"
#include "examples/llama/program/timing.hpp"

namespace llama {

/// A line on the terminal that is written over and over. Where stderr is no terminal, nothing, or a line now and then.
class StatusLine {
 public:
  /// \param seconds  from one line to the next, and to the first, where stderr is no terminal
  explicit StatusLine(double seconds = std::numeric_limits<double>::infinity());
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  void show(const std::string& text);
  /// Makes room for other output.
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
  double seconds_;
  Clock::time_point last_ = Clock::now();
};

/// `seconds` as 42s, 3m07s or 2h05m.
std::string short_time(double seconds);

/// The bar's text: `done` of `total` items, of which `earlier` were there before the clock started `seconds` ago; then
/// what is left of the time if the other items take as long as those so far.
std::string progress_text(Index done, Index earlier, Index total, double seconds);

/// A bar in the status line, with the time that is left; a line every so many seconds where stderr is no terminal.
class ProgressBar {
 public:
  /// Shows an empty bar for `total` items.
  /// \param seconds  as of `StatusLine`
  explicit ProgressBar(Index total, double seconds = 60);

  /// One more item is done with; `earlier`: it was so before this start. `label` says what it was.
  void advance(bool earlier, const std::string& label);

  /// `left` more items are to come, whatever their total was.
  void expect(Index left) { total_ = done_ + left; }

  /// Makes room for a message.
  void clear() { line_.clear(); }

 private:
  void show(const std::string& label);

  StatusLine line_;
  Clock::time_point start_ = Clock::now();
  Index total_;
  Index done_ = 0;
  Index earlier_ = 0;
};

}  // namespace llama
