#include "lazyllm/check.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"
#include "support/tiny_model.hpp"

using namespace lazyllm;
using namespace lazyllm::test;

namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// What an engine can get wrong.
enum class Fault {
  none,
  wrong_scale,             // in `queries`
  swapped_heads,           // in `queries`
  keys_before_rope,        // in `key_view`
  no_window,               // `token_scores` looks at the last row only
  no_heads,                // `token_scores` gives the mean over the heads, whatever is asked
  reads_other_keys,        // all tokens up to the row's own
  reads_later_keys,        // revived rows see all keys
  suffix_mask,             // revived rows see as many keys as if all rows were the last keys
  rows_as_positions,       // RoPE by the row's number
  positions_without_gaps,  // RoPE by the first row's position
  positions_of_layer_0,    // RoPE by the positions that the rows had in the first layer
  forgets_pruned,          // K/V of tokens that take no part
  mixes_sequences,         // K of the first sequence for all
  no_history,              // in steps of several new tokens
  one_adapter,             // that of the first request for all
  needs_rows               // throws where a sequence has none
};

struct Engine;

struct Block {
  Engine* engine;
  Index layer;

  void attend(cpu::Context&, const LayerPlan& plan, RowsView<float> hidden);
  QueryRows<float> queries(const LayerPlan&) const;
  ContiguousKeys<float> key_view(const LayerPlan&, Index sequence) const;
};

/// The same with the engine's own scores beside the library's.
struct ScoringBlock : Block {
  void token_scores(cpu::Context&, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
    for (const ScoreWindow& window : windows) score(plan, window);
  }
  void score(const LayerPlan& plan, const ScoreWindow& window) const;
};

struct Cache {
  std::vector<Vector> keys, values, plain_keys;  // by layer
};

const TinyShape shape{.layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 8};
const TinyModel model(shape, 7);

struct Engine {
  Engine(Fault fault_, Index sequences, Index tokens) : fault(fault_), caches(at(sequences)) {
    for (Cache& cache : caches) {
      cache.keys.assign(at(shape.layers), Vector(at(tokens * shape.kv_width())));
      cache.plain_keys = cache.values = cache.keys;
    }
  }

  void embed(cpu::Context&, std::span<const std::int32_t> tokens, Positions, RowsView<float> rows) const {
    for (Index i = 0; i < rows.rows; ++i) model.embed(tokens[at(i)], rows.row(i));
  }
  Vector logits(cpu::Context&, RowsView<float> row) const { return model.logits(row.data); }
  Vector dense(cpu::Context& context, std::span<const std::int32_t> tokens) {
    fault = Fault::none;
    Vector rows(tokens.size() * at(shape.hidden_size()));
    const RowsView<float> hidden(rows.data(), std::ssize(tokens), shape.hidden_size());
    embed(context, tokens, {}, hidden);
    DensePlan plan;
    plan.start(0, std::ssize(tokens));
    for (Index layer = 0; layer < shape.layers; ++layer) {
      Block{this, layer}.attend(context, plan.layer(layer, shape.layers), hidden);
      TinyFeedForward<float>{&model, layer}.feed_forward(context, hidden);
    }
    return logits(context, hidden.subrows(hidden.rows - 1, 1));
  }
  void poison(cpu::Context&, Index layer, Index sequence, Position position) {
    for (auto* tensor : {&caches[at(sequence)].keys, &caches[at(sequence)].values}) {
      std::fill_n((*tensor)[at(layer)].begin() + position * shape.kv_width(), shape.kv_width(),
                  std::numeric_limits<float>::quiet_NaN());
    }
  }

  const Index hidden_size = shape.hidden_size();
  Fault fault;
  std::vector<Cache> caches;
  Vector query_rows;
  std::vector<Position> first_positions;
};

