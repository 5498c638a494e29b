#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "support/ahead_context.hpp"
#include "support/scripted_engine.hpp"
#include "support/sequence_state.hpp"

// Eigen and the OpenMP runtime allocate with malloc, so that is what is counted where the C library lets us stand in
// front of it; elsewhere, and where a sanitizer stands there, only operator new is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LAZYLLM_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define LAZYLLM_TEST_SANITIZED 1
#endif
#endif

namespace {

std::atomic<long> allocations = 0;
std::atomic<long> failing = -1;  // number of the allocation that fails

/// Counts an allocation; whether it is the one to fail.
bool fails() { return allocations++ == failing; }

}  // namespace

#if defined(__GLIBC__) && !defined(LAZYLLM_TEST_SANITIZED)

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) { return fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) { return fails() ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* memory, std::size_t bytes) { return fails() ? nullptr : __libc_realloc(memory, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = fails() ? nullptr : __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

#else

void* operator new(std::size_t bytes) {
  void* memory = fails() ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

constexpr Index layers = 4;
constexpr Index prompt = 60;
constexpr Index steps = 20;
constexpr std::size_t fail_steps = 5;

/// The scripted host, or one that gives queries and keys of its own and has the library score them.
struct ScoredByLibrary : ScriptedAttention {
  const std::vector<float>* numbers;

  void token_scores() = delete;
  QueryRows<float> queries(const LayerPlan&) const { return {numbers->data(), 32, 8, 4, 8, 1}; }
  ContiguousKeys<float> key_view(const LayerPlan&, Index) const { return {numbers->data(), 16, 8, 2}; }
};
static_assert(!ScoresTokens<ScoredByLibrary, cpu::Context>);

template <class Storage, class Block>
struct Host {
  using Sequence = lazyllm::Sequence<AuxCache<Storage>>;
  using Pruner = TokenPruner<AnyPolicy>;
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
    std::array<Entry, 2> entries{Entry{.sequence = &a, .pruner = &pruner, .new_tokens = prompt, .outputs = 3},
                                 Entry{.sequence = &b, .pruner = &pruner, .new_tokens = prompt / 2}};
    run(entries);
    entries[0].new_tokens = entries[1].new_tokens = entries[0].outputs = 1;
    for (Index i = 0; i < steps; ++i) {
      for (std::size_t p = 0; p < script.scores.size(); ++p) {
        script.scores[p] = static_cast<float>((p * 31 + static_cast<std::size_t>(i) * 17) % 97);
      }
      run(entries);
    }
  }

  typename Sequence::context_type context;
  Script script;
  std::vector<float> numbers = std::vector<float>(200 * 32);
  std::vector<LazyDecoderLayer<Block, ScriptedFeedForward>> blocks;
  Step<Sequence, Pruner> step;
  Index revived = 0;
  Index pruned = 0;
};

template <class Storage, class Block>
long allocations_of(const AnyPolicy& policy, const AttentionScore& score, bool by_reserve) {
  using TheHost = Host<Storage, Block>;
  TheHost host;
  const typename TheHost::Pruner pruner(policy, score);
  typename TheHost::Sequence a(layers, 3);
  typename TheHost::Sequence b(layers, 3);
  if (by_reserve) {
    host.step.reserve(host.context, {.sequences = 2,
                                     .tokens = 2 * (prompt + steps),
                                     .rows = 2 * (prompt + steps),
                                     .layers = layers,
                                     .hidden_size = 3});
    a.reserve(host.context, prompt + steps);
    b.reserve(host.context, prompt + steps);
    constexpr Index heads = 4, window = 4;
    (void)host.context.scratch(heads * window * (prompt + steps + 32));
  } else {
    host.generate(a, b, pruner);
    a.clear();
    b.clear();
    host.step.reserve(host.context, {.sequences = 2, .tokens = 2 * (prompt + steps), .layers = layers});
  }
  host.revived = host.pruned = 0;
  const long before = allocations;
  host.generate(a, b, pruner);
  const long counted = allocations - before;
  CHECK(host.script.rows_right);
  CHECK(host.pruned > 0);
  return counted;
}

template <class Storage>
void allocates_nothing() {
  const Schedule schedule{{1, 0.5}, {2, 0.5}};
  const std::vector<AnyPolicy> policies{KeepRatio(schedule),
                                        PaperPolicy(),
                                        KeepTopP(schedule),
                                        StaticPruning(schedule),
                                        ReviveAtMost<KeepRatio>{KeepRatio(schedule), 3},
                                        PrefillOnly<KeepRatio>{KeepRatio(schedule)},
                                        ProtectFirst<ProtectLast<KeepRatio>>{{KeepRatio(schedule), 4}, 2}};
  for (std::size_t i = 0; i < policies.size(); ++i) {
    CAPTURE(i);
    for (const bool by_reserve : {false, true}) {
      CAPTURE(by_reserve);
      const AttentionScore plain;
      const AttentionScore last{.over_layers = true, .pooling = 3};
      const AttentionScore window{.last_queries = 4, .over_rows = Reduce::max, .over_layers = true, .pooling = 5};
      CHECK(allocations_of<Storage, ScriptedAttention>(policies[i], plain, by_reserve) == 0);
      CHECK(allocations_of<Storage, ScriptedAttention>(policies[i], last, by_reserve) == 0);
      CHECK(allocations_of<Storage, ScoredByLibrary>(policies[i], plain, by_reserve) == 0);
      CHECK(allocations_of<Storage, ScoredByLibrary>(policies[i], window, by_reserve) == 0);
    }
  }
}

}  // namespace

TEST_CASE("allocations: the counter counts") {
  const long before = allocations;
  std::vector<int> list(100);
  Eigen::ArrayXf array(100);
  CHECK(list.data() != nullptr);
  CHECK(array.data() != nullptr);
#ifdef LAZYLLM_TEST_SANITIZED
  CHECK(allocations - before >= 1);
#else
  CHECK(allocations - before >= 2);
#endif
}

TEST_CASE("allocations: none in a step after a similar run or reserve, own storage") {
  allocates_nothing<cpu::OwnStorage<float>>();
}

TEST_CASE("allocations: none in a step after a similar run or reserve, pooled storage") {
  allocates_nothing<cpu::PooledStorage<float>>();
}

TEST_CASE("allocations: none in a step after a similar run or reserve, on a backend that selects ahead") {
  allocates_nothing<OwnStorage<AheadContext, float>>();
}

TEST_CASE("allocations: none in chunks of a prompt; a prompt that waits at a deeper layer keeps its list of keys") {
  using TheHost = Host<cpu::OwnStorage<float>, ScriptedAttention>;
  const TheHost::Pruner pruner{KeepRatio(Schedule{{1, 0.8}, {2, 0.8}})};
  const auto count = [&](Index max_rows) {
    TheHost host;
    TheHost::Sequence sequence(layers, 3);
    long counted = 0;
    for (int round = 0; round < 2; ++round) {  // the second one finds all memory there
      sequence.clear();
      TheHost::Entry entry{.sequence = &sequence, .pruner = &pruner, .max_rows = max_rows};
      const long before = allocations;
      for (Index given = 0; given < prompt || sequence.unfinished(); given += entry.new_tokens) {
        entry.new_tokens = std::min<Index>(16, prompt - given);
        entry.more = given + entry.new_tokens < prompt;
        host.run(std::span<const TheHost::Entry>(&entry, 1));
      }
      counted = allocations - before;
    }
    CHECK(host.script.rows_right);
    CHECK(host.pruned > 0);
    return counted;
  };
  CHECK(count(TheHost::Entry::unlimited) == 0);
  const long counted = count(20);  // two stages wait
  CHECK(counted > 0);
  CHECK(counted < 40);
}

namespace {

/// Does `work` with its allocation number `failure` failing. Returns whether it has so many, and so has thrown.
template <class Work>
bool fails_at(int failure, const Work& work) {
  bool threw = false;
  failing = allocations + failure;
  try {
    work();
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  const bool reached = allocations > failing;
  failing = -1;
  CHECK(threw == reached);
  return reached;
}

/// Lets each allocation of a step fail in turn. Each time the sequences must be what they were, and both a shorter step
/// of another sequence and a second try must do what they do without failures. Returns the failures.
template <class Storage, class Block>
int fail_allocations(const AnyPolicy& policy, const AttentionScore& score, std::size_t step) {
  using TheHost = Host<Storage, Block>;
  using Entry = typename TheHost::Entry;
  const typename TheHost::Pruner pruner(policy, score);
  static constexpr std::array<Position, 3> continuations{17, 2, 11};
  struct Fixture {
    TheHost host;
    typename TheHost::Sequence a{layers, 3}, b{layers, 3}, other{layers, 3};
    std::array<Entry, 2> entries{};

    Fixture(const typename TheHost::Pruner& which, std::size_t before) {
      for (std::size_t p = 0; p < host.script.scores.size(); ++p) {
        host.script.scores[p] = static_cast<float>(p * 31 % 97);
      }
      for (std::size_t i = 0; i <= before; ++i) {
        static constexpr std::array<Index, fail_steps> of_a{20, 1, 6, 1, 90}, of_b{9, 9, 0, 4, 1};
        entries[0] = {.sequence = &a, .pruner = &which, .new_tokens = of_a[i]};
        entries[1] = {.sequence = &b,
                      .pruner = &which,
                      .new_tokens = of_b[i],
                      .more = i == 0,
                      .max_rows = i == 1 ? 5 : Entry::unlimited};
        if (i > 0) entries[0].continuations = continuations;
        if (i < before) host.run(entries);
      }
    }

    void run_shorter() {
      const Entry entry{.sequence = &other, .pruner = entries[0].pruner, .new_tokens = 5};
      host.run(std::span<const Entry>(&entry, 1));
    }
  };
  Fixture clean(pruner, step);
  clean.run_shorter();
  clean.host.run(clean.entries);
  for (int failures = 0;; ++failures) {
    CAPTURE(failures);
    Fixture test(pruner, step);
    const auto a = state_of(test.a), b = state_of(test.b);
    if (!fails_at(failures, [&] { test.host.run(test.entries); })) return failures;
    CHECK_FALSE(test.host.step.running());
    CHECK(state_of(test.a) == a);
    CHECK(state_of(test.b) == b);
    test.run_shorter();
    test.host.run(test.entries);
    CHECK(test.host.script.rows_right);
    CHECK(state_of(test.other) == state_of(clean.other));
    CHECK(state_of(test.a) == state_of(clean.a));
    CHECK(state_of(test.b) == state_of(clean.b));
  }
}

/// A sequence with parked rows in a shared pool, and one that is to be made from it.
struct Parked {
  using Storage = cpu::PooledStorage<float>;
  using TheHost = Host<Storage, ScoredByLibrary>;
  using Sequence = TheHost::Sequence;
  using Aux = Sequence::aux_type;

  Parked() {
    go_on(20);
    go_on(1);
  }

  Aux empty_aux() const { return Aux(Storage(pool)); }

  void go_on(Index new_tokens) {
    const TheHost::Entry entry{.sequence = &sequence, .pruner = &pruner, .new_tokens = new_tokens};
    host.run(std::span<const TheHost::Entry>(&entry, 1));
  }

  TheHost::Pruner pruner{KeepRatio(Schedule{{1, 0.6}, {2, 0.7}, {3, 0.8}})};
  std::shared_ptr<Storage::Pool> pool = std::make_shared<Storage::Pool>(3);
  TheHost host;
  Sequence sequence{layers, empty_aux()};
  std::optional<Sequence> made;
};

/// Lets each allocation of `work` fail in turn. Each time the sequence and the slots in use must be what they were, and
/// a second try and a step must do what they do without failures. Returns the failures.
template <class Work>
int fail_allocations_of(const Work& work) {
  Parked clean;
  const auto before = state_of(clean.sequence);
  const Index slots = clean.pool->slots_in_use();
  CHECK(slots > 0);
  clean.go_on(1);
  for (int failures = 0;; ++failures) {
    CAPTURE(failures);
    Parked test;
    const bool failed = fails_at(failures, [&] { work(test); });
    if (failed) {
      CHECK_FALSE(test.made);
      CHECK(state_of(test.sequence) == before);
      CHECK(test.pool->slots_in_use() == slots);
      work(test);
    }
    CHECK(state_of(test.sequence) == before);
    if (test.made) CHECK(state_of(*test.made) == before);
    CHECK(test.pool->slots_in_use() == (test.made ? 2 * slots : slots));
    test.go_on(1);
    CHECK(state_of(test.sequence) == state_of(clean.sequence));
    if (!failed) return failures;
  }
}

}  // namespace

TEST_CASE("allocations: each that fails leaves the sequences as they were, and nothing is lost") {
  const KeepRatio keep(Schedule{{1, 0.6}, {2, 0.7}, {3, 0.8}});
  const std::vector<AnyPolicy> policies{keep, ReviveAtMost<KeepRatio>{keep, 2}, KeepComputed<KeepRatio>{keep, 1, 3, 2},
                                        KeepComputed<KeepRatio>{keep, 1, 3, 2, 3}};
  for (std::size_t policy = 0; policy < policies.size(); ++policy) {
    CAPTURE(policy);
    for (const AttentionScore& score : {AttentionScore{.pooling = 3}, AttentionScore{.over_layers = true}}) {
      int failures = 0;
      for (std::size_t step = 0; step < fail_steps; ++step) {
        CAPTURE(step);
        failures += fail_allocations<cpu::OwnStorage<float>, ScriptedAttention>(policies[policy], score, step);
        failures += fail_allocations<cpu::OwnStorage<float>, ScoredByLibrary>(policies[policy], score, step);
        failures += fail_allocations<cpu::PooledStorage<float>, ScriptedAttention>(policies[policy], score, step);
      }
      CHECK(failures > 100);
    }
  }
}

TEST_CASE("allocations: each that fails in reserve, fork, save and restore changes nothing, and a second try works") {
  CHECK(fail_allocations_of([](Parked& test) { test.sequence.reserve(test.host.context, 500); }) > 4);
  CHECK(fail_allocations_of([](Parked& test) { test.made.emplace(test.sequence.fork(test.host.context)); }) > 4);
  CHECK(fail_allocations_of([](Parked& test) {
          const std::vector<std::byte> bytes = test.sequence.save(test.host.context);
          test.made.emplace(Parked::Sequence::restore(test.host.context, bytes, test.empty_aux()));
        }) > 10);
}
