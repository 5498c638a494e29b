#include "support/cuda_emulation.hpp"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif
// The same tests as on a device; and what only the emulation can make happen.
#include "backend/cuda_cases.hpp"

namespace lazyllm::test {
namespace emulation = cuda_emulation;

TEST_CASE("cuda: no allocation for work that is no larger than before, and one copy to the host for a batch") {
  auto context = CudaMemory::make_context();
  std::mt19937 random(8);
  const SelectionProblem a(random, 300, 1U << 20);
  const SelectionProblem b(random, 300, 1U << 20);
  auto scores_a = CudaMemory::upload(context, a.scores);
  auto scores_b = CudaMemory::upload(context, b.scores);
  auto pooled = CudaMemory::upload(context, b.scores);
  std::vector<SelectionTask> tasks{a.task, b.task};
  tasks[0].scores = scores_a.span();
  tasks[1].scores = pooled.span();
  const PoolTask pool{scores_b.span(), pooled.span(), 3};
  KeptTokens kept;
  const auto work = [&] {
    pool_scores(context, std::span<const PoolTask>(&pool, 1));
    select_tokens(context, std::span<const SelectionTask>(tasks), kept);
  };
  work();
  const int allocations = emulation::counters().allocations;
  const int copies = emulation::counters().copies_to_host;
  for (int round = 0; round < 20; ++round) work();
  CHECK(emulation::counters().allocations == allocations);
  CHECK(emulation::counters().copies_to_host == copies + 20);
}

TEST_CASE("cuda: out of memory is a cuda_error, and a buffer that cannot grow stays as it was") {
  auto context = CudaMemory::make_context();
  cuda::Context::Buffer<float> buffer;
  buffer.reserve(context, 2, 3);
  const float* const data = buffer.rows().data;
  emulation::fail_allocation_after(0);
  CHECK_THROWS_WITH_AS(buffer.reserve(context, 3, 3), "lazyllm: cudaMallocAsync of 48 bytes: out of memory",
                       cuda_error);
  CHECK(buffer.rows().data == data);
  CHECK(buffer.rows().rows == 2);
  buffer.reserve(context, 3, 3);
  CHECK(buffer.rows().rows == 4);
  emulation::fail_allocation_after(-1);
}

TEST_CASE("cuda: rows that allow it are copied in words of 16 bytes, all copies of a call in one launch") {
  auto context = CudaMemory::make_context();
  auto in = CudaMemory::upload(context, std::vector<__nv_bfloat16>(10 * 64));
  auto out = CudaMemory::upload(context, std::vector<__nv_bfloat16>(10 * 64));
  const std::vector<Index> some{1, 4, 7}, others{9, 2, 3};
  const auto copy = [&](Index width) {
    const RowsView<const __nv_bfloat16> source(in.data(), 10, width, 64);
    const RowsView<__nv_bfloat16> target(out.span().data(), 10, width, 64);
    const std::vector<RowCopy<__nv_bfloat16>> copies{{source, some, target, some}, {source, others, target, others}};
    const emulation::Counters before = emulation::counters();
    copy_rows(context, std::span<const RowCopy<__nv_bfloat16>>(copies));
    CHECK(emulation::counters().launches == before.launches + 1);
    return emulation::counters().threads - before.threads;
  };
  CHECK(copy(64) == 6 * 64 * 2 / 16);
  CHECK(copy(62) == 6 * 62 * 2 / 4);
  CHECK(copy(63) == 6 * 63);
}

/// Counts how often a kernel asks where a key is.
struct CountingKeys : ContiguousKeys<float> {
  static inline std::atomic<int> calls = 0;
  const float* key(Position position, Index head) const {
    calls.fetch_add(1, std::memory_order_relaxed);
    return ContiguousKeys<float>::key(position, head);
  }
};

TEST_CASE("cuda: scoring visits each key once for up to eight rows, and holds no more than a logit for each") {
  const AttentionProblem<float> problem(2, 8, 2, 16, 4 * 128, 7);
  auto context = CudaMemory::make_context();
  auto queries = CudaMemory::upload(context, problem.queries);
  auto keys = CudaMemory::upload(context, problem.keys);
  auto scores = CudaMemory::upload(context, std::vector<float>(problem.active.size()));
  context.synchronize();
  for (const std::size_t rows : {1U, 7U}) {
    CAPTURE(rows);
    auto fresh = CudaMemory::make_context();
    const std::size_t bytes = emulation::counters().allocated_bytes;
    CountingKeys::calls = 0;
    score_one(fresh, problem.query_rows(queries.data()), problem.first_row, Positions(problem.limits).first(rows),
              CountingKeys{problem.key_view(keys.data())}, problem.active, Reduce::mean, scores.span());
    fresh.synchronize();
    CHECK(CountingKeys::calls == 4 * 128 * 2 * 4);  // by each of the four lanes that share it, for each key head
    const std::size_t logits = rows * 8 * 4 * 128 * sizeof(float);
    CHECK(emulation::counters().allocated_bytes - bytes < logits * 5 / 4 + 8192);
  }
}

TEST_CASE("cuda: scores of a batch that has too many logits are made one part after the other, in bounded memory") {
  constexpr Index count = 5;
  const AttentionProblem<float> problem(8, 4, 2, 8, 400, 1);
  const std::size_t keys = problem.active.size();
  CAPTURE(keys);
  std::vector<std::vector<float>> expected;
  for (const Index max_logits :
       {Index{1} << 25, Index{2 * 4 * 400 + 1}, Index{1}}) {  // all together, two at a time, each alone
    CAPTURE(max_logits);
    auto context = CudaMemory::make_context();
    auto queries = CudaMemory::upload(context, problem.queries);
    auto all_keys = CudaMemory::upload(context, problem.keys);
    std::list<DeviceArray<float>> scores;
    for (Index i = 0; i < count; ++i) scores.push_back(CudaMemory::upload(context, std::vector<float>(keys)));
    context.synchronize();
    const emulation::Counters before = emulation::counters();
    attention_scores(
        context, problem.query_rows(queries.data()), count,
        [&](Index i) {
          const std::span<float> target = std::next(scores.begin(), i)->span();
          return ScoreTask<ContiguousKeys<float>>{
              .first_row = problem.first_row + i % 2,
              .limits = Positions(problem.limits).subspan(static_cast<std::size_t>(i % 2)),
              .key_view = problem.key_view(all_keys.data()),
              .keys = problem.active,
              .scores = target};
        },
        max_logits);
    context.synchronize();
    const emulation::Counters after = emulation::counters();
    if (max_logits < Index{1} << 25) {
      const std::size_t logits = static_cast<std::size_t>(std::max<Index>(max_logits, 4 * 400)) * sizeof(float);
      CHECK(after.allocated_bytes - before.allocated_bytes < 2 * logits + 8192);  // of two sizes, and the lists
    }
    std::vector<std::vector<float>> found;
    for (auto& array : scores) found.push_back(array.download());
    if (expected.empty()) expected = found;
    CHECK(found == expected);
  }
  CHECK(expected[0] == expected[2]);
  CHECK(expected[0] != expected[1]);
}

TEST_CASE("cuda: a batch is scored and selected in as many launches as one sequence, and little comes back") {
  std::vector<int> launches, waits;
  for (const Index count : {1, 8}) {
    CAPTURE(count);
    auto context = CudaMemory::make_context();
    const AttentionProblem<float> problem(1, 4, 2, 8, 400, 1);
    auto queries = CudaMemory::upload(context, problem.queries);
    auto keys = CudaMemory::upload(context, problem.keys);
    std::list<DeviceArray<float>> scores, pooled;
    std::vector<PoolTask> pools;
    std::vector<SelectionTask> tasks;
    for (Index i = 0; i < count; ++i) {
      for (auto* list : {&scores, &pooled}) {
        list->push_back(CudaMemory::upload(context, std::vector<float>(problem.active.size())));
      }
      pools.push_back({scores.back().span(), pooled.back().span(), 3});
      tasks.push_back({.k = 100 + i, .protect_from = 399, .keys = problem.active, .scores = pooled.back().span()});
    }
    context.synchronize();
    const emulation::Counters before = emulation::counters();
    attention_scores(context, problem.query_rows(queries.data()), count, [&](Index i) {
      const std::span<const float> target = pools[static_cast<std::size_t>(i)].scores;
      return ScoreTask<ContiguousKeys<float>>{.first_row = problem.first_row,
                                              .limits = problem.limits,
                                              .key_view = problem.key_view(keys.data()),
                                              .keys = problem.active,
                                              .scores = {const_cast<float*>(target.data()), target.size()}};
    });
    pool_scores(context, std::span<const PoolTask>(pools));
    KeptTokens kept;
    select_tokens(context, std::span<const SelectionTask>(tasks), kept);
    const emulation::Counters after = emulation::counters();
    launches.push_back(after.launches - before.launches);
    waits.push_back(after.waits - before.waits);
    CHECK(after.copies_to_host == before.copies_to_host + 1);
    CHECK(after.bytes_to_host - before.bytes_to_host <= kept.indices.size() * 4 + 16 * tasks.size() + 16);
  }
  CHECK(launches == std::vector<int>{4, 4});
  CHECK(waits == std::vector<int>{1, 1});
}

TEST_CASE("cuda: a long row is copied to and from the host in pieces of a MiB") {
  auto context = CudaMemory::make_context();
  cuda::Context::Buffer<float> buffer;
  constexpr Index width = (Index{1} << 22) + 5;
  buffer.reserve(context, 1, width);
  const RowsView<float> row(buffer.rows().data, 1, width);
  std::vector<float> values(static_cast<std::size_t>(width));
  std::iota(values.begin(), values.end(), 0.0F);
  std::vector<float> back(values.size());
  const std::size_t before = emulation::counters().allocated_bytes;
  copy_from_host(context, static_cast<const float*>(values.data()), row);
  copy_to_host(context, RowsView<const float>(row), back.data());
  CHECK((back == values));
  CHECK(emulation::counters().allocated_bytes - before <= 9U << 20);  // eight that are on their way, and one back
}

TEST_CASE("cuda: pinned rows are in pinned memory, and no others") {
  auto context = CudaMemory::make_context();
  cuda::PinnedStorage<float> pinned(4);
  cuda::OwnStorage<float> dense(4);
  pinned.reserve(context, 3);
  dense.reserve(context, 3);
  CHECK(emulation::is_pinned(pinned.rows().data));
  CHECK_FALSE(emulation::is_pinned(dense.rows().data));
}

TEST_CASE("cuda: rows stay on the stream that they began on") {
  auto context = CudaMemory::make_context();
  auto other = OwnStreamMemory::make_context();
  cuda::Context::Buffer<float> buffer;
  buffer.reserve(context, 2, 3);
  CHECK_THROWS_AS(buffer.reserve(other, 1, 3), invalid_argument);
  CHECK_NOTHROW(buffer.reserve(context, 5, 3));
  // A pool that the contexts of two streams share.
  const auto pool = std::make_shared<RowPool<cuda::Context, float>>(3);
  std::vector<Index> slots(2);
  pool->acquire(context, slots);
  CHECK_THROWS_AS(pool->acquire(other, slots), invalid_argument);
  CHECK(pool->slots_in_use() == 2);
  // A step that only revives takes no slots.
  CHECK_THROWS_AS(pool->acquire(other, {}), invalid_argument);
  cuda::OwnStorage<float> dense(3);
  dense.acquire(context, slots);
  CHECK_THROWS_AS(dense.acquire(other, {}), invalid_argument);
  CHECK_NOTHROW(dense.acquire(context, {}));
  // What copies parked rows to somewhere else.
  AuxCache<cuda::OwnStorage<float>> aux(3);
  const Position parked[] = {0, 2};
  aux.acquire(context, parked);
  CHECK_THROWS_AS(aux.fork(other), invalid_argument);
  CHECK_NOTHROW(aux.fork(context));
  const detail::SavedSequence saved{.layers = 2, .depths = {1, 2, 1}};
  CHECK_THROWS_AS(detail::save_sequence(other, aux, saved), invalid_argument);
  CHECK_NOTHROW(detail::save_sequence(context, aux, saved));
  // A step refuses the sequence before any layer runs.
  Sequence<AuxCache<cuda::OwnStorage<float>>> sequence(2, 3);
  sequence.reserve(context, 4);
  const TokenPruner<KeepAll> pruner{KeepAll()};
  Step<decltype(sequence), TokenPruner<KeepAll>> step;
  CHECK_THROWS_AS(step.begin(other, sequence, pruner, 2), invalid_argument);
  CHECK(sequence.length() == 0);
  CHECK_NOTHROW(step.begin(context, sequence, pruner, 2));
}

TEST_CASE("cuda: scores of ranks take no memory behind the collective, where a rank would fail alone") {
  struct Block {
    const float* given;

    void attend(cuda::Context&, const LayerPlan&, RowsView<float>) {}
    void token_scores(cuda::Context& context, const LayerPlan&, std::span<const ScoreWindow> windows) {
      for (const ScoreWindow& window : windows) {
        cudaMemcpyAsync(window.scores.data(), given, window.scores.size_bytes(), cudaMemcpyDeviceToDevice,
                        context.stream());
      }
    }
  };
  constexpr Index tokens = 3000;
  auto other = CudaMemory::make_context();
  auto scores = CudaMemory::upload(other, std::vector<float>(tokens, 1));
  auto given = CudaMemory::upload(other, std::vector<float>(tokens, 0.5F));
  auto context = CudaMemory::make_context();
  int at_collective = -1;
  Ranks ranks(0, 1, [&](std::span<std::int64_t>, ReduceOp) { at_collective = emulation::counters().allocations; });
  DensePlan dense;
  dense.start(0, tokens);
  const LayerPlan plan = dense.layer(0, 2);
  const ScoreOfRanks score{{}, &ranks};
  const ScoreOfRanks* const options = &score;
  const ScoreWindow window = lazyllm::detail::score_window(score, plan, 0, tokens, scores.span());
  Block block{given.span().data()};
  ScoreOfRanks::score(context, block, plan, std::span(&window, 1), std::span(&options, 1));
  CHECK(emulation::counters().allocations == at_collective);
  const auto found = CudaMemory::read(context, RowsView<float>(scores.span().data(), 1, tokens));
  CHECK(found == std::vector<float>(tokens, 0.5F));
}

TEST_CASE("cuda: an error that cannot be thrown is not left for the next call") {
  auto context = CudaMemory::make_context();
  for (int call = 0; call < 4; ++call) {
    auto pinned = cuda::detail::PinnedMemory(context.stream(), 16);
    auto device = cuda::detail::DeviceMemory(context.stream(), 16);
    cuda::detail::Event event;
    event.record(context.stream());
    emulation::fail_call_after(call);
    pinned = {};
    device = {};
    { cuda::detail::Event gone = std::move(event); }
    emulation::fail_call_after(-1);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}

/// Makes this thread take denormal numbers for 0, as code does that is compiled with -ftz=true or --use_fast_math.
class FlushDenormals {
 public:
  FlushDenormals() : before_(control()) { control(before_ | flush); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
  ~FlushDenormals() { control(before_); }

 private:
#ifdef __x86_64__
  static constexpr std::uint64_t flush = 0x8040;
  static std::uint64_t control() { return _mm_getcsr(); }
  static void control(std::uint64_t word) { _mm_setcsr(static_cast<unsigned>(word)); }
#else
  static constexpr std::uint64_t flush = std::uint64_t{1} << 24;
  static std::uint64_t control() {
    std::uint64_t word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void control(std::uint64_t word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
#endif

  std::uint64_t before_;
};

TEST_CASE("cuda: the same tokens are kept and pooled where denormal numbers are flushed") {
  std::mt19937 random(4);
  std::vector<Position> keys(300);
  std::iota(keys.begin(), keys.end(), 0);
  for (const float largest : {300 * std::numeric_limits<float>::denorm_min(), 0.5F}) {
    std::vector<float> scores;
    for (int i = 1; i <= 300; ++i) scores.push_back(static_cast<float>(i) * std::numeric_limits<float>::denorm_min());
    scores.front() = -scores[7];
    std::ranges::shuffle(scores, random);
    scores[100] = largest;
    const auto results = [&] {
      auto context = CudaMemory::make_context();
      auto memory = CudaMemory::upload(context, scores);
      auto pooled = CudaMemory::upload(context, std::vector<float>(300));
      const PoolTask pool{memory.span(), pooled.span(), 5};
      pool_scores(context, std::span<const PoolTask>(&pool, 1));
      std::vector<SelectionTask> tasks;
      for (const std::span<const float> list : {memory.span(), pooled.span()}) {
        for (const Index k : {1, 40, 299}) tasks.push_back({.k = k, .protect_from = 300, .keys = keys, .scores = list});
        for (const double p : {0.01, 0.5, 0.9}) {
          tasks.push_back({.top_p = true, .p = p, .protect_from = 300, .keys = keys, .scores = list});
        }
      }
      KeptTokens kept;
      select_tokens(context, std::span<const SelectionTask>(tasks), kept);
      const std::vector<std::uint32_t> bits = as<std::uint32_t>(pooled.download());
      return std::make_pair(kept.indices, bits);
    };
    const auto expected = results();
    const FlushDenormals flush;
    const volatile float smallest = std::numeric_limits<float>::denorm_min();
    CHECK(smallest == 0);
    CHECK((results() == expected));
  }
}

}  // namespace lazyllm::test
