// A tiny engine with paged K/V. Requests in one batch share a pool of pages, and one of rows for their pruned tokens.
#include <Eigen/Dense>
#include <cmath>
#include <iostream>
#include <memory>
#include <span>
#include <vector>

#include "lazyllm/lazyllm.hpp"

using Eigen::MatrixXf, Eigen::VectorXf, lazyllm::Index, lazyllm::LayerPlan;
using Storage = lazyllm::cpu::PooledStorage<float>;
using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

constexpr Index layer_count = 6, width = 64, vocabulary = 200, decode_steps = 16, page_size = 16, pool_pages = 64;
constexpr float scale = 0.125F;  // 1 / sqrt(width): one attention head, to be short

MatrixXf random(float size) { return MatrixXf::Random(width, width) * size; }
struct Layer {
  MatrixXf query = random(0.6F), key = random(0.4F), value = random(0.2F), output = random(0.2F);
  MatrixXf up = random(0.2F), down = random(0.2F);
};

const MatrixXf embedding = MatrixXf::Random(width, vocabulary), position_embedding = MatrixXf::Random(width, 512);
const std::vector<Layer> model(layer_count);
// K/V of a layer's pages, a column for each token: reading what was not computed would not go unnoticed.
const MatrixXf nothing = MatrixXf::Constant(width, pool_pages* page_size, NAN);

auto columns(lazyllm::RowsView<float> rows) { return MatrixXf::Map(rows.data, width, rows.rows); }
VectorXf normalised(const VectorXf& x) { return x.normalized() * std::sqrt(static_cast<float>(width)); }

struct Request {
  std::vector<Index> tokens;
  Pruner pruner;
  lazyllm::Sequence<lazyllm::AuxCache<Storage>> sequence;
  std::vector<std::int32_t> pages = {};  // its page table, the same in every layer

  Index column(Index position) const { return pages[position / page_size] * page_size + position % page_size; }
};
using Batch = std::vector<Request*>;

struct FusedBlock {
  const Layer* layer;
  const Batch* batch;  // of the running step, in its order
  MatrixXf key_pages = nothing, value_pages = nothing, query = {};

  void attend(lazyllm::cpu::Context&, const LayerPlan& plan, lazyllm::RowsView<float> hidden) {
    query.resize(width, plan.rows());
    for (Index s = 0; s < plan.sequences(); ++s) {
      const lazyllm::SequencePlan part = plan.sequence(s);
      std::vector<Index> keys;
      for (const Index position : part.keys) keys.push_back((*batch)[s]->column(position));
      for (Index i = 0; i < std::ssize(part.positions); ++i) {  // positions ascend: K/V of the rows before are there
        const auto visible = std::span(keys).first(part.key_limits[i]);  // its own key is the last
        auto h = columns(hidden).col(part.first_row + i);
        const VectorXf x = normalised(h) + position_embedding.col(part.positions[i]);
        query.col(part.first_row + i) = layer->query * x;
        key_pages.col(visible.back()) = layer->key * x;
        value_pages.col(visible.back()) = layer->value * x;
        VectorXf p = key_pages(Eigen::all, visible).transpose() * (layer->query * x) * scale;
        p = (p.array() - p.maxCoeff()).exp();
        h += layer->output * (value_pages(Eigen::all, visible) * p) / p.sum();
        h += layer->down * (layer->up * normalised(h)).cwiseMax(0);
      }
    }
  }
  lazyllm::QueryRows<float> queries(const LayerPlan&) const { return {query.data(), width, width, 1, width, scale}; }
  lazyllm::PagedKeys<float> keys(const LayerPlan&, Index s) const {
    return {key_pages.data(), (*batch)[s]->pages.data(), page_size, page_size * width, width, width, /*heads=*/1};
  }
};

