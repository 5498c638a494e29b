#include "support/cuda_emulation.hpp"
// The same runs as on a device; and what only the emulation can make happen.
#include "properties/cuda_runs.hpp"

namespace lazyllm::test {

/// A short run of two sequences in which something fails, once: the step is aborted, both sequences are what they were
/// before, and give the logits of the naive reference when they are fed again. The first prompt comes in chunks.
/// Returns whether anything failed.
template <class Storage>
bool survives_a_failure(const std::function<void()>& arm, const std::function<void()>& disarm) {
  using Member = Request<CudaMemory, Storage>;
  const TinyModel model({.layers = 4, .heads = 2, .kv_heads = 1, .head_dim = 4}, 3);
  const AnyPolicy ratio = KeepRatio(Schedule{{1, 0.6}, {2, 0.5}});
  const std::vector<std::vector<Index>> turns{{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, {9}, {7, 30, 2}, {4}};
  Engine<CudaMemory, Storage, DeviceAttention<float>, DeviceFeedForward<float>> engine(model, 1);
  std::list<Member> members;
  const auto add = [&](const AnyPolicy& policy, const AttentionScore& score) {
    members.push_back({typename Member::Sequence(4, AuxCache(Storage(model.shape().hidden_size()))),
                       TinyCache<float>(model.shape(), 40), NaiveLazy<float, CudaMemory>(model), Pruner(policy, score),
                       policy});
  };
  add(ratio, {});
  add(ReviveAtMost<AnyPolicy>{ratio, 1}, {.last_queries = 2, .over_layers = true, .pooling = 3});
  const std::vector<Member*> batch{&members.front(), &members.back()};
  bool failed = false;
  arm();
  for (std::size_t turn = 0; turn < turns.size() && !failed; ++turn) {
    const std::vector<std::vector<Index>> tokens{turns[turn], turns[turn]};
    const std::vector<Cut> cuts(2, turn == 0 ? Cut{.chunk = 7} : Cut{});
    const Index length = members.front().sequence.length();
    std::vector<TinyCache<float>> caches;
    for (const Member* member : batch) caches.push_back(member->cache);
    try {
      engine.run(batch, tokens, cuts);
      continue;
    } catch (const cuda_error&) {
      failed = true;
    }
    disarm();
    engine.step.abort();  // where it was not the step that failed but what filled its rows
    CHECK(cudaGetLastError() == cudaSuccess);
    // Where the step had ended and it was reading its rows that failed, it counts.
    const bool ended = members.front().sequence.steps() > static_cast<Index>(turn);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      Member& member = *batch[s];
      if (!ended) {
        if (turn == 0) member.sequence.clear();  // a chunk may have gone well
        CHECK(member.sequence.length() == length);
        member.tokens.resize(static_cast<std::size_t>(length));
        member.cache = caches[s];
      }
      for (std::size_t done = 0; done < turn + (ended ? 1 : 0); ++done) {
        member.naive.step(turns[done], member.policy, member.pruner.score());
      }
      check_invariant(member);
    }
    if (ended) break;
    const auto results = engine.run(batch, tokens, cuts);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      const auto expected = batch[s]->naive.step(turns[turn], batch[s]->policy, batch[s]->pruner.score());
      CHECK(results[s].active == expected.active);
      CHECK(results[s].logits == expected.logits);
      check_invariant(*batch[s]);
    }
  }
  disarm();
  return failed;
}

/// Lets each allocation of a run fail in turn.
template <class Storage>
void survives_each_failing_allocation() {
  int allocation = 0;
  const auto arm = [&] { cuda_emulation::fail_allocation_after(allocation); };
  const auto disarm = [] { cuda_emulation::fail_allocation_after(-1); };
  while (survives_a_failure<Storage>(arm, disarm)) ++allocation;
  CHECK(allocation > 10);
}

TEST_CASE("cuda: steps without memory leave sequences that can go on, own storage") {
  survives_each_failing_allocation<cuda::OwnStorage<float>>();
}

TEST_CASE("cuda: steps without memory leave sequences that can go on, pooled storage") {
  survives_each_failing_allocation<cuda::PooledStorage<float>>();
}