void Block::attend(cpu::Context&, const LayerPlan& plan, RowsView<float> hidden) {
  const Fault fault = engine->fault;
  engine->query_rows.clear();
  for (Index s = 0; s < plan.sequences(); ++s) {
    const SequencePlan part = plan.sequence(s);
    if (fault == Fault::needs_rows && part.positions.empty()) throw std::runtime_error("no rows");
    Cache& cache = engine->caches[at(s)];
    const auto key = [&](Position p) { return cache.keys[at(layer)].data() + p * shape.kv_width(); };
    const auto value = [&](Position p) { return cache.values[at(layer)].data() + p * shape.kv_width(); };
    const Index rows = std::ssize(part.positions);
    for (Index r = 0; r < rows; ++r) {
      const Position position = part.positions[at(r)];
      Position turned = position;
      if (fault == Fault::rows_as_positions) turned = static_cast<Position>(r);
      auto& first_positions = engine->first_positions;
      if (layer == 0 && r == 0) first_positions.assign(part.positions.begin(), part.positions.end());
      if (fault == Fault::positions_of_layer_0 && r < std::ssize(first_positions)) turned = first_positions[at(r)];
      if (fault == Fault::positions_without_gaps) turned = part.positions.front() + static_cast<Position>(r);
      const TinyModel::Qkv qkv = model.project(layer, turned, hidden.row(part.first_row + r));
      std::ranges::copy(qkv.key, key(position));
      std::ranges::copy(qkv.value, value(position));
      std::ranges::copy(model.project(layer, 0, hidden.row(part.first_row + r)).key,
                        cache.plain_keys[at(layer)].data() + position * shape.kv_width());
      engine->query_rows.insert(engine->query_rows.end(), qkv.query.begin(), qkv.query.end());
    }
    for (Index r = plan.outputs_only() ? rows - part.outputs : 0; r < rows; ++r) {
      const Position position = part.positions[at(r)];
      const Index limit = part.key_limits[at(r)];
      std::vector<Position> visible(part.keys.begin(), part.keys.begin() + limit);
      const bool revived = position < part.tokens - 1 && part.mask == Mask::ragged_causal;
      if (fault == Fault::reads_other_keys) {
        visible.clear();
        for (Position p = 0; p <= position; ++p) visible.push_back(p);
      } else if (fault == Fault::reads_later_keys && revived) {
        visible.assign(part.keys.begin(), part.keys.end());
      } else if (fault == Fault::suffix_mask) {
        visible.assign(part.keys.begin(), part.keys.end() - rows + r + 1);
      } else if (fault == Fault::no_history && layer == 0 && rows > 1) {
        visible.assign(part.positions.begin(), part.positions.begin() + r + 1);
      }
      std::vector<const float*> keys, values;
      for (const Position p : visible) {
        keys.push_back(fault == Fault::mixes_sequences
                           ? engine->caches.front().keys[at(layer)].data() + p * shape.kv_width()
                           : key(p));
        values.push_back(value(p));
      }
      const float* query = engine->query_rows.data() + (part.first_row + r) * shape.hidden_size();
      model.attend(layer, Vector(query, query + shape.hidden_size()), keys, values, hidden.row(part.first_row + r));
    }
    if (fault == Fault::forgets_pruned && plan.mask() == Mask::ragged_causal) {
      cpu::Context context;
      for (Position p = 0; p < part.tokens; ++p) {
        if (!std::ranges::binary_search(part.keys, p)) engine->poison(context, layer, s, p);
      }
    }
  }
}

QueryRows<float> Block::queries(const LayerPlan&) const {
  const auto scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  QueryRows<float> rows{
      engine->query_rows.data(), shape.hidden_size(), shape.head_dim, shape.heads, shape.head_dim, scale};
  if (engine->fault == Fault::wrong_scale) rows.scale = 1;
  if (engine->fault == Fault::swapped_heads) rows.head_stride = 1;
  return rows;
}

ContiguousKeys<float> Block::key_view(const LayerPlan&, Index sequence) const {
  const Cache& cache = engine->caches[at(sequence)];
  const auto& keys = engine->fault == Fault::keys_before_rope ? cache.plain_keys : cache.keys;
  return {keys[at(layer)].data(), shape.kv_width(), shape.head_dim, shape.kv_heads};
}

/// `[heads x keys]` of one row, by the model's own arithmetic.
Vector probabilities_of(const Engine& engine, const LayerPlan& plan, Index sequence, Index row) {
  const SequencePlan part = plan.sequence(sequence);
  std::vector<const float*> keys;
  for (const Position p : part.keys.first(at(plan.key_limits()[at(row)]))) {
    keys.push_back(engine.caches[at(sequence)].keys[at(plan.layer())].data() + p * shape.kv_width());
  }
  const float* query = engine.query_rows.data() + row * shape.hidden_size();
  return model.probabilities(Vector(query, query + shape.hidden_size()), keys);
}

