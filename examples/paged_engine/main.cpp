// A tiny engine with paged K/V: requests draw pages from one pool and give them back when they are truncated. Requests
// of different lengths run in one batch, and pruned tokens are parked in a pool of rows that all requests share.

#include <Eigen/Core>
#include <cmath>
#include <complex>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using lazyllm::Index;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Index layer_count = 6, heads = 4, kv_heads = 2, head_width = 16, vocabulary = 200;
constexpr Index width = heads * head_width, kv_width = kv_heads * head_width;
constexpr float scale = 0.25F;  // 1 / sqrt(head_width)
constexpr float not_computed = std::numeric_limits<float>::quiet_NaN();
constexpr Index page_size = 16, pool_pages = 64;
constexpr int decode_steps = 16;

/// K/V `[pool_pages * page_size x kv_width]` of each layer. NaN marks what has not been computed.
struct PagePool {
  PagePool() {
    for (std::int32_t page = pool_pages; page-- > 0;) free_pages.push_back(page);
  }

  std::vector<Matrix> keys =
      std::vector<Matrix>(layer_count, Matrix::Constant(pool_pages* page_size, kv_width, not_computed));
  std::vector<Matrix> values = keys;
  std::vector<std::int32_t> free_pages;
};

/// The pages of one request, the same in every layer.
class PageTable {
 public:
  explicit PageTable(PagePool& pool) : pool_(pool) {}
  PageTable(const PageTable&) = delete;
  ~PageTable() { truncate(0); }

  /// Takes pages until `tokens` tokens have room.
  void grow(Index tokens) {
    while (std::ssize(pages_) * page_size < tokens) {
      if (pool_.free_pages.empty()) throw std::runtime_error("no free page");
      pages_.push_back(pool_.free_pages.back());
      pool_.free_pages.pop_back();
    }
  }

  /// Forgets the tokens from position `tokens` on and gives back the pages that hold no others.
  void truncate(Index tokens) {
    for (Index position = tokens; position < std::ssize(pages_) * page_size; ++position) {
      for (Index l = 0; l < layer_count; ++l) {
        pool_.keys[l].row(row(position)).setConstant(not_computed);
        pool_.values[l].row(row(position)).setConstant(not_computed);
      }
    }
    for (; (std::ssize(pages_) - 1) * page_size >= tokens; pages_.pop_back()) {
      pool_.free_pages.push_back(pages_.back());
    }
  }

  /// Where a position's K/V lie in the pool's arrays.
  Index row(Index position) const { return pages_[position / page_size] * page_size + position % page_size; }
  const std::int32_t* data() const { return pages_.data(); }

 private:
  PagePool& pool_;
  std::vector<std::int32_t> pages_;
};

using Storage = lazyllm::cpu::PooledStorage<float>;
using Sequence = lazyllm::Sequence<lazyllm::AuxCache<Storage>>;
using Pruner = lazyllm::TokenPruner<lazyllm::KeepFraction>;
using Step = lazyllm::Step<Sequence, Pruner>;

struct Request {
  Request(std::vector<Index> prompt, PagePool& pool, std::shared_ptr<Storage::Pool> parked)
      : tokens(std::move(prompt)), pages(pool), sequence(layer_count, lazyllm::AuxCache(Storage(std::move(parked)))) {}

  /// Forgets what was computed for the tokens from `count` on: K/V are the engine's, all else is the library's.
  void truncate(Index count) {
    sequence.truncate(count);
    pages.truncate(count);
  }

  std::vector<Index> tokens;
  PageTable pages;
  Sequence sequence;
  std::vector<Matrix> logits = {};  // one row for each step
};

struct Weights {
  Matrix query, key, value, output, up, down;
};

/// A product row by row: a row's result does not depend on what else is in the batch.
Matrix times(const Matrix& x, const Matrix& weights) {
  Matrix y(x.rows(), weights.cols());
  for (Index r = 0; r < x.rows(); ++r) y.row(r).noalias() = x.row(r) * weights;
  return y;
}

auto matrix_of(lazyllm::Rows<float> rows) {
  return Eigen::Map<Matrix, 0, Eigen::OuterStride<>>(rows.data, rows.rows, rows.width, rows.stride);
}

Matrix normalised(Matrix x) {
  for (Index r = 0; r < x.rows(); ++r) x.row(r) /= std::sqrt(x.row(r).squaredNorm() / width + 1e-5F);
  return x;
}

