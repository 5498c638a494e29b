#include <Eigen/Core>
#include <type_traits>

#include "lazyllm/lazyllm.hpp"
#include "support/cpu_memory.hpp"
#include "support/tiny_model.hpp"

/// What a layer takes, and what can be copied and moved.
using namespace lazyllm;
using namespace lazyllm::test;

namespace {

struct Empty {};
using OwnScores = PlainlyScored<float, CpuMemory<>>;
using Sequence = lazyllm::Sequence<AuxCache<cpu::OwnStorage<float>>>;
using FloatStep = Step<Sequence, TokenPruner<KeepAll>>;
template <class Layer>
concept Forwards = requires(Layer& layer, cpu::Context& context, FloatStep& step) {
  layer.forward(context, step);
};
static_assert(Forwards<LazyDecoderLayer<TinyAttention<float>, TinyFeedForward<float>>>);
static_assert(Forwards<LazyDecoderLayer<OwnScores>>);
static_assert(sizeof(LazyDecoderLayer<TinyAttention<float>>) == sizeof(TinyAttention<float>));
static_assert(std::is_nothrow_move_constructible_v<FloatStep> && std::is_nothrow_move_assignable_v<FloatStep>);
static_assert(!std::is_copy_constructible_v<FloatStep> && !std::is_copy_assignable_v<FloatStep>);
static_assert(!std::is_copy_constructible_v<Sequence> && std::is_nothrow_move_constructible_v<Sequence>);

}  // namespace