TEST_CASE("cuda: steps without memory leave sequences that can go on, pinned storage") {
  survives_each_failing_allocation<cuda::PinnedStorage<float>>();
}

/// Copies, waits, events and launches too; those that only free memory have nothing to report.
TEST_CASE("cuda: every call that fails is a cuda_error, and leaves sequences that can go on") {
  int call = 0;
  int failures = 0;
  int last_call = 1;
  const auto arm = [&] { cuda_emulation::fail_call_after(call); };
  const auto disarm = [] { cuda_emulation::fail_call_after(-1); };
  for (const int step = runs(100) < 100 ? 29 : 5; call < last_call; call += step) {
    CAPTURE(call);
    const int before = cuda_emulation::counters().calls;
    failures += survives_a_failure<cuda::PooledStorage<float>>(arm, disarm);
    if (call == 0) last_call = cuda_emulation::counters().calls - before;
  }
  CHECK(failures > 10);
}

/// Numbers in [0, 1) without order.
inline float scattered(std::uint64_t seed, Position position) {
  std::uint64_t bits = (seed * 1000003 + static_cast<std::uint64_t>(position) + 1) * 0x9e3779b97f4a7c15U;
  bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9U;
  return static_cast<float>(bits >> 40) * 0x1p-24F;
}

/// A host without arithmetic that computes its own scores.
struct ScoringBlock {
  Index layer;
  const std::uint64_t* seed;  // of the step
  const float* numbers;

  void attend(cuda::Context&, const LayerPlan&, RowsView<float>) {}
  void token_scores(cuda::Context& context, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) {
      std::vector<float> values;
      for (const Position p : plan.sequence(window.sequence).keys) {
        values.push_back(scattered(*seed + static_cast<std::uint64_t>(layer + 100 * window.sequence), p));
      }
      CudaMemory::write(context, values, window.scores.data());
    }
  }
};

/// A host without arithmetic that has the library score other queries and keys in each step.
struct ScoredBlock {
  Index layer;
  const std::uint64_t* seed;
  const float* numbers;  // on the device

  static constexpr Index size = 32000;
  void attend(cuda::Context&, const LayerPlan&, RowsView<float>) {}
  QueryRows<float> queries(const LayerPlan&) const {
    return {numbers + static_cast<Index>(*seed % 100) * 32, 32, 8, 4, 8, 1};
  }
  ContiguousKeys<float> key_view(const LayerPlan&, Index s) const { return {numbers + 100 * s + layer * 16, 16, 8, 2}; }
};

/// Steps of several sequences on a context, with hidden rows that say where they come from.
template <class Block>
struct IdleEngine {
  using Sequence = cuda::Sequence<float, cuda::PooledStorage>;
  using Batch = Step<Sequence, TokenPruner<AnyPolicy>>;

  IdleEngine(cuda::Context& engine_context, Index sequence_count, const AnyPolicy& policy, const AttentionScore& score)
      : context(engine_context), numbers(context, random_numbers()), pruner(policy, score) {
    for (Index s = 0; s < sequence_count; ++s) sequences.emplace_back(5, 4);
    for (Index layer = 0; layer < 5; ++layer) layers.emplace_back(Block{layer, &seed, numbers.data()});
  }

  static std::vector<float> random_numbers() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(ScoredBlock::size);
    for (float& value : values) value = normal(random);
    return values;
  }

  void begin(Index tokens) {
    ++seed;
    std::vector<typename Batch::Entry> entries;
    for (Sequence& sequence : sequences)
      entries.push_back({.sequence = &sequence, .pruner = &pruner, .new_tokens = tokens});
    const RowsView<float> hidden = step.begin(context, entries);
    std::vector<float> values(static_cast<std::size_t>(hidden.rows * hidden.width));
    std::iota(values.begin(), values.end(), static_cast<float>(1000 * seed));
    CudaMemory::write(context, values, hidden.data);
  }

  void run(Index tokens) {
    begin(tokens);
    for (auto& layer : layers) layer.forward(context, step);
    step.end();
    revived += step.stats().revived();
  }

  /// A prompt and some decode steps.
  void generate() {
    seed = 0;
    for (Sequence& sequence : sequences) sequence.clear();
    run(100);
    for (int i = 0; i < 6; ++i) run(1);
  }

  cuda::Context& context;
  DeviceArray<float> numbers;
  TokenPruner<AnyPolicy> pruner;
  std::list<Sequence> sequences = {};
  std::uint64_t seed = 0;
  std::vector<LazyDecoderLayer<Block>> layers = {};
  Batch step = {};
  Index revived = 0;
};

