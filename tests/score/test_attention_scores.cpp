#include <doctest/doctest.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/attention_problem.hpp"
#include "support/plain_scores.hpp"

/// What the conformance suite of the backends does not ask: the CPU's bits.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using Problem = AttentionProblem<float>;

template <class T, class Keys>
std::vector<float> scores_of(cpu::Context& context, const AttentionProblem<T>& problem, const QueryRows<T>& queries,
                             const Keys& keys) {
  std::vector<float> result(problem.active.size(), Problem::poison());
  score_one(context, queries, problem.first_row, problem.limits, keys, problem.active, Reduce::mean, result);
  return result;
}

template <class T>
std::vector<float> scores_of(cpu::Context& context, const AttentionProblem<T>& problem) {
  return scores_of(context, problem, problem.query_rows(problem.queries.data()), problem.key_view(problem.keys.data()));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("attention scores: the same bits for any number of threads and any scratch memory", T, float,
                   Eigen::bfloat16) {
  for (const Index tokens : {5, 300, 9000}) {  // with four rows so many are shared out
    for (const Index window : {1, 4}) {
      const AttentionProblem<T> problem(static_cast<unsigned>(tokens), 8, 2, 16, tokens, window);
      cpu::Context one;
      const std::vector<float> expected = scores_of(one, problem);
      for (const int threads : {1, 2, 3}) {
        cpu::Context context(threads);
        for (const Index earlier : {0, 1, 7, 16, 1001, 40000}) {
          (void)context.scratch(earlier);
          CHECK(same_bits(scores_of(context, problem), expected));
        }
      }
    }
  }
}

TEST_CASE("attention scores: the same bits wherever queries and keys lie") {
  const Problem problem(5, 4, 2, 20, 100, 2);
  cpu::Context context;
  const std::vector<float> expected = scores_of(context, problem);
  for (std::size_t shift = 1; shift < 16; ++shift) {
    std::vector<float> keys(shift, 0), queries(shift, 0);
    keys.insert(keys.end(), problem.keys.begin(), problem.keys.end());
    queries.insert(queries.end(), problem.queries.begin(), problem.queries.end());
    CHECK(same_bits(
        scores_of(context, problem, problem.query_rows(queries.data() + shift), problem.key_view(keys.data() + shift)),
        expected));
  }
}

TEST_CASE_TEMPLATE("attention scores: the same bits beside any number of heads", T, float, Eigen::bfloat16) {
  const AttentionProblem<T> one(7, 1, 1, 40, 90, 1);
  const auto with_heads = [&](Index heads) {  // all alike
    std::vector<T> queries;
    for (Index head = 0; head < heads; ++head) {
      queries.insert(queries.end(), one.queries.end() - one.head_dim, one.queries.end());
    }
    cpu::Context context;
    std::vector<float> result(one.active.size(), Problem::poison());
    const QueryRows<T> rows{queries.data(), heads * one.head_dim, one.head_dim, heads, one.head_dim, one.scale()};
    score_one(context, rows, 0, one.limits, one.key_view(one.keys.data()), one.active, Reduce::mean, result,
              Reduce::max);
    return result;
  };
  const std::vector<float> expected = with_heads(2);  // one alone is summed up in another order
  for (Index heads = 3; heads <= 20; ++heads) {
    CAPTURE(heads);
    CHECK(same_bits(with_heads(heads), expected));
  }
}

TEST_CASE_TEMPLATE("attention scores: wide heads, and more rows than are worked on at a time", T, float,
                   Eigen::bfloat16) {
  cpu::Context context;
  for (const Index head_dim : {2, 130, 200, 256}) {
    CAPTURE(head_dim);
    const AttentionProblem<T> problem(6, 4, 2, head_dim, 75, 3);
    CHECK(worst_error(scores_of(context, problem), problem.template scores<PlainMemory>(Reduce::mean)) < 1e-5);
  }
  for (const Index kv_heads : {16, 64}) {  // of 64, the last row is alone on its key heads
    CAPTURE(kv_heads);
    const AttentionProblem<T> long_window(6, 64, kv_heads, 8, 1200, 14);
    CHECK(worst_error(scores_of(context, long_window), long_window.template scores<PlainMemory>(Reduce::mean)) < 1e-5);
  }
}

TEST_CASE("attention scores: rows may see fewer keys than rows before them") {
  Problem problem(6, 4, 2, 16, 300, 60);
  std::ranges::reverse(problem.limits);
  cpu::Context context;
  CHECK(worst_error(scores_of(context, problem), problem.scores<PlainMemory>(Reduce::mean)) < 1e-5);
}

TEST_CASE("attention scores: groups of any number of heads") {
  for (const Index group : {3, 5, 6, 7}) {
    CAPTURE(group);
    const AttentionProblem<Eigen::bfloat16> problem(static_cast<unsigned>(group), 2 * group, 2, 40, 90, 2);
    cpu::Context context;
    CHECK(worst_error(scores_of(context, problem), problem.scores<PlainMemory>(Reduce::mean)) < 1e-5);
  }
}
