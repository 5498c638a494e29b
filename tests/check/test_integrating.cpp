/// The code that docs/integrating.md shows, beside the engines.
#include <doctest/doctest.h>
#include <algorithm>
#include <barrier>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "examples/contiguous_engine/engine.hpp"
#include "examples/paged_engine/engine.hpp"
#include "examples/token_by_token_engine/engine.hpp"
#include "support/prompt.hpp"

using lazyllm::Index, lazyllm::test::prompt_of;

namespace {

const lazyllm::KeepRatio half_twice({{2, 0.5}, {4, 0.5}});

/// The layers [first, last] as an engine with graphs would run them: all with one plan.
void run_graph(contiguous::Engine& engine, const lazyllm::LayerPlan& plan, lazyllm::RowsView<float> hidden, Index first,
               Index last, bool last_feed_forward) {
  for (Index layer = first; layer <= last; ++layer) {
    engine.layers[layer].attention().attend(engine.context, plan, hidden);
    if (layer < last || last_feed_forward) engine.layers[layer].feed_forward().feed_forward(engine.context, hidden);
  }
}

/// A step whose layers run in graphs: one for each segment, and one for the feed-forward where the rows change.
contiguous::Row run_in_graphs(contiguous::Engine& engine, std::span<const std::int32_t> tokens) {
  auto& step = engine.step;
  contiguous::as_matrix(step.begin(engine.context, engine.sequence, engine.pruner, std::ssize(tokens))) =
      contiguous::embedding(tokens, Eigen::all);
  for (Index layer = 0; layer < contiguous::layer_count;) {
    const auto segment = step.segment();
    step.guard([&] {
      if (step.plan().rows() > 0) {
        run_graph(engine, step.plan(), step.hidden(), segment.first, segment.last, !segment.rows_change);
      }
      for (; layer <= segment.last; ++layer) step.advance(engine.context, engine.layers[layer].attention());
      if (segment.rows_change && step.hidden().rows > 0) {
        engine.layers[segment.last].feed_forward().feed_forward(engine.context, step.hidden());
      }
    });
  }
  return contiguous::logits(contiguous::as_matrix(step.end().rows));
}

// [drafts]
/// Runs the last token and the drafted ones behind it in one step, for a request whose prompt has run. Appends the
/// drafted tokens that the model would have chosen, and one more.
void verify(paged::Engine& engine, paged::Request& request, const std::vector<std::int32_t>& draft) {
  const Index known = std::ssize(request.tokens);
  std::vector<std::int32_t> tokens = {request.tokens.back()};  // a list of its own, which an exception takes away
  tokens.insert(tokens.end(), draft.begin(), draft.end());
  const Index count = std::ssize(tokens);
  engine.take_pages(request, known + std::ssize(draft));
  engine.batch = {&request};
  const decltype(engine.step)::Entry entry{
      .sequence = &request.sequence, .pruner = &engine.pruner, .new_tokens = count, .outputs = count};
  paged::as_matrix(engine.step.begin(engine.context, std::span(&entry, 1))) = paged::embedding(tokens, Eigen::all);
  for (auto& layer : engine.layers) layer.forward(engine.context, engine.step);

  const auto rows = paged::as_matrix(engine.step.end().rows);  // of the last `count` tokens
  Index accepted = 0;
  std::int32_t next = 0;
  for (;; ++accepted) {
    paged::logits(rows.row(accepted)).maxCoeff(&next);
    if (accepted == std::ssize(draft) || next != draft[accepted]) break;
  }
  request.tokens.insert(request.tokens.end(), draft.begin(), draft.begin() + accepted);
  request.sequence.truncate(known + accepted);  // K/V of the rejected tokens will be written again
  request.tokens.push_back(next);
}
// [drafts-end]

/// A communicator of the engine's own: joins what the ranks give, which are threads here.
class Communicator {
 public:
  explicit Communicator(int count) : barrier_(count), values_(count) {}

  int size() const { return static_cast<int>(values_.size()); }

  void all_reduce(Index rank, std::span<std::int64_t> values, bool sum) {
    const auto add = [sum](std::int64_t a, std::int64_t b) { return sum ? a + b : std::max(a, b); };
    values_[rank] = values;
    barrier_.arrive_and_wait();
    std::vector<std::int64_t> joined(values_[0].begin(), values_[0].end());
    for (std::size_t r = 1; r < values_.size(); ++r) std::ranges::transform(joined, values_[r], joined.begin(), add);
    barrier_.arrive_and_wait();
    std::ranges::copy(joined, values.begin());
  }

 private:
  std::barrier<> barrier_;
  std::vector<std::span<std::int64_t>> values_;
};

// [ranks]
/// One rank of an engine that splits the heads and has a communicator of its own.
struct Rank {
  Rank(Communicator& communicator, Index rank)
      : ranks(rank, communicator.size(), [&communicator, rank](std::span<std::int64_t> values, lazyllm::ReduceOp op) {
          communicator.all_reduce(rank, values, op == lazyllm::ReduceOp::sum);
        }) {}

