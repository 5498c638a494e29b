#include <doctest/doctest.h>

#include <Eigen/Core>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/cpu_memory.hpp"
#include "support/tiny_model.hpp"

/// What each concept takes and, member by member, what it does not.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

using lazyllm::RowsView;

template <class T>
constexpr bool is_view = std::is_trivially_copyable_v<T>;
static_assert(is_view<RowsView<float>> && is_view<QueryRows<float>> && is_view<LayerPlan> && is_view<SequencePlan>);

static_assert(std::is_convertible_v<RowsView<float>, RowsView<const float>>);
static_assert(!std::is_convertible_v<RowsView<const float>, RowsView<float>>);

// KeyView
template <int missing>
struct FakeKeys {
  struct Nothing {};
  struct ValueType {
    using value_type = float;
  };
  struct Parts : std::conditional_t<missing == 0, Nothing, ValueType> {
    const float* key(Position, Index) const requires(missing != 1);
    std::conditional_t<missing == 2, std::string, Index> kv_heads;
  };
};
struct OwningKeys : ContiguousKeys<float> {
  std::vector<float> memory;
};
struct KeysByReference {
  using value_type = float;
  const float& key(Position, Index) const;
  Index kv_heads;
};
template <class T>
struct KeysOf {
  using value_type = T;
  const T* key(Position, Index) const;
  Index kv_heads;
};
struct KeysThatChange {
  using value_type = float;
  const float* key(Position, Index);
  Index kv_heads;
};
struct WritableKeys {
  using value_type = float;
  float* key(Position, Index) const;
  Index kv_heads;
};
static_assert(KeyView<ContiguousKeys<float>> && KeyView<ContiguousKeys<Eigen::bfloat16>> && KeyView<PagedKeys<float>>);
static_assert(KeyView<FakeKeys<-1>::Parts>);
static_assert(!KeyView<FakeKeys<0>::Parts> && !KeyView<FakeKeys<1>::Parts> && !KeyView<FakeKeys<2>::Parts>);
static_assert(!KeyView<OwningKeys> && !KeyView<KeysByReference> && !KeyView<int>);
static_assert(KeyView<KeysOf<float>> && KeyView<KeysOf<BFloat16>> && !KeyView<KeysOf<std::uint16_t>> &&
              !KeyView<KeysOf<double>> && !KeyView<KeysThatChange> && !KeyView<WritableKeys>);

// Attention and FeedForward
struct Empty {};
struct AttendsAnotherType {
  void attend(cpu::Context&, const LayerPlan&, RowsView<double>);
};
struct AttendsWithoutPlan {
  void attend(cpu::Context&, RowsView<float>);
};
struct AttendsReference {
  void attend(cpu::Context&, const LayerPlan&, RowsView<float>&);
};
static_assert(!Attention<AttendsReference, cpu::Context, float>);
static_assert(Attention<TinyAttention<float>, cpu::Context, float>);
static_assert(Attention<TinyFusedBlock<Eigen::half>, cpu::Context, Eigen::half>);
static_assert(!Attention<TinyAttention<float>, cpu::Context, Eigen::half>);
static_assert(!Attention<Empty, cpu::Context, float>);
static_assert(!Attention<AttendsAnotherType, cpu::Context, float>);
static_assert(!Attention<AttendsWithoutPlan, cpu::Context, float>);
static_assert(!Attention<const TinyAttention<float>, cpu::Context, float>);
static_assert(FeedForward<TinyFeedForward<float>, cpu::Context, float>);
static_assert(FeedForward<NoFeedForward, cpu::Context, Eigen::bfloat16>);
static_assert(!FeedForward<TinyFeedForward<float>, cpu::Context, Eigen::half>);
static_assert(!FeedForward<Empty, cpu::Context, float>);

// Where scores come from
struct QueriesOnly {
  QueryRows<float> queries(const LayerPlan&);
};
struct KeysOnly {
  ContiguousKeys<float> key_view(const LayerPlan&, Index);
};
struct QueriesAsPointer : KeysOnly {
  const float* queries(const LayerPlan&);
};
struct QueriesAsSpan : KeysOnly {
  std::span<const float> queries(const LayerPlan&);
};
struct KeysAsPointer : QueriesOnly {
  const float* key_view(const LayerPlan&, Index);
};
struct Both : QueriesOnly, KeysOnly {};
using OwnScores = PlainlyScored<float, CpuMemory<>>;
struct ScoresWithoutPlan {
  void token_scores(cpu::Context&, std::span<const ScoreWindow>);
};
struct ScoresOfOneSequence {
  void token_scores(cpu::Context&, const LayerPlan&, const ScoreWindow&);
};
static_assert(ExposesQueriesAndKeys<TinyAttention<float>> && ExposesQueriesAndKeys<Both>);
static_assert(!ExposesQueriesAndKeys<QueriesOnly> && !ExposesQueriesAndKeys<KeysOnly> && !ExposesQueriesAndKeys<Empty>);
static_assert(!ExposesQueriesAndKeys<QueriesAsPointer> && !ExposesQueriesAndKeys<QueriesAsSpan> &&
              !ExposesQueriesAndKeys<KeysAsPointer>);
static_assert(ScoresTokens<OwnScores, cpu::Context>);
static_assert(!ScoresTokens<TinyAttention<float>, cpu::Context> && !ScoresTokens<ScoresWithoutPlan, cpu::Context> &&
              !ScoresTokens<ScoresOfOneSequence, cpu::Context>);
static_assert(!ExposesQueriesAndKeys<OwnScores>);

}  // namespace
