#include <doctest/doctest.h>

#include <Eigen/Core>
#include <cstdint>
#include <optional>
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
    std::conditional_t<missing == 2, std::string, Index> heads;
  };
};
struct OwningKeys : ContiguousKeys<float> {
  std::vector<float> memory;
};
struct KeysByReference {
  using value_type = float;
  const float& key(Position, Index) const;
  Index heads;
};
static_assert(KeyView<ContiguousKeys<float>> && KeyView<ContiguousKeys<Eigen::bfloat16>> && KeyView<PagedKeys<float>>);
static_assert(KeyView<FakeKeys<-1>::Parts>);
static_assert(!KeyView<FakeKeys<0>::Parts> && !KeyView<FakeKeys<1>::Parts> && !KeyView<FakeKeys<2>::Parts>);
static_assert(!KeyView<OwningKeys> && !KeyView<KeysByReference> && !KeyView<int>);

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
  ContiguousKeys<float> keys(const LayerPlan&, Index);
};
struct QueriesAsPointer : KeysOnly {
  const float* queries(const LayerPlan&);
};
struct KeysAsPointer : QueriesOnly {
  const float* keys(const LayerPlan&, Index);
};
struct Both : QueriesOnly, KeysOnly {};
using OwnScores = PlainlyScored<float, CpuMemory<>>;
struct ScoresInDouble {
  void last_token_scores(cpu::Context&, const LayerPlan&, Index, std::span<double>);
};
static_assert(ExposesQueriesAndKeys<TinyAttention<float>> && ExposesQueriesAndKeys<Both>);
static_assert(!ExposesQueriesAndKeys<QueriesOnly> && !ExposesQueriesAndKeys<KeysOnly> && !ExposesQueriesAndKeys<Empty>);
static_assert(!ExposesQueriesAndKeys<QueriesAsPointer> && !ExposesQueriesAndKeys<KeysAsPointer>);
static_assert(ExposesScores<OwnScores, cpu::Context>);
static_assert(!ExposesScores<TinyAttention<float>, cpu::Context> && !ExposesScores<ScoresInDouble, cpu::Context>);
static_assert(!ExposesQueriesAndKeys<OwnScores>);

// AuxStorage
template <int missing>
struct FakeStorage {
  using context_type = cpu::Context;
  using value_type = float;
  void reserve(cpu::Context&, Index) requires(missing != 1);
  void acquire(cpu::Context&, Positions, std::span<Index>) requires(missing != 2);
  void release(Index) requires(missing != 3);
  FakeStorage make_empty() const requires(missing != 4);
  RowsView<float> rows() const requires(missing != 5);
  Index width() const requires(missing != 6);
};
struct StorageOfAnotherWidth : FakeStorage<6> {
  float width() const;
};
struct PinnedStorage : FakeStorage<-1> {
  PinnedStorage(const PinnedStorage&) = delete;
  PinnedStorage make_empty() const;
};
static_assert(AuxStorage<cpu::DenseStorage<float>> && AuxStorage<cpu::PooledStorage<Eigen::half>>);
static_assert(AuxStorage<FakeStorage<-1>>);
static_assert(!AuxStorage<FakeStorage<1>> && !AuxStorage<FakeStorage<2>> && !AuxStorage<FakeStorage<3>>);
static_assert(!AuxStorage<FakeStorage<4>> && !AuxStorage<FakeStorage<5>> && !AuxStorage<FakeStorage<6>>);
static_assert(!AuxStorage<StorageOfAnotherWidth> && !AuxStorage<PinnedStorage> && !AuxStorage<std::vector<float>>);

// Backend
template <int missing>
struct FakeBackend {
  template <class T>
  struct Buffer {
    void reserve(FakeBackend&, Index, Index) requires(missing != 0);
    RowsView<T> rows() const requires(missing != 1);
  };
  friend void copy_rows(FakeBackend&, std::span<const RowCopy<float>>) requires(missing != 2) {}
  friend void accumulate_scores(FakeBackend&, std::span<float>, std::span<float>, bool) requires(missing != 3) {}
  template <class TaskOf>
  friend void attention_scores(FakeBackend&, const QueryRows<float>&, Index, TaskOf) requires(missing != 4) {}
  friend std::optional<BadScore> select(FakeBackend&, std::span<const SelectionTask>,
                                        KeptTokens&) requires(missing != 5) {
    return std::nullopt;
  }
};
static_assert(Backend<cpu::Context> && Backend<FakeBackend<-1>>);
static_assert(!Backend<FakeBackend<0>> && !Backend<FakeBackend<1>> && !Backend<FakeBackend<2>>);
static_assert(!Backend<FakeBackend<3>> && !Backend<FakeBackend<4>> && !Backend<FakeBackend<5>> && !Backend<Empty>);

// LazyDecoderLayer and Step
using Sequence = lazyllm::Sequence<AuxCache<cpu::DenseStorage<float>>>;
using FloatStep = Step<Sequence, TokenPruner<KeepAll>>;
template <class Layer>
concept Forwards = requires(Layer& layer, cpu::Context& context, FloatStep& step) {
  layer.forward(context, step);
};
static_assert(Forwards<LazyDecoderLayer<TinyAttention<float>, TinyFeedForward<float>>>);
static_assert(Forwards<LazyDecoderLayer<OwnScores>>);
static_assert(!Forwards<LazyDecoderLayer<Empty>>);
static_assert(!Forwards<LazyDecoderLayer<TinyAttention<float>, Empty>>);
static_assert(!Forwards<LazyDecoderLayer<TinyAttention<Eigen::half>>>);
static_assert(sizeof(LazyDecoderLayer<TinyAttention<float>>) == sizeof(TinyAttention<float>));
static_assert(!std::is_copy_constructible_v<FloatStep> && !std::is_copy_assignable_v<FloatStep>);
static_assert(!std::is_copy_constructible_v<Sequence> && std::is_nothrow_move_constructible_v<Sequence>);

}  // namespace