void ScoringBlock::score(const LayerPlan& plan, const ScoreWindow& window) const {
  const std::span<float> scores = window.scores;
  std::ranges::fill(scores, 0.0F);
  const Index last = window.first_row + window.rows;
  const Index first = engine->fault == Fault::no_window ? last - 1 : window.first_row;
  for (Index row = first; row < last; ++row) {
    const Vector each = probabilities_of(*engine, plan, window.sequence, row);
    const auto keys = each.size() / static_cast<std::size_t>(shape.heads);
    const bool highest = window.over_heads == Reduce::max && engine->fault != Fault::no_heads;
    for (std::size_t i = 0; i < keys; ++i) {
      float of_row = 0;
      for (std::size_t j = i; j < each.size(); j += keys) {
        of_row = highest ? std::max(of_row, each[j]) : of_row + each[j] / static_cast<float>(shape.heads);
      }
      scores[i] = window.over_rows == Reduce::max ? std::max(scores[i], of_row)
                                                  : scores[i] + of_row / static_cast<float>(last - first);
    }
  }
}

/// With the library's scores alone, and probabilities to compare them with.
struct Plain : Engine {
  Plain(Fault fault_, Index sequences, Index tokens) : Engine(fault_, sequences, tokens) {
    for (Index layer = 0; layer < shape.layers; ++layer) {
      layers.emplace_back(Block{this, layer}, TinyFeedForward<float>{&model, layer});
    }
  }
  Vector probabilities(cpu::Context&, const LayerPlan& plan, Index sequence, Index row) {
    return probabilities_of(*this, plan, sequence, row);
  }
  std::vector<LazyDecoderLayer<Block, TinyFeedForward<float>>> layers;
};

/// With two ways to be scored, which are compared with each other.
struct Scoring : Engine {
  Scoring(Fault fault_, Index sequences, Index tokens) : Engine(fault_, sequences, tokens) {
    for (Index layer = 0; layer < shape.layers; ++layer) {
      layers.emplace_back(ScoringBlock{{this, layer}}, TinyFeedForward<float>{&model, layer});
    }
  }
  std::vector<LazyDecoderLayer<ScoringBlock, TinyFeedForward<float>>> layers;
};

/// With a feed-forward that differs by request.
struct Adapted : Engine {
  struct FeedForward {
    const Adapted* engine;
    Index layer;

    void feed_forward(cpu::Context&, std::span<const Index> row_indptr, RowsView<float> hidden) {
      for (std::size_t s = 0; s + 1 < row_indptr.size(); ++s) {
        const Index request = engine->requests[engine->fault == Fault::one_adapter ? 0 : s];
        for (Index r = row_indptr[s]; r < row_indptr[s + 1]; ++r) {
          model.feed_forward(layer, hidden.row(r), 0.5F * static_cast<float>(request));
        }
      }
    }
  };

  Adapted(Fault fault_, Index sequences, Index tokens) : Engine(fault_, sequences, tokens), requests(at(sequences)) {
    for (Index layer = 0; layer < shape.layers; ++layer)
      layers.emplace_back(Block{this, layer}, FeedForward{this, layer});
  }
  void set_request(Index sequence, Index request) { requests[at(sequence)] = request; }
  void dense() = delete;  // its blocks run in a plain loop
  Vector probabilities(cpu::Context&, const LayerPlan& plan, Index sequence, Index row) {
    return probabilities_of(*this, plan, sequence, row);
  }
  std::vector<Index> requests;
  std::vector<LazyDecoderLayer<Block, FeedForward>> layers;
};

/// With one way, and nothing to compare it with.
struct Silent : Engine {
  Silent(Fault fault_, Index sequences, Index tokens) : Engine(fault_, sequences, tokens) {
    for (Index layer = 0; layer < shape.layers; ++layer) {
      layers.emplace_back(Block{this, layer}, TinyFeedForward<float>{&model, layer});
    }
  }
  std::vector<LazyDecoderLayer<Block, TinyFeedForward<float>>> layers;
};

template <class State>
CheckReport report_of(Fault fault, const CheckOptions& options = {}) {
  std::vector<std::int32_t> prompt(48);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * i * 5 % 31);
  cpu::Context context;
  return check_engine(
      context, [&](Index sequences, Index tokens) { return State(fault, sequences, tokens); }, prompt, options);
}

/// The names of the checks that have failed, with a comma behind each.
std::string failed(const CheckReport& report) {
  std::string names;
  for (const CheckResult& result : report.results) {
    if (!result.passed) names += result.name + ", ";
  }
  return names;
}

const std::string dense = "keeping everything equals the dense path, ";
const std::string revival = "revived rows equal the dense path and see earlier keys only, ";
const std::string scores = "scores are attention probabilities, ";
const std::string unused = "K/V outside plan.keys() is not read, ";
const std::string work = "work equals depths, ";
const std::string chunks = "a prompt in chunks equals the whole, ";
const std::string budget = "a row budget changes nothing, ";
const std::string batch = "a batch equals single runs, ";

}  // namespace

