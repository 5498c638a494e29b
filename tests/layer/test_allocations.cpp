#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "layer/scripted_engine.hpp"
#include "support/allocations.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

constexpr Index layers = 4;
constexpr Index prompt = 60;
constexpr Index steps = 20;

/// The scripted host, or one that gives queries and keys of its own and has the library score them.
struct ScoredByLibrary : ScriptedAttention {
  const std::vector<float>* numbers;

  void last_token_scores() = delete;
  QueryRows<float> queries(const LayerPlan&) const { return {numbers->data(), 32, 8, 4, 8, 1}; }
  ContiguousKeys<float> keys(const LayerPlan&, Index) const { return {numbers->data(), 16, 8, 2}; }
};
static_assert(!ExposesScores<ScoredByLibrary, cpu::Context>);

template <class Storage, class Block>
struct Host {
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;
  using Pruner = TokenPruner<std::function<Selection(const PrunePoint&)>>;
  using Entry = typename Step<Sequence, Pruner>::Entry;

  Host() {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * 7919 % 101) / 50 - 1;
    for (Index layer = 0; layer < layers; ++layer) {
      if constexpr (std::is_same_v<Block, ScoredByLibrary>) {
        blocks.emplace_back(Block{{&script, layer}, &numbers}, ScriptedFeedForward{&script});
      } else {
        blocks.emplace_back(Block{&script, layer}, ScriptedFeedForward{&script});
      }
    }
    script.active.reserve(200);
  }

  void run(std::span<const Entry> entries) {
    const RowsView<float> hidden = step.begin(context, entries);
    for (Index r = 0; r < hidden.rows; ++r) {
      hidden.row(r)[0] = hidden.row(r)[1] = 0;
      hidden.row(r)[2] = static_cast<float>(100 + step.plan().positions()[static_cast<std::size_t>(r)]);
    }
    for (auto& block : blocks) block.forward(context, step);
    step.end();
    revived += step.stats().revived();
    pruned += step.stats().aux_rows;
  }

  /// A prefill and decode steps of two sequences with changing scores.
  void generate(Sequence& a, Sequence& b, const Pruner& pruner) {
    std::ranges::fill(script.scores, 0.0F);
    std::array<Entry, 2> entries{Entry{&a, &pruner, prompt}, Entry{&b, &pruner, prompt / 2}};
    run(entries);
    entries[0].new_tokens = entries[1].new_tokens = 1;
    for (Index i = 0; i < steps; ++i) {
      for (std::size_t p = 0; p < script.scores.size(); ++p) {
        script.scores[p] = static_cast<float>((p * 31 + static_cast<std::size_t>(i) * 17) % 97);
      }
      run(entries);
    }
  }

  cpu::Context context;
  Script script;
  std::vector<float> numbers = std::vector<float>(200 * 32);
  std::vector<LazyDecoderLayer<Block, ScriptedFeedForward>> blocks;
  Step<Sequence, Pruner> step;
  Index revived = 0;
  Index pruned = 0;
};

template <class Storage, class Block>
long allocations_of(const std::function<Selection(const PrunePoint&)>& policy, const AttentionScore& score,
                    bool by_reserve) {
  using TheHost = Host<Storage, Block>;
  TheHost host;
  const typename TheHost::Pruner pruner(policy, score);
  typename TheHost::Sequence a(layers, AuxCache(Storage(3)));
  typename TheHost::Sequence b(layers, AuxCache(Storage(3)));
  if (by_reserve) {
    host.step.reserve(
        host.context,
        {.sequences = 2, .tokens = 2 * (prompt + steps), .rows = 2 * (prompt + steps), .layers = layers, .width = 3});
    a.reserve(host.context, prompt + steps);
    b.reserve(host.context, prompt + steps);
    (void)host.context.scratch(4 * (prompt + steps + 16));
  } else {
    host.generate(a, b, pruner);
    a.clear();
    b.clear();
  }
  host.revived = host.pruned = 0;
  const long before = lazyllm::test::allocations();
  host.generate(a, b, pruner);
  const long counted = lazyllm::test::allocations() - before;
  CHECK(host.script.rows_right);
  CHECK(host.pruned > 0);
  return counted;
}

template <class Storage>
void allocates_nothing() {
  const Schedule schedule{{1, 0.5}, {2, 0.5}};
  using Policy = std::function<Selection(const PrunePoint&)>;
  const std::vector<Policy> policies{KeepRatio(schedule),
                                     PaperPolicy(),
                                     KeepTopP(schedule),
                                     StaticPruning(schedule),
                                     RandomDrop(schedule, 3),
                                     PrefillOnly<KeepRatio>{KeepRatio(schedule)},
                                     ProtectFirst<ProtectLast<KeepRatio>>{{KeepRatio(schedule), 4}, 2}};
  for (std::size_t i = 0; i < policies.size(); ++i) {
    CAPTURE(i);
    for (const bool by_reserve : {false, true}) {
      CAPTURE(by_reserve);
      const AttentionScore plain;
      const AttentionScore last{.over_layers = true, .pooling = 3};
      const AttentionScore window{.last_queries = 4, .reduce = Reduce::max, .over_layers = true, .pooling = 5};
      CHECK(allocations_of<Storage, ScriptedAttention>(policies[i], plain, by_reserve) == 0);
      CHECK(allocations_of<Storage, ScriptedAttention>(policies[i], last, by_reserve) == 0);
      CHECK(allocations_of<Storage, ScoredByLibrary>(policies[i], plain, by_reserve) == 0);
      CHECK(allocations_of<Storage, ScoredByLibrary>(policies[i], window, by_reserve) == 0);
    }
  }
}

}  // namespace

TEST_CASE("allocations: the counter counts") {
  const long before = lazyllm::test::allocations();
  std::vector<int> list(100);
  Eigen::ArrayXf array(100);
  CHECK(list.data() != nullptr);
  CHECK(array.data() != nullptr);
  CHECK(lazyllm::test::allocations() - before >= (sees_malloc() ? 2 : 1));
}

TEST_CASE("allocations: none in a step after a similar run or reserve, dense storage") {
  allocates_nothing<cpu::DenseStorage<float>>();
}

TEST_CASE("allocations: none in a step after a similar run or reserve, pooled storage") {
  allocates_nothing<cpu::PooledStorage<float>>();
}
