#include <doctest/doctest.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "lazyllm/mpi.hpp"
#include "support/split_engine.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

TEST_CASE("MPI: ranks are those of the communicator, and sums and maxima are exact") {
  Ranks ranks = mpi_ranks(MPI_COMM_WORLD);
  int count = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  CHECK(ranks.count() == count);
  constexpr std::int64_t large = std::int64_t{1} << 58;
  const auto own = [&](std::span<std::int64_t> values) { values[0] = large + ranks.rank(); };
  CHECK(ranks.all_reduce(1, ReduceOp::sum, own)[0] == count * large + count * (count - 1) / 2);
  CHECK(ranks.all_reduce(1, ReduceOp::max, own)[0] == large + count - 1);
}

TEST_CASE("MPI: the processes keep the tokens that one process keeps") {
  Ranks ranks = mpi_ranks(MPI_COMM_WORLD);
  const Index first = ranks.rank() * SplitEngine::kv_heads / ranks.count();
  const Index end = (ranks.rank() + 1) * SplitEngine::kv_heads / ranks.count();
  for (const char* score : {"last", "mean:8", "mean:8+heads:max+pool:3"}) {
    SplitEngine engine(&ranks, first, end - first), alone;
    const auto run = [score](SplitEngine& one) {
      const auto pruner = one.pruner(parse_policy("2:0.5,4:0.5", SplitEngine::layers), parse_score(score));
      auto sequence = SplitEngine::sequence();
      std::vector<std::vector<std::vector<Position>>> active;
      for (const Index tokens : {60, 1, 1, 15}) {
        const SplitEngine::Step::Entry entry{&sequence, &pruner, tokens};
        active.push_back(one.run({&entry, 1}));
      }
      return active;
    };
    CHECK(run(engine) == run(alone));
  }
}

TEST_CASE("MPI: each process fails in each layer, on all with the same error") {
  Ranks ranks = mpi_ranks(MPI_COMM_WORLD);
  SplitEngine engine(&ranks);
  const auto pruner = engine.pruner(parse_policy("2:0.5", SplitEngine::layers), {});
  for (Index failing = 0; failing < ranks.count(); ++failing) {
    for (Index layer = 0; layer < SplitEngine::layers; ++layer) {
      engine.hook = [&](Index now) {
        if (ranks.rank() == failing && now == layer) throw std::runtime_error("no");
      };
      auto sequence = SplitEngine::sequence();
      const SplitEngine::Step::Entry entry{&sequence, &pruner, 20};
      CHECK_THROWS_AS(engine.run({&entry, 1}), rank_error);
      CHECK(sequence.length() == 0);
      engine.hook = nullptr;
      engine.run({&entry, 1});
      CHECK(sequence.length() == 20);
    }
  }
}

TEST_CASE("MPI: an error that MPI returns is thrown") {
  const auto handle = [](MPI_Errhandler handler) {
    for (MPI_Comm each : {MPI_COMM_WORLD, MPI_COMM_SELF}) MPI_Comm_set_errhandler(each, handler);
  };
  handle(MPI_ERRORS_RETURN);
  std::int64_t value = 1;
  CHECK_THROWS_AS(mpi_all_reduce(MPI_COMM_NULL)(std::span(&value, 1), ReduceOp::sum), rank_error);
  CHECK_THROWS_AS((void)mpi_ranks(MPI_COMM_NULL), rank_error);
  handle(MPI_ERRORS_ARE_FATAL);
}
