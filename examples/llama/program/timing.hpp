#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace llama {

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// The middle one of at least one value, or the mean of the two in the middle.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// The least value that at least `percent` percent of the values, which are at least one, do not exceed; above 0.
inline double percentile(std::vector<double> values, std::size_t percent) {
  std::ranges::sort(values);
  return values[(values.size() * percent + 99) / 100 - 1];
}

/// How far the median of values like these may be from that of many more: twice its standard error. From 2 values on.
inline double noise_of_median(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double of_a_mean = std::sqrt(squares / std::max(1.0, count - 1) / count);
  return 2 * 1.2533 * of_a_mean;  // sqrt(pi / 2)
}

}  // namespace llama