const Schedule two_points{{1, 0.5}, {3, 0.5}};

/// With `max_launches` in a step, whatever the number of sequences.
template <class Block>
void allocates_nothing_and_launches_little(const AttentionScore& score, int max_launches) {
  for (const AnyPolicy& policy : {AnyPolicy(KeepRatio(two_points)), AnyPolicy(KeepTopP(two_points))}) {
    for (const Index sequences : {1, 8}) {
      CAPTURE(sequences);
      auto context = CudaMemory::make_context();
      IdleEngine<Block> engine(context, sequences, policy, score);
      engine.generate();
      const cuda_emulation::Counters before = cuda_emulation::counters();
      engine.generate();
      const cuda_emulation::Counters after = cuda_emulation::counters();
      CHECK(engine.revived > 0);
      CHECK(after.allocations == before.allocations);
      CHECK(after.copies_to_host == before.copies_to_host + 2 * 7);
      CHECK(after.waits == before.waits);
      // An engine that uploads scores for each sequence waits for places in the staging memory, too.
      if (sequences == 1 || std::is_same_v<Block, ScoredBlock>) CHECK(after.event_waits == before.event_waits + 2 * 7);
      // In the prompt, rows that are parked are copied after those that go on, at two layers.
      CHECK(after.launches - before.launches <= 7 * max_launches + 2);
      CHECK(cuda_emulation::idle(nullptr));  // nothing has gone to the default stream
    }
  }
}

/// How often the host has waited.
inline int waits() { return cuda_emulation::counters().waits + cuda_emulation::counters().event_waits; }

/// Adds 1 to each row, and notes what it is given and when.
struct AddingFeedForward {
  struct Call {
    Index rows;
    std::vector<Index> row_indptr;
    int waits;  // of the host so far
    bool idle;  // whether the device has nothing left to run
  };
  std::vector<Call>* calls;

  void feed_forward(cuda::Context& context, std::span<const Index> row_indptr, RowsView<float> hidden) {
    calls->push_back(
        {hidden.rows, {row_indptr.begin(), row_indptr.end()}, waits(), cuda_emulation::idle(context.stream())});
    cuda::detail::thrust_call(context, hidden.rows * hidden.width, [=](const auto& policy) {
      thrust::transform(policy, hidden.data, hidden.data + hidden.rows * hidden.width, hidden.data,
                        [](float x) { return x + 1; });
    });
  }
};

/// An `IdleEngine` with a feed-forward, run layer by layer.
template <class Block>
struct BusyEngine : IdleEngine<Block> {
  BusyEngine(cuda::Context& engine_context, Index sequences, const AnyPolicy& policy)
      : IdleEngine<Block>(engine_context, sequences, policy, {}) {
    for (auto& layer : this->layers) blocks.emplace_back(layer.attention(), AddingFeedForward{&calls});
  }

  std::vector<LazyDecoderLayer<Block, AddingFeedForward>> blocks;
  std::vector<AddingFeedForward::Call> calls;  // by layer, of all steps
};

