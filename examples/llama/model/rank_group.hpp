#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "examples/llama/library.hpp"

namespace llama {

/// The ranks that run one model together, each with a part of every layer (tensor parallelism). All of them make the
/// same calls in the same order.
class RankGroup {
 public:
  /// Replaces `values` by their sums over all ranks.
  using Sum = std::function<void(std::span<float> values)>;

  /// `all_reduce` and `sum` are those of rank `rank` of `count`. Throws `lazyllm::invalid_argument` as
  /// `lazyllm::Ranks`.
  RankGroup(Index rank, Index count, lazyllm::Ranks::AllReduce all_reduce, Sum sum)
      : ranks_(rank, count, std::move(all_reduce)), sum_(std::move(sum)) {}

  lazyllm::Ranks& ranks() { return ranks_; }
  /// Whether this is the rank that writes what all of them found.
  bool writes() const { return ranks_.rank() == 0; }

  /// Calls `write(values)`, which fills `count` values that are 0, and adds them up over the ranks. What it throws on
  /// one rank is thrown as `lazyllm::rank_error` on all. The result is valid until the next call. The memory for the
  /// values is taken before: a rank that has none throws `std::bad_alloc`, and the others wait for it.
  template <class Write>
  std::span<float> sum(Index count, const Write& write) {
    values_.assign(static_cast<std::size_t>(count) + 1, 0.0F);  // the last one says whether a rank has failed
    const std::span<float> values = std::span(values_).first(static_cast<std::size_t>(count));
    std::exception_ptr failure;
    try {
      write(values);
    } catch (...) {
      failure = std::current_exception();
      values_.back() = 1;
    }
    sum_(values_);
    if (values_.back() != 0) ranks_.raise(failure);
    return values;
  }

 private:
  lazyllm::Ranks ranks_;
  Sum sum_;
  std::vector<float> values_;
};

}  // namespace llama
