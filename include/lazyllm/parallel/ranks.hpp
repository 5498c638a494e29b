#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/finite.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// Thrown on all ranks when one of them fails. The message names that rank and says what happened there.
class rank_error : public error {
 public:
  using error::error;
};

/// How the numbers of the ranks become one.
enum class ReduceOp : std::uint8_t {
  sum,  ///< of all ranks
  max   ///< the highest
};

/// The processes that run one model together, as one of them sees them. All of them make the same calls in the same
/// order. What they exchange are whole numbers, so that all get the same bits, in whatever order they are reduced.
class Ranks {
 public:
  /// What an engine supplies: replaces `values`, in host memory, by their sums or maxima over all ranks.
  using AllReduce = std::function<void(std::span<std::int64_t> values, ReduceOp op)>;

  /// Throws `invalid_argument` unless `rank` is one of `count`, and `all_reduce` can be called.
  Ranks(Index rank, Index count, AllReduce all_reduce)
      : rank_(rank), count_(count), share_(1.0 / static_cast<double>(count)), all_reduce_(std::move(all_reduce)) {
    if (count < 1) detail::fail("Ranks: count ", count, " is out of range, at least 1");
    if (rank < 0 || rank >= count) detail::fail("Ranks: rank ", rank, " is out of range 0 to ", count - 1);
    if (!all_reduce_) detail::fail("Ranks: the all-reduce is empty");
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  Index rank() const { return rank_; }    ///< this process, from 0
  Index count() const { return count_; }  ///< of all ranks

  /// The share of the query heads that this rank scores with. 0: its attention block is not asked.
  double share() const { return share_; }

  /// Sets the share, which is that of an equal split to begin with. The shares of all ranks make 1. A stage of a
  /// pipeline sets it for each layer: 1 in its own ones, 0 in the others. Throws `invalid_argument` outside 0 to 1.
  void set_share(double share) {
    if (!(detail::is_finite(share) && share >= 0 && share <= 1))
      detail::fail("Ranks: share ", share, " is out of range 0 to 1");
    share_ = share;
  }

  /// Calls `write(values)`, which fills `count` numbers that are 0, and reduces them over the ranks. What it throws on
  /// one rank is thrown as `rank_error` on all. The result is valid until the next call. The memory for the numbers is
  /// taken before: a rank that has none throws `std::bad_alloc`, and the others wait for it.
  template <class Write>
  std::span<const std::int64_t> all_reduce(std::size_t count, ReduceOp op, const Write& write) {
    values_.assign(count + 1, 0);  // the last one says whether a rank has failed
    const std::span<std::int64_t> numbers = std::span(values_).first(count);
    std::exception_ptr failure;
    try {
      write(numbers);
    } catch (...) {
      failure = std::current_exception();
      values_.back() = 1;
    }
    all_reduce_(values_, op);
    if (values_.back() != 0) raise(failure);
    return numbers;
  }

  /// Calls `work`, and waits until all ranks have. What it throws on one rank is thrown as `rank_error` on all.
  template <class Work>
  void together(const Work& work) {
    all_reduce(0, ReduceOp::sum, [&](std::span<std::int64_t>) { work(); });
  }

  /// `count` floats of scratch memory, valid until the next call.
  std::span<float> scratch(std::size_t count) {
    if (count > scratch_.size()) scratch_.resize(std::max(count, 2 * scratch_.size()));
    return std::span(scratch_).first(count);
  }

  /// Throws the same `rank_error` on all ranks; `failure` is null on those that have not failed. For an engine whose
  /// own collective has told all ranks that one has.
  [[noreturn]] void raise(const std::exception_ptr& failure) {
    std::int64_t first = failure ? count_ - rank_ : 0;  // the lowest rank that has failed speaks for all
    all_reduce_(std::span(&first, 1), ReduceOp::max);
    const Index speaker = count_ - first;
    std::array<std::int64_t, 64> words = {};
    if (failure && speaker == rank_) write_message(failure, words);
    all_reduce_(words, ReduceOp::sum);
    std::array<char, sizeof(words)> text;
    std::memcpy(text.data(), words.data(), sizeof(words));
    detail::fail<rank_error>("rank ", speaker, " of ", count_, ": ", text.data());
  }

 private:
  /// Takes no memory: the other ranks wait for this one.
  static void write_message(const std::exception_ptr& failure, std::span<std::int64_t> words) {
    const auto write = [words](std::string_view text) {
      std::memcpy(words.data(), text.data(), std::min(text.size(), words.size_bytes() - 1));
    };
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      const std::string_view text = error.what();
      write(text.substr(text.starts_with("lazyllm: ") ? 9 : 0));
    } catch (...) {
      write("an exception of unknown type");
    }
  }

  Index rank_;
  Index count_;
  double share_;
  AllReduce all_reduce_;
  std::vector<std::int64_t> values_;
  std::vector<float> scratch_;
};

}  // namespace lazyllm
