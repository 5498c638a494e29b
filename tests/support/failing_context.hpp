#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <stdexcept>

#include "lazyllm/lazyllm.hpp"

namespace lazyllm::test {

/// The CPU backend, of which the n-th call of an operation fails: halfway through its work, if it can.
struct FailingContext : cpu::Context {
  long calls = 0;
  long failing = -1;         ///< number of the call that fails
  bool copies_right = true;  ///< no copy was out of range, and no row that was written was read or written by another

  /// Counts a call; whether it is the one to fail.
  bool fails() { return calls++ == failing; }
};

[[noreturn]] inline void fail_backend() { throw std::runtime_error("the backend failed"); }

template <class T>
void copy_rows(FailingContext& context, std::span<const RowCopy<T>> copies) {
  const bool fails = context.fails();
  std::set<const T*> written, read;
  std::size_t rows = 0;
  for (const RowCopy<T>& copy : copies) {
    context.copies_right &= copy.from.size() == copy.to.size();
    for (std::size_t i = 0; i < copy.from.size(); ++i) {
      context.copies_right &= copy.from[i] >= 0 && copy.from[i] < copy.source.rows;
      context.copies_right &= copy.to[i] >= 0 && copy.to[i] < copy.target.rows;
      written.insert(copy.target.row(copy.to[i]));
      read.insert(copy.source.row(copy.from[i]));
      ++rows;
    }
  }
  context.copies_right &= written.size() == rows;
  context.copies_right &= std::ranges::none_of(written, [&](const T* row) { return read.contains(row); });
  cpu::copy_rows(context, fails ? copies.first(copies.size() / 2) : copies);
  if (fails) fail_backend();
}

template <class T, class TaskOf>
void attention_scores(FailingContext& context, const QueryRows<T>& queries, Index count, const TaskOf& task_of) {
  const bool fails = context.fails();
  cpu::attention_scores(context, queries, fails ? count / 2 : count, task_of);
  if (fails) fail_backend();
}

inline void pool_scores(FailingContext& context, std::span<const PoolTask> tasks) {
  if (context.fails()) fail_backend();
  cpu::pool_scores(context, tasks);
}

inline void accumulate_scores(FailingContext& context, std::span<float> scores, std::span<float> sums, bool first) {
  const bool fails = context.fails();
  cpu::accumulate_scores(context, scores, sums, first);
  if (fails) fail_backend();
}

inline void select_tokens(FailingContext& context, std::span<const SelectionTask> tasks, KeptTokens& kept) {
  const bool fails = context.fails();
  cpu::select_tokens(context, fails ? tasks.first(tasks.size() / 2) : tasks, kept);
  if (fails) fail_backend();
}

}  // namespace lazyllm::test
