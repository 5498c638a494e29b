#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"

/// Compiled with -ffast-math, which lets a compiler take it that there are no NaNs, infinities and signed zeros, and
/// flush denormal numbers: what a host is compiled with must not hide bad scores. Without doctest, which must not be
/// compiled so. Prints what is wrong.
using namespace lazyllm;

namespace {

int wrong = 0;

void check(bool right, const std::string& what) {
  if (right) return;
  std::printf("wrong: %s\n", what.c_str());
  ++wrong;
}

/// A number from its bits: a compiler may take a NaN that it sees for anything.
float from_bits(std::uint32_t bits) {
  volatile std::uint32_t hidden = bits;
  const std::uint32_t read = hidden;
  float number;
  std::memcpy(&number, &read, sizeof(number));
  return number;
}

const float not_a_number = from_bits(0x7fc00000);
const float infinity = from_bits(0x7f800000);

constexpr Index tokens = 12;

/// A block that scores by Q and K, of which one number may be bad.
struct ByQueries {
  std::vector<float> keys = std::vector<float>(tokens * 8, 0.25F);
  std::vector<float> query_rows = std::vector<float>(tokens * 8, 0.5F);

  void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
  QueryRows<float> queries(const LayerPlan&) const { return {query_rows.data(), 8, 4, 2, 4, 0.5F}; }
  ContiguousKeys<float> key_view(const LayerPlan&, Index) const { return {keys.data(), 8, 4, 2}; }
};

/// A block that computes its scores itself.
struct ByItself {
  std::vector<float> scores = std::vector<float>(tokens, 0.125F);

  void attend(cpu::Context&, const LayerPlan&, RowsView<float>) {}
  void token_scores(cpu::Context&, const LayerPlan&, std::span<const ScoreWindow> windows) {
    const std::span<float> out = windows.front().scores;
    std::memcpy(out.data(), scores.data(), out.size() * sizeof(float));
  }
};

/// Whether a step with this block is refused because of a score; `active` are the tokens of its last layer.
template <class Block>
bool refused(Block& block, const AnyPolicy& policy, const AttentionScore& score, std::vector<Position>& active) {
  using Pruner = TokenPruner<AnyPolicy>;
  cpu::Context context;
  cpu::Sequence<float> sequence(2, 1);
  const Pruner pruner(policy, score);
  Step<cpu::Sequence<float>, Pruner> step;
  const RowsView<float> rows = step.begin(context, sequence, pruner, tokens);
  for (Index r = 0; r < rows.rows; ++r) rows.row(r)[0] = 0;
  LazyDecoderLayer<Block> layer(block);
  try {
    layer.forward(context, step);
  } catch (const invalid_argument& error) {
    return std::string(error.what()).find("layers is not finite") != std::string::npos;
  }
  active.assign(step.plan().keys().begin(), step.plan().keys().end());
  return false;
}

}  // namespace

int main() {
  const Schedule schedule{{1, 0.5}};
  std::vector<Position> active;
  for (const bool share : {false, true}) {
    const AnyPolicy policy = share ? AnyPolicy(KeepTopP(schedule)) : AnyPolicy(KeepRatio(schedule));
    for (const AttentionScore& score : {AttentionScore{}, AttentionScore{.last_queries = 3},
                                        AttentionScore{.last_queries = 3, .over_rows = Reduce::max},
                                        AttentionScore{.pooling = 5}, AttentionScore{.over_layers = true}}) {
      const std::string name = (share ? "top-p, " : "top-k, ") + to_text(score);
      ByQueries good;
      ByItself own;
      check(!refused(good, policy, score, active), name + ": good numbers are refused");
      check(!refused(own, policy, score, active), name + ": good scores are refused");
      for (const float bad : {not_a_number, infinity, -infinity}) {
        for (const Index place : {Index{0}, Index{5}, tokens - 1}) {
          own = {};
          own.scores[static_cast<std::size_t>(place)] = bad;
          check(refused(own, policy, score, active), name + ": a bad score of the engine is not found");
        }
      }
      for (const Index place : {Index{0}, Index{5}, tokens - 1}) {
        ByQueries block;
        block.keys[static_cast<std::size_t>(place * 8 + 5)] = not_a_number;
        check(refused(block, policy, score, active), name + ": a NaN in K is not found");
      }
      ByQueries block;
      block.query_rows[(tokens - 1) * 8 + 6] = not_a_number;
      check(refused(block, policy, score, active), name + ": a NaN in Q is not found");
    }
  }

  // Denormal scores are above zero, and both zeros are equal: the smaller position goes first.
  const float smallest = from_bits(1);
  ByItself own;
  own.scores = {0, from_bits(0x80000000), 0, smallest, -smallest, from_bits(2), 0, 0, 0, 0, 0, 0};
  check(!refused(own, KeepRatio(Schedule{{1, 0.4}}), {}, active), "denormal scores are refused");
  check(active == std::vector<Position>{0, 1, 3, 5, 11}, "denormal scores and zeros are in a wrong order");
  check(!refused(own, KeepRatio(Schedule{{1, 0.4}}), {.pooling = 3}, active), "pooled denormal scores are refused");
  check(active == std::vector<Position>{2, 4, 5, 6, 11}, "pooled denormal scores are in a wrong order");

  // Numbers out of range are found, too.
  const double no_number = not_a_number;
  const auto out_of_range = [](const auto& body) {
    try {
      body();
    } catch (const invalid_argument&) {
      return true;
    }
    return false;
  };
  check(out_of_range([&] { Schedule{{1, no_number}}; }), "a schedule keeps NaN");
  check(out_of_range([&] { (void)parse_schedule("1:nan"); }), "a schedule in text keeps NaN");
  check(out_of_range([&] { (void)recommended(12, no_number); }), "a speedup of NaN is recommended");
  check(out_of_range([&] { (void)parse_recommended("auto:nanx", 12); }), "a speedup of NaN in text is recommended");
  Ranks ranks(0, 1, [](std::span<std::int64_t>, ReduceOp) {});
  check(out_of_range([&] { ranks.set_share(no_number); }), "a rank's share is NaN");
  check(out_of_range([&] {
          const auto nan_share = [&](const PrunePoint&) { return Selection{Selection::Kind::top_p, 0, no_number}; };
          (void)TokenPruner<AnyPolicy>(nan_share).selection({.layers_run = 1, .layers = 2, .active_tokens = 4});
        }),
        "a policy keeps the share NaN");
  if (wrong == 0) std::printf("all right\n");
  return wrong != 0;
}
