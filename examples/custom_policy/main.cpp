// An engine with its own idea of which tokens matter: a policy that never drops punctuation and leaves short prompts
// alone, and scores of its own. Its block is fused (attention and feed-forward in one), as in many inference engines.

#include <Eigen/Core>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <complex>
#include <cstdio>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using lazyllm::Index;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Index layer_count = 6, heads = 4, head_width = 16, width = heads * head_width, vocabulary = 128;
constexpr Index capacity = 512;
constexpr int decode_steps = 16;

/// A character is a token.
struct Text {
  explicit Text(const std::string& prompt) {
    for (const char c : prompt) append(c);
  }

  void append(Index token) {
    tokens.push_back(token);
    punctuation.push_back(std::ispunct(static_cast<int>(token)) != 0);
  }

  std::vector<Index> tokens;
  std::vector<std::uint8_t> punctuation;  // a mask, one entry for each token
};

/// A policy is any callable from a PrunePoint to a Selection. It is asked anew in every step, so it may read what
/// changes between steps: here a mask that grows with the text.
struct KeepPunctuation {
  const Text* text;
  Index short_prompt = 100;

  lazyllm::Selection operator()(const lazyllm::PrunePoint& point) const {
    if (point.tokens <= short_prompt || point.layers_run % 2 != 0) return {};  // keeps everything
    const double keep = point.tokens <= 4 * short_prompt ? 0.5 : 0.3;
    return {.kind = lazyllm::Selection::Kind::count,
            .count = lazyllm::keep_count(keep, point.active),
            .protect_first = 4,
            .protect_mask = text->punctuation};
  }
};

struct Weights {
  Matrix query, key, value, output, up, down;
};

/// K/V `[capacity x width]` of one layer. NaN marks what has not been computed.
struct LayerCache {
  Matrix keys, values;
};

auto matrix_of(lazyllm::Rows<float> rows) {
  return Eigen::Map<Matrix, 0, Eigen::OuterStride<>>(rows.data, rows.rows, rows.width, rows.stride);
}

Matrix normalised(const Matrix& x) {
  const Eigen::ArrayXf mean_squares = x.rowwise().squaredNorm() / width;
  return x.array().colwise() * (mean_squares + 1e-5F).rsqrt();
}

Matrix rotated(Matrix x, lazyllm::Positions positions) {
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index c = 0; c < width; c += 2) {
      const float exponent = static_cast<float>(c % head_width) / head_width;
      const float angle = static_cast<float>(positions[r]) * std::pow(10000.0F, -exponent);
      const std::complex<float> turned = std::complex(x(r, c), x(r, c + 1)) * std::polar(1.0F, angle);
      x(r, c) = turned.real();
      x(r, c + 1) = turned.imag();
    }
  }
  return x;
}

struct FusedBlock {
  const Weights* weights;
  LayerCache* cache;
  Eigen::VectorXf importance = {};  // of the active tokens

  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::Rows<float> hidden) {
    const Matrix x = normalised(matrix_of(hidden));
    const Matrix query = rotated(x * weights->query, plan.positions());
    const Matrix key = rotated(x * weights->key, plan.positions());
    const Matrix value = x * weights->value;
    for (Index r = 0; r < plan.rows(); ++r) {
      const Index position = plan.positions()[r];
      if (!std::isnan(cache->keys(position, 0))) throw std::logic_error("a token was computed twice in one layer");
      cache->keys.row(position) = key.row(r);
      cache->values.row(position) = value.row(r);
    }
    const Matrix active_keys = cache->keys(plan.keys(), Eigen::all);
    const Matrix active_values = cache->values(plan.keys(), Eigen::all);
    importance = Eigen::VectorXf::Zero(std::ssize(plan.keys()));
    Matrix mixed(plan.rows(), width);
    for (Index column = 0; column < width; column += head_width) {
      const auto head_values = active_values.middleCols<head_width>(column);
      Matrix p = query.middleCols<head_width>(column) * active_keys.middleCols<head_width>(column).transpose() / 4;
      for (Index r = 0; r < plan.rows(); ++r) {
        const Index visible = plan.key_limits()[r];
        p.row(r).head(visible) = (p.row(r).head(visible).array() - p.row(r).head(visible).maxCoeff()).exp();
        p.row(r).tail(p.cols() - visible).setZero();
        p.row(r) /= p.row(r).sum();
      }
      mixed.middleCols<head_width>(column) = p * head_values;
      // Not the paper's score: what a token adds to the last row depends on its value, too.
      importance += p.row(plan.rows() - 1).transpose().cwiseProduct(head_values.rowwise().norm());
    }
    matrix_of(hidden) += mixed * weights->output;

    const Matrix up = normalised(matrix_of(hidden)) * weights->up;
    const Matrix activated = up.array() / (1 + (-up.array()).exp());
    matrix_of(hidden) += activated * weights->down;
  }

  /// In place of `queries` and `keys`: the scores of `plan.keys()` as this engine sees them.
  void last_token_scores(lazyllm::cpu::Context&, const lazyllm::LayerPlan&, Index, std::span<float> scores) const {
    Eigen::VectorXf::Map(scores.data(), std::ssize(scores)) = importance;
  }
};