Matrix rotated(Matrix x, lazyllm::Positions positions) {
  for (Index r = 0; r < x.rows(); ++r) {
    for (Index c = 0; c < x.cols(); c += 2) {
      const float exponent = static_cast<float>(c % head_width) / head_width;
      const float angle = static_cast<float>(positions[r]) * std::pow(10000.0F, -exponent);
      const std::complex<float> turned = std::complex(x(r, c), x(r, c + 1)) * std::polar(1.0F, angle);
      x(r, c) = turned.real();
      x(r, c + 1) = turned.imag();
    }
  }
  return x;
}

struct AttentionBlock {
  const Weights* weights;
  PagePool* pool;
  Index layer;
  const std::vector<Request*>* batch;  // of the running step, in its order
  Matrix query = {};

  void attend(lazyllm::cpu::Context&, const lazyllm::LayerPlan& plan, lazyllm::Rows<float> hidden) {
    const Matrix x = normalised(matrix_of(hidden));
    query = rotated(times(x, weights->query), plan.positions());
    const Matrix key = rotated(times(x, weights->key), plan.positions());
    const Matrix value = times(x, weights->value);
    Matrix mixed = Matrix::Zero(plan.rows(), width);
    for (Index s = 0; s < plan.sequences(); ++s) {
      const lazyllm::SequencePlan part = plan.sequence(s);
      const PageTable& pages = (*batch)[s]->pages;
      const Index rows = std::ssize(part.positions);
      for (Index r = 0; r < rows; ++r) {
        const Index slot = pages.row(part.positions[r]);
        if (!std::isnan(pool->keys[layer](slot, 0))) throw std::logic_error("a token was computed twice in one layer");
        pool->keys[layer].row(slot) = key.row(part.first_row + r);
        pool->values[layer].row(slot) = value.row(part.first_row + r);
      }
      for (Index r = plan.last_rows_only() ? rows - 1 : 0; r < rows; ++r) {
        attend_row(part.first_row + r, part.keys.first(part.key_limits[r]), pages, mixed);
      }
    }
    matrix_of(hidden) += times(mixed, weights->output);
  }

  lazyllm::QueryRows<float> queries(const lazyllm::LayerPlan&) const {
    return {query.data(), width, head_width, heads, head_width, scale};
  }
  lazyllm::PagedKeys<float> keys(const lazyllm::LayerPlan&, Index s) const {
    return {.data = pool->keys[layer].data(),
            .page_table = (*batch)[s]->pages.data(),
            .page_size = page_size,
            .page_stride = page_size * kv_width,
            .position_stride = kv_width,
            .head_stride = head_width,
            .heads = kv_heads};
  }

 private:
  void attend_row(Index row, lazyllm::Positions visible, const PageTable& pages, Matrix& mixed) const {
    Eigen::ArrayXf p(std::ssize(visible));
    for (Index head = 0; head < heads; ++head) {
      const Index column = head * head_width;
      const Index kv_column = head / (heads / kv_heads) * head_width;
      for (Index i = 0; i < p.size(); ++i) {
        p[i] = scale * query.row(row).segment<head_width>(column).dot(
                           pool->keys[layer].row(pages.row(visible[i])).segment<head_width>(kv_column));
      }
      p = (p - p.maxCoeff()).exp();
      p /= p.sum();
      for (Index i = 0; i < p.size(); ++i) {
        mixed.row(row).segment<head_width>(column) +=
            p[i] * pool->values[layer].row(pages.row(visible[i])).segment<head_width>(kv_column);
      }
    }
  }
};

struct FeedForwardBlock {
  const Weights* weights;

  void feed_forward(lazyllm::cpu::Context&, lazyllm::Rows<float> hidden) {
    const Matrix x = times(normalised(matrix_of(hidden)), weights->up);
    matrix_of(hidden) += times(x.array() / (1 + (-x.array()).exp()), weights->down);
  }
};

class Engine {
 public:
  explicit Engine(std::mt19937& random) {
    const auto matrix = [&](Index inputs, Index outputs, float gain) -> Matrix {
      std::normal_distribution<float> normal(0, gain / std::sqrt(static_cast<float>(inputs)));
      return Matrix::NullaryExpr(inputs, outputs, [&] { return normal(random); });
    };
    embedding_ = matrix(vocabulary, width, 1);
    for (Index l = 0; l < layer_count; ++l) {
      weights_.push_back({matrix(width, width, 3), matrix(width, kv_width, 2), matrix(width, kv_width, 1),
                          matrix(width, width, 1), matrix(width, 2 * width, 1), matrix(2 * width, width, 1)});
    }
    for (Index l = 0; l < layer_count; ++l) {
      layers_.emplace_back(AttentionBlock{&weights_[l], &pool_, l, &batch_}, FeedForwardBlock{&weights_[l]});
    }
  }
  Engine(const Engine&) = delete;

