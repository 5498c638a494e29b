#include "examples/llama/program/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "examples/llama/files/printable.hpp"
#include "examples/llama/program/console.hpp"

namespace llama {

StatusLine::StatusLine(double seconds) : terminal_(isatty(STDERR_FILENO) == 1), seconds_(seconds) {}

void StatusLine::show(const std::string& text) {
  if (!terminal_) {
    if (milliseconds_since(last_) < 1000 * seconds_) return;
    last_ = Clock::now();
    print_status(printable(text) + "\n");
    return;
  }
  // The terminal does not wrap it (DECAWM off and on): a second row would stay where the line is written over.
  print_status("\r\033[K\033[?7l" + printable(text) + "\033[?7h");
  shown_ = true;
}

void StatusLine::clear() {
  if (shown_) print_status("\r\033[K");
  shown_ = false;
}

std::string short_time(double seconds) {
  const auto whole = static_cast<Index>(std::ceil(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string progress_text(Index done, Index earlier, Index total, double seconds) {
  constexpr Index width = 30;
  const auto filled = static_cast<std::size_t>(width * done / total);
  const Index fresh = done - earlier;
  const std::string left =
      fresh == 0 ? "?" : short_time(seconds / static_cast<double>(fresh) * static_cast<double>(total - done));
  return fmt::format("[{:<{}}] {}/{}  ETA {}", std::string(filled, '='), width, done, total, left);
}

ProgressBar::ProgressBar(Index total, double seconds) : line_(seconds), total_(total) { show(""); }

void ProgressBar::advance(bool earlier, const std::string& label) {
  ++done_;
  if (earlier) ++earlier_;
  show(label);
}

void ProgressBar::show(const std::string& label) {
  line_.show(progress_text(done_, earlier_, total_, milliseconds_since(start_) / 1000) + "  " + label);
}

}  // namespace llama