template <lazyllm::SelectionPolicy Policy>
class Engine {
 public:
  explicit Engine(Policy policy) : pruner_(std::move(policy)) {
    std::mt19937 random(1);
    const auto matrix = [&](Index inputs, Index outputs, float gain) -> Matrix {
      std::normal_distribution<float> normal(0, gain / std::sqrt(static_cast<float>(inputs)));
      return Matrix::NullaryExpr(inputs, outputs, [&] { return normal(random); });
    };
    embedding_ = matrix(vocabulary, width, 1);
    const Matrix empty = Matrix::Constant(capacity, width, std::numeric_limits<float>::quiet_NaN());
    for (Index l = 0; l < layer_count; ++l) {
      weights_.push_back({matrix(width, width, 3), matrix(width, width, 2), matrix(width, width, 1),
                          matrix(width, width, 1), matrix(width, 2 * width, 1), matrix(2 * width, width, 1)});
      caches_.push_back({empty, empty});
    }
    for (Index l = 0; l < layer_count; ++l) layers_.emplace_back(FusedBlock{&weights_[l], &caches_[l]});
  }
  Engine(const Engine&) = delete;

  /// Runs the tokens of the text that have not run yet and appends the likeliest next one. Returns its logits.
  Matrix run(Text& text) {
    const auto tokens = std::span<const Index>(text.tokens).subspan(sequence_.length());
    const typename Step::Entry entry{&sequence_, &pruner_, std::ssize(tokens)};
    matrix_of(step_.begin(context_, std::span(&entry, 1))) = embedding_(tokens, Eigen::all);
    for (auto& layer : layers_) layer.forward(context_, step_);
    const Matrix logits = normalised(matrix_of(step_.end())) * embedding_.transpose();
    Index next = 0;
    logits.row(0).maxCoeff(&next);
    text.append(next);
    return logits;
  }

  const lazyllm::StepStats& stats() const { return step_.stats(); }
  std::span<const lazyllm::Depth> depths() const { return sequence_.depths(); }
  const Eigen::VectorXf& importance(Index layer) { return layers_[layer].attention().importance; }

 private:
  using Sequence = lazyllm::Sequence<lazyllm::AuxCache<lazyllm::cpu::DenseStorage<float>>>;
  using Pruner = lazyllm::TokenPruner<Policy>;
  using Step = lazyllm::Step<Sequence, Pruner>;

  Matrix embedding_;
  std::vector<Weights> weights_;
  std::vector<LayerCache> caches_;
  std::vector<lazyllm::LazyDecoderLayer<FusedBlock>> layers_;
  lazyllm::cpu::Context context_;
  Pruner pruner_;
  Sequence sequence_{layer_count, lazyllm::AuxCache(lazyllm::cpu::DenseStorage<float>(width))};
  Step step_;
};

void print(const char* what, const lazyllm::StepStats& stats) {
  std::printf("%s\nlayer  active computed revived\n", what);
  for (std::size_t l = 0; l < stats.layers.size(); ++l) {
    const auto& [active, computed, revived, kept] = stats.layers[l];
    std::printf("%5zu %7td %8td %7td\n", l, active, computed, revived);
  }
}

int main() {
  std::string prompt;
  while (prompt.size() < 300) prompt += "Call me Ishmael. Some years ago - never mind how long precisely - I sailed; ";
  bool correct = true;
  const auto check = [&](bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "FAILED: %s\n", what);
    correct = correct && holds;
  };

  Text text(prompt);
  Engine engine(KeepPunctuation{&text});
  engine.run(text);
  const auto depths = engine.depths();
  bool punctuation_kept = true;
  float least_kept = std::numeric_limits<float>::infinity(), most_dropped = 0;
  for (std::size_t t = 0; t < depths.size(); ++t) {
    if (text.punctuation[t] != 0) {
      punctuation_kept = punctuation_kept && depths[t] == layer_count;
    } else if (t >= 4 && t + 1 < depths.size()) {
      const float importance = engine.importance(1)[static_cast<Index>(t)];
      if (depths[t] == 2) most_dropped = std::max(most_dropped, importance);
      if (depths[t] > 2) least_kept = std::min(least_kept, importance);
    }
  }
  check(punctuation_kept, "punctuation runs through every layer");
  check(0 < most_dropped && most_dropped <= least_kept, "the engine's own scores decide about the rest");

  print("Prompt of 304 tokens", engine.stats());
  engine.run(text);
  print("First decode step", engine.stats());
  Index revived = engine.stats().revived();
  for (int i = 1; i < decode_steps; ++i) {
    check(engine.run(text).allFinite(), "no K/V is read that was not computed");
    revived += engine.stats().revived();
  }
  check(revived > 0, "decoding revives pruned tokens");

  // A lambda is a policy, too. These two keep everything, each in its own way.
  Text small(prompt.substr(0, 90)), same(prompt.substr(0, 90));
  Engine short_prompt(KeepPunctuation{&small});
  Engine dense([](const lazyllm::PrunePoint&) { return lazyllm::Selection{}; });
  check(short_prompt.run(small) == dense.run(same), "short prompts are not pruned");
  check(short_prompt.stats().computed() == 90 * layer_count, "short prompts are not pruned");
  return correct ? 0 : 1;
}