TEST_CASE("a right engine passes all checks") {
  for (const CheckReport& report :
       {report_of<Plain>(Fault::none), report_of<Scoring>(Fault::none), report_of<Adapted>(Fault::none)}) {
    INFO(report.text());
    CHECK(report.passed());
    CHECK(report.results.size() == 8);
  }
}

TEST_CASE("a fault of what the library scores by is found by the scores alone") {
  for (const Fault fault : {Fault::wrong_scale, Fault::swapped_heads, Fault::keys_before_rope}) {
    CAPTURE(static_cast<int>(fault));
    CHECK(failed(report_of<Plain>(fault)) == scores);
    CHECK(failed(report_of<Scoring>(fault)) == scores);
  }
  CHECK(failed(report_of<Scoring>(Fault::no_window)) == scores);
  CHECK(failed(report_of<Scoring>(Fault::no_heads)) == scores);
}

TEST_CASE("scores that cannot be compared with anything are no success") {
  const CheckReport report = report_of<Silent>(Fault::none);
  CHECK(failed(report) == scores);
  CHECK(report.text().find("nothing to compare") != std::string::npos);
}

TEST_CASE("keys outside the plan are found by poison alone") {
  CHECK(failed(report_of<Plain>(Fault::reads_other_keys)) == unused + work);
}

TEST_CASE("a wrong mask of revived rows is found where rows are revived") {
  CHECK(failed(report_of<Plain>(Fault::reads_later_keys)) == revival);
  CHECK(failed(report_of<Plain>(Fault::suffix_mask)) == revival);
}

TEST_CASE("wrong positions are found") {
  CHECK(failed(report_of<Plain>(Fault::rows_as_positions)).starts_with(dense));
  CHECK(failed(report_of<Plain>(Fault::positions_of_layer_0)).starts_with(revival));
  CHECK(failed(report_of<Plain>(Fault::positions_without_gaps)) == budget);
}

TEST_CASE("K/V that is missing when a pruned token comes back is found") {
  CHECK(failed(report_of<Plain>(Fault::forgets_pruned)).find(work) != std::string::npos);
}

TEST_CASE("sequences that are mixed up are found in the batch") {
  CHECK(failed(report_of<Plain>(Fault::mixes_sequences)) == batch);
  CHECK(report_of<Plain>(Fault::mixes_sequences, {.sequences = 1}).passed());
  CHECK(failed(report_of<Adapted>(Fault::one_adapter)) == batch);
}

TEST_CASE("an engine that needs rows of every sequence is found in the batch") {
  for (const Index sequences : {2, 3}) {
    const CheckReport report = report_of<Plain>(Fault::needs_rows, {.sequences = sequences});
    CHECK(failed(report).ends_with(batch));
    CHECK(report.text().find("FAILED  a batch equals single runs: no rows") != std::string::npos);
  }
}

TEST_CASE("the report says in words what was found") {
  const CheckReport report = report_of<Plain>(Fault::wrong_scale);
  CHECK(report.text().find("passed  work equals depths: ") != std::string::npos);
  CHECK(report.text().find("FAILED  scores are attention probabilities: layer 0, mean of 1 rows, mean of the heads, "
                           "queries and key_view "
                           "against probabilities: number 0 is ") != std::string::npos);
}

TEST_CASE("options out of range are refused with numbers") {
  CHECK_THROWS_WITH_AS(report_of<Plain>(Fault::none, {.decode_steps = 40}),
                       "lazyllm: check_engine: 48 tokens are out of range, at least 56", invalid_argument);
  CHECK_THROWS_AS(report_of<Plain>(Fault::none, {.decode_steps = 1}), invalid_argument);
  CHECK_THROWS_AS(report_of<Plain>(Fault::none, {.last_queries = 0}), invalid_argument);
  CHECK_THROWS_AS(report_of<Plain>(Fault::none, {.sequences = 9}), invalid_argument);
  CHECK_THROWS_AS(report_of<Plain>(Fault::none, {.sequences = 0}), invalid_argument);
}

TEST_CASE("a prefill that has not seen the history is found in chunks") {
  CHECK(failed(report_of<Plain>(Fault::no_history)) == chunks + budget);
}

TEST_CASE("the given policy prunes, and one that asks for no scores is no success") {
  const CheckReport report = report_of<Plain>(Fault::none, {.policy = KeepAll()});
  CHECK(failed(report) == scores);
  CHECK(report.text().find("the policy asks for no scores") != std::string::npos);
}
