#pragma once
// A tiny server with paged K/V. Requests share a pool of pages, and one of rows for their pruned tokens. Prompts come
// in chunks beside the tokens of other requests; a request that fails does not stop the others. Its block is fused.
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iterator>
#include <lazyllm/lazyllm.hpp>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace paged {

using lazyllm::Index, lazyllm::LayerPlan, lazyllm::Position, lazyllm::cpu::as_matrix;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::RowVectorXf;
using Storage = lazyllm::cpu::PooledStorage<float>;
using Sequence = lazyllm::cpu::Sequence<float, lazyllm::cpu::PooledStorage>;
using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

constexpr Index layer_count = 6, hidden_size = 64, page_size = 16;
constexpr std::int32_t vocabulary = 200;
constexpr float scale = 0.125F;  // 1 / sqrt(hidden_size): one attention head, to be short

inline Matrix random(float size) { return Matrix::Random(hidden_size, hidden_size) * size; }
struct Weights {
  Matrix query = random(0.6F), key = random(0.4F), value = random(0.2F), output = random(0.2F);
  Matrix up = random(0.2F), down = random(0.2F);
};
inline const std::vector<Weights> model(layer_count);
inline const Matrix embedding = Matrix::Random(vocabulary, hidden_size),
                    position_embedding = Matrix::Random(512, hidden_size);

inline Row normalised(const Row& x) { return x.normalized() * std::sqrt(static_cast<float>(hidden_size)); }
inline Row logits(const Row& hidden) { return normalised(hidden) * embedding.transpose(); }

// [request]
struct Request {
  std::vector<std::int32_t> tokens;  // prompt and answer; the first sequence.length() of them have run
  Sequence sequence;
  std::vector<std::int32_t> pages = {};  // its page table, the same in every layer
  std::exception_ptr failure = {};

  std::vector<Index> slots(lazyllm::Positions positions) const {  // rows of a layer's K and V
    std::vector<Index> slots;
    for (const Index p : positions) slots.push_back(pages[p / page_size] * page_size + p % page_size);
    return slots;
  }
};
// [request-end]
using Batch = std::vector<Request*>;

struct Block {
  const Weights* weights;
  const Batch* batch;             // of the running step, in the order of its entries
  Matrix* query;                  // of all rows of the batch
  Matrix key_pages, value_pages;  // [pages * page_size x hidden_size]

  void attend(lazyllm::cpu::Context&, const LayerPlan& plan, lazyllm::RowsView<float> hidden) {
    query->resize(plan.rows(), hidden_size);
    for (Index s = 0; s < plan.sequences(); ++s) {
      const lazyllm::SequencePlan part = plan.sequence(s);
      const Request& request = *(*batch)[s];
      const std::vector<Index> slots = request.slots(part.keys);
      for (Index i = 0; i < std::ssize(part.positions); ++i) {  // positions ascend: K/V of the rows before are there
        const auto visible = std::span(slots).first(part.key_limits[i]);  // its own is the last
        auto h = as_matrix(hidden).row(part.first_row + i);
        const Row x = normalised(h) + position_embedding.row(part.positions[i]);
        query->row(part.first_row + i) = x * weights->query;
        key_pages.row(visible.back()) = x * weights->key;
        value_pages.row(visible.back()) = x * weights->value;
        h += probabilities(part.first_row + i, visible) * value_pages(visible, Eigen::all) * weights->output;
        h += (normalised(h) * weights->up).cwiseMax(0) * weights->down;
      }
    }
  }
  Row probabilities(Index row, std::span<const Index> visible) const {
    Row p = scale * query->row(row) * key_pages(visible, Eigen::all).transpose();
    p = (p.array() - p.maxCoeff()).exp();
    return p / p.sum();
  }
  lazyllm::QueryRows<float> queries(const LayerPlan&) const {
    return {query->data(), hidden_size, hidden_size, 1, hidden_size, scale};
  }
  lazyllm::PagedKeys<float> key_view(const LayerPlan&, Index s) const {
    return {key_pages.data(), (*batch)[s]->pages.data(), page_size, page_size * hidden_size, hidden_size, hidden_size,
            /*kv_heads=*/1};
  }
};

struct Engine {
  Engine(lazyllm::AnyPolicy policy, Index page_count) : pruner(std::move(policy)) {
    for (std::int32_t page = 0; page < page_count; ++page) free_pages.push_back(page);
    const Matrix pages(page_count * page_size, hidden_size);
    for (const Weights& weights : model) layers.emplace_back(Block{&weights, &batch, &query, pages, pages});
  }
  Engine(const Engine&) = delete;

  Request request(std::vector<std::int32_t> prompt) const {
    return {std::move(prompt), Sequence(layer_count, lazyllm::AuxCache(Storage(parked)))};
  }
  void take_pages(Request& request, Index tokens) {
    for (; std::ssize(request.pages) * page_size < tokens; free_pages.pop_back()) {
      request.pages.push_back(free_pages.back());
    }
  }
  void end(Request& request) {
    request.sequence.clear();
    free_pages.insert(free_pages.end(), request.pages.begin(), request.pages.end());
    request.pages.clear();
  }

  void run(const Batch& requests, Index budget);

  Batch batch;
  Matrix query;
  std::vector<lazyllm::LazyDecoderLayer<Block>> layers;
  Pruner pruner;
  std::vector<std::int32_t> free_pages;
  std::shared_ptr<Storage::Pool> parked = std::make_shared<Storage::Pool>(hidden_size);
  lazyllm::Step<Sequence, Pruner> step;
  lazyllm::cpu::Context context;
};

// [step]
/// Runs the tokens that have not run yet, of each request at most `budget`. Appends the next token where
/// the prompt is complete.
inline void Engine::run(const Batch& requests, Index budget) {
  batch.clear();
  std::ranges::copy_if(requests, std::back_inserter(batch), [](Request* request) { return !request->failure; });
  if (batch.empty()) return;
  std::vector<decltype(step)::Entry> entries;
  for (Request* request : batch) {
    const Index waiting = std::ssize(request->tokens) - request->sequence.length();
    const Index now = std::min(waiting, budget);  // 0 for a prompt whose last rows go on in this step
    take_pages(*request, request->sequence.length() + now);
    entries.push_back({&request->sequence, &pruner, now, /*more=*/now < waiting, /*outputs=*/1, budget});
  }
  try {
    auto rows = as_matrix(step.begin(context, entries));
    for (Index s = 0; s < std::ssize(batch); ++s) {  // rows for the tokens at plan().positions(), not for the new ones
      const lazyllm::SequencePlan part = step.plan().sequence(s);
      for (Index i = 0; i < std::ssize(part.positions); ++i) {
        rows.row(part.first_row + i) = embedding.row(batch[s]->tokens[part.positions[i]]);
      }
    }
    for (auto& layer : layers) layer.forward(context, step);
  } catch (...) {  // where each request has failed, the step has nothing to go on with
    if (std::ssize(step.failures()) < std::ssize(batch)) throw;
  }
  for (const lazyllm::StepFailure& failed : step.failures()) batch[failed.entry]->failure = failed.error;
  if (!step.running()) return;
  const auto output = step.end();
  for (Index s = 0; s < std::ssize(batch); ++s) {
    if (output.of(s).rows == 0) continue;  // failed, or more of its prompt is to come
    logits(as_matrix(output.of(s))).maxCoeff(&batch[s]->tokens.emplace_back());
  }
}
// [step-end]

}  // namespace paged