  lazyllm::Ranks ranks;  // as many heads here as on the others, or ranks.set_share(own heads / all heads)
  lazyllm::TokenPruner<lazyllm::KeepRatio, lazyllm::ScoreOfRanks> pruner{half_twice, {{}, &ranks}};
};
// [ranks-end]

/// Half of the heads of the engine that goes token by token.
struct HeadsOfRank : token_by_token::AttentionBlock {
  Index first = 0;

  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan& plan) const {
    auto rows = AttentionBlock::queries(plan);
    rows.data = rows.query(0, first);
    rows.heads /= 2;
    return rows;
  }
  lazyllm::ContiguousKeys<float> key_view(const lazyllm::LayerPlan& plan, Index sequence) const {
    auto keys = AttentionBlock::key_view(plan, sequence);
    keys.data = keys.key(0, first);
    keys.kv_heads /= 2;
    return keys;
  }
};

/// The depths of a prompt of one rank's sequence.
template <class Pruner>
std::vector<lazyllm::Depth> depths_of(const std::vector<std::int32_t>& prompt, Index first_head, const Pruner& pruner) {
  using namespace token_by_token;
  Transformer model(std::ssize(prompt));
  lazyllm::cpu::Context context;
  lazyllm::cpu::Sequence<float> sequence(layer_count, dim);
  lazyllm::Step<decltype(sequence), Pruner> step;
  Engine::embed(prompt, step.begin(context, sequence, pruner, std::ssize(prompt)));
  for (Index layer = 0; layer < layer_count; ++layer) {
    const AttentionBlock all{&model, layer};
    const FeedForwardBlock feed_forward{&model, layer};
    if (first_head < 0) {
      lazyllm::LazyDecoderLayer(all, feed_forward).forward(context, step);
    } else {
      lazyllm::LazyDecoderLayer(HeadsOfRank{all, first_head}, feed_forward).forward(context, step);
    }
  }
  step.end();
  return {sequence.depths().begin(), sequence.depths().end()};
}

}  // namespace

TEST_CASE("graphs of segments compute what single layers compute") {
  contiguous::Engine layers(half_twice, 100), graphs(half_twice, 100);
  auto text = prompt_of(80);
  for (int i = 0; i < 10; ++i) {
    const auto tokens = std::span(text).subspan(layers.sequence.length());
    const contiguous::Row expected = layers.run(tokens);
    CHECK(run_in_graphs(graphs, tokens) == expected);
    CHECK(graphs.step.stats().computed() == layers.step.stats().computed());
    expected.maxCoeff(&text.emplace_back());
  }
}

TEST_CASE("drafted tokens are verified in one step") {
  const auto answer = [](std::size_t wrong) {
    paged::Engine engine(lazyllm::KeepAll(), 16);
    paged::Request request = engine.request(prompt_of(60));
    engine.run({&request}, 1000);
    const auto one_by_one = [&] {
      paged::Engine other(lazyllm::KeepAll(), 16);
      paged::Request same = other.request(prompt_of(60));
      for (int i = 0; i < 5; ++i) other.run({&same}, 1000);
      return same.tokens;
    }();
    std::vector<std::int32_t> draft(one_by_one.begin() + 61, one_by_one.begin() + 64);
    if (wrong < 3) draft[wrong] += 1;
    verify(engine, request, draft);
    CHECK(request.tokens.size() == 62 + std::min<std::size_t>(wrong, 3));
    CHECK(std::ranges::equal(request.tokens, std::span(one_by_one).first(request.tokens.size())));
    engine.run({&request}, 1000);
    return request.tokens;
  };
  for (std::size_t wrong = 0; wrong <= 3; ++wrong) answer(wrong);
}

TEST_CASE("ranks with a part of the heads each keep what one rank with all heads keeps") {
  const auto prompt = prompt_of(60);
  const lazyllm::TokenPruner<lazyllm::KeepRatio> alone(half_twice);
  const auto whole = depths_of(prompt, -1, alone);
  const auto part = depths_of(prompt, 0, alone);
  Communicator communicator(2);
  std::vector<lazyllm::Depth> first, second;
  std::thread other([&] { second = depths_of(prompt, 2, Rank(communicator, 1).pruner); });
  first = depths_of(prompt, 0, Rank(communicator, 0).pruner);
  other.join();
  CHECK(first == whole);
  CHECK(second == whole);
  CHECK(part != whole);
}

TEST_CASE("a step that keeps everything makes a pruned sequence dense") {
  contiguous::Engine engine(half_twice, 100);
  const auto text = prompt_of(81);
  engine.run(std::span(text).first(80));
  CHECK_THROWS_AS(engine.sequence.check_shareable(80), lazyllm::invalid_argument);
  engine.pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>(lazyllm::KeepAll());
  engine.run(std::span(text).subspan(80));
  CHECK(lazyllm::computed_share(engine.sequence.depths(), contiguous::layer_count) == 1);
  CHECK(engine.sequence.aux().parked_rows() == 0);
  lazyllm::cpu::Sequence<float> other(contiguous::layer_count, contiguous::hidden_size);
  other.append_shared(engine.sequence, 81);
  CHECK(other.length() == 81);
}