  Request request(std::vector<Index> prompt) { return {std::move(prompt), pool_, parked_}; }

  /// Runs the tokens of each request that have not run yet, then appends the likeliest next token.
  void run(std::vector<Request*> batch) {
    batch_ = std::move(batch);
    std::vector<Step::Entry> entries;
    std::vector<Index> tokens;
    for (Request* request : batch_) {
      request->pages.grow(std::ssize(request->tokens));
      const auto first = request->tokens.begin() + request->sequence.length();
      entries.push_back({&request->sequence, &pruner_, request->tokens.end() - first});
      tokens.insert(tokens.end(), first, request->tokens.end());
    }
    matrix_of(step_.begin(context_, entries)) = embedding_(tokens, Eigen::all);
    for (auto& layer : layers_) layer.forward(context_, step_);
    const Matrix logits = times(normalised(matrix_of(step_.end())), embedding_.transpose());
    for (std::size_t s = 0; s < batch_.size(); ++s) {
      batch_[s]->logits.push_back(logits.row(s));
      logits.row(s).maxCoeff(&batch_[s]->tokens.emplace_back());
    }
  }

  const lazyllm::StepStats& stats() const { return step_.stats(); }
  Index pages_in_use() const { return pool_pages - std::ssize(pool_.free_pages); }
  Index parked_rows() const { return parked_->rows_in_use(); }

 private:
  Matrix embedding_;
  std::vector<Weights> weights_;
  PagePool pool_;
  std::shared_ptr<Storage::Pool> parked_ = std::make_shared<Storage::Pool>(width);
  Pruner pruner_{lazyllm::KeepFraction({{2, 0.5}, {4, 0.5}})};
  lazyllm::cpu::Context context_;
  Step step_;
  std::vector<Request*> batch_;
  std::vector<lazyllm::LazyDecoderLayer<AttentionBlock, FeedForwardBlock>> layers_;
};

void print(const char* what, const lazyllm::StepStats& stats) {
  std::printf("%s\nlayer  active computed revived\n", what);
  for (std::size_t l = 0; l < stats.layers.size(); ++l) {
    const auto& [active, computed, revived, kept] = stats.layers[l];
    std::printf("%5zu %7td %8td %7td\n", l, active, computed, revived);
  }
}

int main() {
  std::mt19937 random(1);
  Engine engine(random);
  std::vector<Index> prompts[2] = {std::vector<Index>(300), std::vector<Index>(130)};
  for (auto& prompt : prompts) {
    for (Index& token : prompt) token = std::uniform_int_distribution<Index>(0, vocabulary - 1)(random);
  }

  bool correct = true;
  const auto check = [&](bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "FAILED: %s\n", what);
    correct = correct && holds;
  };

  {
    Request a = engine.request(prompts[0]);
    Request b = engine.request(prompts[1]);
    engine.run({&a, &b});
    print("Prompts of 300 and 130 tokens in one batch", engine.stats());
    check(engine.pages_in_use() == 19 + 9, "the prompts take the fewest pages");
    check(engine.parked_rows() == 3 * (300 + 130) / 4, "three quarters of the tokens are parked");

    engine.run({&a, &b});
    print("First decode step", engine.stats());
    Index revived = engine.stats().revived();
    for (int i = 1; i < decode_steps; ++i) {
      engine.run({&a, &b});
      revived += engine.stats().revived();
    }
    check(revived > 0, "decoding revives pruned tokens");

    for (Request* batched : {&a, &b}) {
      Request alone = engine.request(prompts[batched == &b]);
      for (int i = 0; i <= decode_steps; ++i) engine.run({&alone});
      check(alone.logits == batched->logits, "alone and in a batch, a request gets the same logits, bit for bit");
    }

    // Back to the prompt: what was revived stays computed, so the same decode steps find all that they need.
    const std::vector<Matrix> before = std::move(a.logits);
    a.logits = {before.front()};
    a.truncate(300);
    a.tokens.resize(301);
    check(engine.pages_in_use() == 19 + 10, "truncating gives pages back");
    revived = 0;
    for (int i = 0; i < decode_steps; ++i) {
      engine.run({&a});
      revived += engine.stats().revived();
    }
    check(a.logits == before && revived == 0, "decoding again gives the same logits and revives nothing");
  }
  check(engine.pages_in_use() == 0 && engine.parked_rows() == 0, "requests leave nothing behind");
  return correct ? 0 : 1;
}