int main() {
  std::vector<std::int32_t> pool;  // of free pages
  for (std::int32_t page = 0; page < pool_pages; ++page) pool.push_back(page);
  const auto parked = std::make_shared<Storage::Pool>(width);
  const auto request = [&](Index tokens, const lazyllm::AnyPolicy& policy) {
    Request r{std::vector<Index>(tokens), Pruner(policy), {layer_count, lazyllm::AuxCache(Storage(parked))}};
    for (Index i = 0; i < tokens; ++i) r.tokens[i] = i * i % vocabulary;
    return r;
  };
  const auto truncate = [&](Request& r, Index tokens) {  // frees the pages that hold only tokens from there on
    r.sequence.truncate(tokens);
    for (; (std::ssize(r.pages) - 1) * page_size >= tokens; r.pages.pop_back()) pool.push_back(r.pages.back());
  };
  // A batch of two: one keeps half of the tokens after layer 2 and half of these after layer 4, the other everything.
  Request lazy = request(300, lazyllm::KeepRatio({{2, 0.5}, {4, 0.5}})), all = request(130, lazyllm::KeepAll());
  const Batch batch = {&lazy, &all}, alone = {&all};
  lazyllm::cpu::Context context;
  lazyllm::Step<decltype(lazy.sequence), decltype(lazy.pruner)> step;
  std::vector<lazyllm::LazyDecoderLayer<FusedBlock>> layers;
  for (const Layer& layer : model) layers.emplace_back(FusedBlock{&layer, &batch});
  Eigen::ArrayXX<Index> counts = Eigen::ArrayXX<Index>::Zero(layer_count, 6);
  MatrixXf outputs(width, decode_steps + 1);  // of the second request
  bool correct = true;
  for (Index i = 0; i <= decode_steps; ++i) {
    std::vector<decltype(step)::Entry> entries;
    std::vector<Index> tokens;
    for (Request* r : batch) {
      for (; std::ssize(r->pages) * page_size < std::ssize(r->tokens); pool.pop_back()) r->pages.push_back(pool.back());
      const auto first = r->tokens.begin() + r->sequence.length();
      entries.push_back({&r->sequence, &r->pruner, r->tokens.end() - first});
      tokens.insert(tokens.end(), first, r->tokens.end());
    }
    columns(step.begin(context, entries)) = embedding(Eigen::all, tokens);
    for (auto& layer : layers) layer.forward(context, step);
    const auto last = columns(step.end());
    for (Index s = 0; s < 2; ++s) (embedding.transpose() * last.col(s)).maxCoeff(&batch[s]->tokens.emplace_back());
    outputs.col(i) = last.col(1);
    correct = correct && last.allFinite();
    for (Index l = 0; l < layer_count; ++l) {
      const auto& [active, computed, revived, kept] = step.stats().layers[l];
      counts.row(l).segment<3>(i == 0 ? 0 : 3) += Eigen::Array<Index, 1, 3>(active, computed, revived);
    }
  }
  std::cout << "active, computed, revived in each layer: prompts, then all decode steps\n" << counts << "\n";

  Index held = 0;  // K/V are there for exactly depths()[t] layers, and no token was computed twice in a layer
  for (const Request* r : batch) {
    for (Index i = 0; i < r->sequence.length() * layer_count; ++i) {
      const Index t = i / layer_count, l = i % layer_count, holds = l < r->sequence.depths()[t];
      correct = correct && !std::isnan(layers[l].attention().key_pages(0, r->column(t))) == holds;
      held += holds;
    }
  }
  correct = correct && counts.col(1).sum() + counts.col(4).sum() == held && counts.col(5).sum() > 0;
  lazyllm::PlanBuilder plan;  // keeping everything is dense, bit for bit: a plain loop, all tokens at once
  plan.start(0, all.sequence.length());
  MatrixXf x = embedding(Eigen::all, std::span(all.tokens).first(all.sequence.length()));
  for (Index l = 0; l < layer_count; ++l) {
    FusedBlock{&model[l], &alone}.attend(context, plan.layer(l, layer_count), {x.data(), x.cols(), width});
  }
  correct = correct && outputs == x.rightCols(decode_steps + 1) && pool.size() == pool_pages - 20 - 10;
  truncate(lazy, 100);
  correct = correct && pool.size() == pool_pages - 7 - 10;
  for (Request* r : batch) truncate(*r, 0);
  correct = correct && pool.size() == pool_pages && parked->rows_in_use() == 0;
  std::cout << (correct ? "all checks hold\n" : "A CHECK FAILED\n");
  return correct ? 0 : 1;
}
