#include "support/cuda_emulation.hpp"
// The same runs as on a device; and what only the emulation can make happen.
#include "properties/cuda_runs.hpp"

namespace lazyllm::test {

/// Every allocation of a run fails once: the step is aborted, its sequence goes back to tokens that it still has whole,
/// and gives the logits of the naive reference when it is fed again from there.
TEST_CASE("cuda: a step without memory leaves a sequence that can go on") {
  using Storage = cuda::PooledStorage<float>;
  using Member = Request<CudaMemory, Storage>;
  const TinyModel model({.layers = 4}, 3);
  const Pruner pruner(AnyPolicy(KeepFraction(Schedule{{1, 0.6}, {2, 0.5}})));
  const std::vector<std::vector<Index>> turns{{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, {9}, {7, 30, 2}, {4}};
  int failures = 0;
  for (int allocation = 0; failures == allocation; ++allocation) {
    CAPTURE(allocation);
    Engine<CudaMemory, Storage, DeviceAttention<float>, DeviceFeedForward<float>> engine(model, 1);
    Member member{Member::Sequence(4, AuxCache(Storage(model.shape().width()))), TinyCache<float>(model.shape(), 40),
                  NaiveLazy<float, CudaMemory>(model), pruner, KeepFraction(Schedule{{1, 0.6}, {2, 0.5}})};
    std::vector<Index> fed;
    cuda_emulation::fail_allocation_after(allocation);
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      try {
        engine.run({&member}, {turns[turn]});
        fed.insert(fed.end(), turns[turn].begin(), turns[turn].end());
      } catch (const cuda_error&) {
        ++failures;
        cuda_emulation::fail_allocation_after(-1);
        engine.step.abort();  // where it was not the step that failed but what filled its rows
        for (std::size_t done = 0; done < turn; ++done) member.naive.step(turns[done], member.policy);
        const Index length = member.sequence.length();
        CHECK(length <= std::ssize(fed));
        member.cache.truncate(length);
        member.naive.truncate(length);
        check_invariant(member);
        fed.insert(fed.end(), turns[turn].begin(), turns[turn].end());
        fed.erase(fed.begin(), fed.begin() + length);
        const auto result = engine.run({&member}, {fed}).front();
        const auto expected = member.naive.step(fed, member.policy);
        CHECK(result.active == expected.active);
        CHECK(result.logits == expected.logits);
        check_invariant(member);
        break;
      }
    }
    cuda_emulation::fail_allocation_after(-1);
  }
  CHECK(failures > 10);
}

/// A host without arithmetic that computes its own scores.
struct ScoringBlock {
  Index layer;
  std::uint64_t* seed;  // of the step

  void attend(cuda::Context&, const LayerPlan&, Rows<float>) {}
  void last_token_scores(cuda::Context& context, const LayerPlan& plan, Index s, std::span<float> scores) {
    std::vector<float> values;
    for (const Position p : plan.sequence(s).keys) {
      values.push_back(random_score(*seed + static_cast<std::uint64_t>(layer), p));
    }
    CudaMemory::write(context, values, scores.data());
  }
};

TEST_CASE("cuda: steps like earlier ones allocate nothing, and copy to the host once for each pruning layer") {
  using Sequence = cuda::Sequence<float, cuda::PooledStorage>;
  const Schedule schedule{{1, 0.5}, {3, 0.5}};
  const std::vector<AttentionScore> scores{{}, {.over_layers = true, .pooling = 3}};
  for (const AnyPolicy& policy : {AnyPolicy(KeepFraction(schedule)), AnyPolicy(KeepMass(schedule))}) {
    for (const AttentionScore& score : scores) {
      auto context = CudaMemory::make_context();
      std::uint64_t seed = 0;
      std::vector<LazyDecoderLayer<ScoringBlock>> layers;
      for (Index layer = 0; layer < 5; ++layer) layers.emplace_back(ScoringBlock{layer, &seed});
      const TokenPruner<AnyPolicy> pruner(policy, score);
      Sequence a(5, 4), b(5, 4);
      Step<Sequence, TokenPruner<AnyPolicy>> step;
      Index revived = 0;
      const auto run = [&](Index tokens) {
        ++seed;
        const std::vector<decltype(step)::Entry> entries{{&a, &pruner, tokens}, {&b, &pruner, (tokens + 1) / 2}};
        step.begin(context, entries);
        for (auto& layer : layers) layer.forward(context, step);
        step.end();
        revived += step.stats().revived();
      };
      const auto generate = [&] {
        seed = 0;
        a.clear();
        b.clear();
        run(100);
        for (int i = 0; i < 6; ++i) run(1);
      };
      generate();
      const int allocations = cuda_emulation::allocations();
      const int copies = cuda_emulation::copies_to_host();
      generate();
      CHECK(revived > 0);
      CHECK(cuda_emulation::allocations() == allocations);
      CHECK(cuda_emulation::copies_to_host() == copies + 2 * 7);
    }
  }
}

}  // namespace lazyllm::test
