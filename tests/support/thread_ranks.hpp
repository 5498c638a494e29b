#pragma once

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "lazyllm/core.hpp"

namespace lazyllm::test {

/// Threads of this process as ranks. What they give is joined in an order that changes from call to call.
class ThreadRanks {
 public:
  explicit ThreadRanks(Index count) : count_(static_cast<std::size_t>(count)), barrier_(count) {
    whole_.resize(count_);
    floats_.resize(count_);
  }

  Index count() const { return static_cast<Index>(count_); }

  /// What rank `rank` hands to `Ranks`.
  Ranks::AllReduce all_reduce(Index rank) {
    return [this, rank](std::span<std::int64_t> values, ReduceOp op) {
      this->join(whole_, rank, values,
                 [op](std::int64_t a, std::int64_t b) { return op == ReduceOp::sum ? a + b : std::max(a, b); });
    };
  }

  /// The sum of floats.
  std::function<void(std::span<float>)> sum(Index rank) {
    return [this, rank](std::span<float> values) {
      this->join(floats_, rank, values, [](float a, float b) { return a + b; });
    };
  }

  /// Calls `run(rank)` for all ranks at once. What it throws is lost but for the lowest rank's.
  template <class Run>
  void run(const Run& run) {
    std::vector<std::exception_ptr> failures(count_);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < count_; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run(static_cast<Index>(rank));
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  template <class T, class Add>
  void join(std::vector<std::span<T>>& values, Index rank, std::span<T> own, const Add& add) {
    values[static_cast<std::size_t>(rank)] = own;
    barrier_.arrive_and_wait();
    if (rank == 0) {
      std::vector<std::span<T>> order = values;
      std::ranges::shuffle(order, random_);
      for (const std::span<T>& other : order) {
        if (other.size() != own.size()) throw logic_error("the ranks join different numbers of values");
      }
      std::vector<T> joined(order[0].begin(), order[0].end());
      for (std::size_t r = 1; r < order.size(); ++r) {
        for (std::size_t i = 0; i < joined.size(); ++i) joined[i] = add(joined[i], order[r][i]);
      }
      for (const std::span<T>& other : order) std::ranges::copy(joined, other.begin());
    }
    barrier_.arrive_and_wait();
  }

  std::size_t count_;
  std::barrier<> barrier_;
  std::vector<std::span<std::int64_t>> whole_;
  std::vector<std::span<float>> floats_;
  std::mt19937 random_;
};

}  // namespace lazyllm::test