TEST_CASE("cuda: the feed-forward of a pruning layer is enqueued before the host waits for what is kept") {
  for (const Index sequences : {1, 8}) {
    for (const bool by_count : {true, false}) {
      CAPTURE(sequences);
      CAPTURE(by_count);
      auto context = CudaMemory::make_context();
      const AnyPolicy policy = by_count ? AnyPolicy(KeepRatio(two_points)) : AnyPolicy(KeepTopP(two_points));
      BusyEngine<ScoredBlock> engine(context, sequences, ReviveAtMost<AnyPolicy>{policy, 3});
      engine.generate();  // memory that grows is waited for
      for (auto& sequence : engine.sequences) sequence.clear();
      for (const Index tokens : {100, 1}) {
        const bool ahead = by_count && tokens > 1;  // a decode step revives: how many is not known
        engine.begin(tokens);
        engine.calls.clear();
        for (std::size_t layer = 0; layer < 5; ++layer) {
          CAPTURE(layer);
          const bool prunes = layer == 0 || layer == 2;
          const int before = waits();
          engine.blocks[layer].forward(context, engine.step);
          const AddingFeedForward::Call& call = engine.calls.back();
          CHECK(call.waits - before == (prunes && !ahead ? 1 : 0));
          CHECK(waits() - before == (prunes ? 1 : 0));
          if (prunes && ahead) {
            CHECK(call.rows == sequences * (layer == 0 ? 50 : 25));
            CHECK_FALSE(call.idle);
            CHECK_FALSE(cuda_emulation::idle(context.stream()));  // it runs while the host plans
          }
          if (layer == 4) continue;
          CHECK(engine.step.plan().rows() == call.rows);
          CHECK(std::ranges::equal(engine.step.plan().row_indptr(), call.row_indptr));
        }
        engine.step.end();
      }
    }
  }
}

/// Scores of which those of one sequence are not numbers in one layer.
struct FailingBlock : ScoringBlock {
  static inline Index failing_sequence = -1;
  static inline Index failing_layer = 0;

  void token_scores(cuda::Context& context, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    ScoringBlock::token_scores(context, plan, windows);
    for (const ScoreWindow& window : windows) {
      if (window.sequence == failing_sequence && layer == failing_layer) {
        CudaMemory::write(context, std::vector<float>{NAN}, &window.scores[window.scores.size() / 2]);
      }
    }
  }
};

TEST_CASE(
    "cuda: a sequence whose scores fail leaves the batch after its rows have gone on, and the others stay right") {
  auto context = CudaMemory::make_context();
  const auto rows_of = [&](Index failing_sequence, Index failing_layer) {
    FailingBlock::failing_sequence = failing_sequence;
    FailingBlock::failing_layer = failing_layer;
    BusyEngine<FailingBlock> engine(context, 3, KeepRatio(two_points));
    std::vector<std::vector<float>> rows;
    for (const Index tokens : {40, 1, 1}) {
      engine.begin(tokens);
      for (auto& layer : engine.blocks) layer.forward(context, engine.step);
      const StepOutput<float> output = engine.step.end();
      for (Index s = 0; s < 3; ++s) rows.push_back(CudaMemory::read(context, output.of(s)));
      CHECK(output.failures.size() == (failing_sequence >= 0 && tokens > 1 ? 1 : 0));
      if (tokens > 1 && failing_sequence >= 0) {
        CHECK(output.failures.front().entry == failing_sequence);
        CHECK(engine.sequences.size() == 3);
        CHECK(std::next(engine.sequences.begin(), failing_sequence)->length() == 0);
        FailingBlock::failing_sequence = -1;
        // The rows of a decode step are numbered by the batch: the others only are looked at from here on.
      }
    }
    return rows;
  };
  const auto expected = rows_of(-1, 0);
  for (const Index layer : {0, 2}) {
    for (const Index failing : {0, 1, 2}) {
      CAPTURE(layer);
      CAPTURE(failing);
      const auto rows = rows_of(failing, layer);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const Index s = static_cast<Index>(i % 3);
        if (s != failing) CHECK(rows[i] == expected[i]);
        if (s == failing && i < 3) CHECK(rows[i].empty());
      }
    }
  }
  FailingBlock::failing_sequence = 0;
  BusyEngine<FailingBlock> alone(context, 1, KeepRatio(two_points));
  FailingBlock::failing_layer = 2;
  alone.begin(40);
  alone.blocks[0].forward(context, alone.step);
  alone.blocks[1].forward(context, alone.step);
  CHECK_THROWS_AS(alone.blocks[2].forward(context, alone.step), invalid_argument);
  CHECK_FALSE(alone.step.running());
  FailingBlock::failing_sequence = -1;
  alone.begin(40);
  for (auto& layer : alone.blocks) layer.forward(context, alone.step);
  CHECK(alone.step.end().rows.rows == 1);
}

