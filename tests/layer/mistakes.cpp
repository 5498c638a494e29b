#include <cstdint>
#include <span>
#include <vector>

#ifdef MISTAKE_KEYS_OF_ANOTHER_SIZE
#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP
#include "support/cuda_emulation.hpp"
// This one is a mistake on CUDA alone.
#include "lazyllm/cuda.cuh"
namespace backend = lazyllm::cuda;
#else
#include "lazyllm/check.hpp"
#include "lazyllm/lazyllm.hpp"
namespace backend = lazyllm::cpu;
#endif

/// Typical mistakes of a new engine. None compiles; a test chooses one of them by its macro and reads the error.
using namespace lazyllm;

/// A view of keys without a mistake.
struct Keys {
#ifdef MISTAKE_KEYS_OF_INTEGERS
  using value_type = std::uint16_t;
#elif defined(MISTAKE_KEYS_OF_ANOTHER_SIZE)
  using value_type = Float16;
#else
  using value_type = float;
#endif
#ifdef MISTAKE_KEY_NOT_CONST
  const value_type* key(Position, Index) { return data; }
#else
  const value_type* key(Position, Index) const { return data; }
#endif
  const value_type* data = nullptr;
#ifdef MISTAKE_N_HEADS
  Index n_heads = 1;
#else
  Index kv_heads = 1;
#endif
#ifdef MISTAKE_KEYS_THAT_OWN
  std::vector<value_type> memory = {};
#endif
};

struct AttentionBlock {
#ifdef MISTAKE_ATTEND_WITHOUT_PLAN
  void attend(backend::Context&, RowsView<float>) {}
#else
  void attend(backend::Context&, const LayerPlan&, RowsView<float>) {}
#endif

#ifdef MISTAKE_TOKEN_SCORES_OF_ONE_WINDOW
  void token_scores(backend::Context&, const LayerPlan&, const ScoreWindow&) {}
#endif

#ifdef MISTAKE_QUERIES_AS_SPAN
  std::span<const float> queries(const LayerPlan&) { return {}; }
#elif !defined(MISTAKE_NO_QUERIES) && !defined(MISTAKE_NO_SCORES)
  QueryRows<float> queries(const LayerPlan&) { return {}; }
#endif

#ifdef MISTAKE_CONTIGUOUS_KEYS_OF_INTEGERS
  ContiguousKeys<std::uint16_t> key_view(const LayerPlan&, Index) { return {}; }
#elif !defined(MISTAKE_NO_KEY_VIEW) && !defined(MISTAKE_NO_SCORES)
  Keys key_view(const LayerPlan&, Index) { return {}; }
#endif
};

struct FeedForwardBlock {
#ifdef MISTAKE_FEEDFORWARD
  void feedforward(backend::Context&, RowsView<float>) {}
#else
  void feed_forward(backend::Context&, RowsView<float>) {}
#endif
};

#ifdef MISTAKE_SCORE_WITHOUT_WINDOW
struct Score {
  template <class Context, class Block>
  static void score(Context&, Block&, const LayerPlan&, std::span<const ScoreWindow>, std::span<const Score* const>) {}
};
#else
using Score = AttentionScore;
#endif

void run(backend::Context& context) {
#ifdef MISTAKE_POLICY_GIVES_A_NUMBER
  const TokenPruner pruner([](const PrunePoint& point) { return point.active_tokens / 2; }, Score());
#else
  const TokenPruner pruner(KeepRatio(Schedule{{1, 0.5}}), Score());
#endif
  using Pruner = std::remove_const_t<decltype(pruner)>;
#ifdef MISTAKE_HIDDEN_OF_INTEGERS
  using Sequence = backend::Sequence<std::uint16_t>;
#else
  using Sequence = backend::Sequence<float>;
#endif
  Sequence sequence(2, 8);
  Step<Sequence, Pruner> step;
  LazyDecoderLayer layer(AttentionBlock{}, FeedForwardBlock{});
  step.begin(context, sequence, pruner, 5);
  layer.forward(context, step);
}

#if defined(MISTAKE_DENSE_WITHOUT_CONTEXT) || defined(MISTAKE_REQUEST_WITHOUT_SEQUENCE) || \
    defined(MISTAKE_PROBABILITIES_OF_ALL_ROWS)
/// What `check_engine` is given.
struct CheckedBlocks {
  std::vector<LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers;
  Index hidden_size = 8;

  void embed(backend::Context&, std::span<const std::int32_t>, Positions, RowsView<float>) {}
  std::vector<float> logits(backend::Context&, RowsView<float>) { return {}; }
  void poison(backend::Context&, Index, Index, Position) {}
#ifdef MISTAKE_DENSE_WITHOUT_CONTEXT
  std::vector<float> dense(std::span<const std::int32_t>) { return {}; }
#endif
#ifdef MISTAKE_REQUEST_WITHOUT_SEQUENCE
  void set_request(Index) {}
#endif
#ifdef MISTAKE_PROBABILITIES_OF_ALL_ROWS
  std::vector<float> probabilities(backend::Context&, const LayerPlan&) { return {}; }
#endif
};

void check(backend::Context& context, std::span<const std::int32_t> prompt) {
  check_engine(
      context, [](Index, Index) { return CheckedBlocks(); }, prompt);
}
#endif