TEST_CASE("cuda: between the two parts of advance there is no plan") {
  auto context = CudaMemory::make_context();
  BusyEngine<ScoredBlock> engine(context, 1, KeepRatio(two_points));
  CHECK_THROWS_AS(engine.step.end_advance(), logic_error);
  engine.begin(40);
  CHECK_THROWS_WITH_AS(engine.step.end_advance(), "lazyllm: Step::end_advance: begin_advance must come first",
                       logic_error);
  for (std::size_t layer = 0; layer < 5; ++layer) {
    engine.step.begin_advance(context, engine.layers[layer].attention());
    CHECK_THROWS_WITH_AS(engine.step.plan(), "lazyllm: Step: the next layer has no plan yet: end_advance comes first",
                         logic_error);
    CHECK_THROWS_AS(engine.step.begin_advance(context, engine.layers[layer].attention()), logic_error);
    if (layer == 2) {
      engine.step.abort();  // while the selection is under way
      CHECK_THROWS_AS(engine.step.end_advance(), logic_error);
      CHECK(engine.sequences.front().length() == 0);
      break;
    }
    engine.step.end_advance();
  }
  engine.run(40);
  CHECK(engine.sequences.front().length() == 40);
}

TEST_CASE("cuda: steps like earlier ones allocate nothing, and wait, copy back and launch a constant number of times") {
  const AttentionScore plain, summed{.over_layers = true, .pooling = 3};
  const AttentionScore window{.last_queries = 5, .over_rows = Reduce::max};
  // At each of two layers: select and move rows; at the last layer the last rows.
  constexpr int pruning = 2 * 2 + 1;
  allocates_nothing_and_launches_little<ScoringBlock>(plain, pruning);
  allocates_nothing_and_launches_little<ScoredBlock>(plain, pruning + 2 * 2);
  allocates_nothing_and_launches_little<ScoredBlock>(window, pruning + 2 * 2);
  // Scores in four layers, and adds them up in the last three; pools and moves sums where it prunes.
  allocates_nothing_and_launches_little<ScoredBlock>(summed, pruning + 4 * 2 + 3 + 2 * 2);
}

/// The library keeps nothing outside its objects: two contexts on two streams, whose work runs whenever each of them is
/// waited for, do what they do alone.
TEST_CASE("cuda: two contexts on two streams, layer by layer in turn") {
  const auto rows_of = [](auto& engine) { return CudaMemory::read(engine.context, engine.step.end().rows); };
  auto first_context = OwnStreamMemory::make_context();
  auto second_context = OwnStreamMemory::make_context();
  auto lone_context = OwnStreamMemory::make_context();
  const AttentionScore score{.last_queries = 3, .over_layers = true, .pooling = 3};
  IdleEngine<ScoredBlock> first(first_context, 3, KeepRatio(two_points), score);
  IdleEngine<ScoredBlock> second(second_context, 2, KeepTopP(two_points), {});
  IdleEngine<ScoredBlock> first_alone(lone_context, 3, KeepRatio(two_points), score);
  IdleEngine<ScoredBlock> second_alone(lone_context, 2, KeepTopP(two_points), {});
  for (const Index tokens : {60, 1, 1, 5, 1}) {
    first.begin(tokens);
    second.begin(tokens);
    for (std::size_t layer = 0; layer < 5; ++layer) {
      first.layers[layer].forward(first_context, first.step);
      second.layers[layer].forward(second_context, second.step);
    }
    CHECK_FALSE(cuda_emulation::idle(first_context.stream()));
    const std::vector<float> second_rows = rows_of(second);
    CHECK_FALSE(cuda_emulation::idle(first_context.stream()));  // waiting for one does not wait for the other
    const std::vector<float> first_rows = rows_of(first);
    for (auto* alone : {&first_alone, &second_alone}) {
      alone->begin(tokens);
      for (auto& layer : alone->layers) layer.forward(lone_context, alone->step);
    }
    CHECK(first_rows == rows_of(first_alone));
    CHECK(second_rows == rows_of(second_alone));
    CHECK(first.step.stats().revived() == first_alone.step.stats().revived());
    CHECK(second.step.stats().revived() == second_alone.step.stats().revived());
  }
}

}  // namespace lazyllm::test
