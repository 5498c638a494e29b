#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <lazyllm/cuda.cuh>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/kernels/cuda/attention.hpp"
#include "examples/llama/kernels/cuda/download.hpp"
#include "examples/llama/kernels/cuda/linear.hpp"
#include "examples/llama/kernels/cuda/pointwise.hpp"
#include "examples/llama/kernels/cuda/rotary.hpp"
#include "examples/llama/library.hpp"
#include "support/cuda_memory.hpp"

/// \file
/// The kernels of the CUDA host against slow, obvious references: on a device, and in its emulation.
namespace llama::test {

using lazyllm::test::CudaMemory;
using lazyllm::test::DeviceArray;

template <class T>
std::vector<T> random_values(Index count, unsigned seed, float size = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-size, size);
  std::vector<T> made(static_cast<std::size_t>(count));
  for (T& value : made) value = static_cast<T>(values(random));
  return made;
}

template <class T>
double number(T value) {
  return static_cast<double>(static_cast<float>(value));
}

template <class T>
T not_a_number() {
  return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
}

/// Relative error of rounding to T, some times over.
template <class T>
constexpr double rounding = sizeof(T) == 4              ? 2e-6
                            : std::is_same_v<T, __half> ? 1e-3
                                                        : 8e-3;

/// All values within `allowed` of the reference's largest absolute value.
template <class T>
void check_close(const std::vector<T>& got, const std::vector<double>& expected, double allowed) {
  REQUIRE(got.size() == expected.size());
  double largest = 1e-3;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(number(got[i]) - expected[i]);
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  CHECK(worst <= allowed * largest);
}

inline std::vector<Position> range(Position first, Position last) {
  std::vector<Position> positions(static_cast<std::size_t>(last - first));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

/// About `percent` of the tokens; the last one always.
inline std::vector<Position> some_positions(Position tokens, unsigned percent, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<Position> kept;
  for (Position token = 0; token < tokens; ++token) {
    if (random() % 100 < percent || token + 1 == tokens) kept.push_back(token);
  }
  return kept;
}

template <class T>
void norm_cases() {
  auto context = CudaMemory::make_context();
  for (const auto& shape : {std::array<Index, 3>{1, 1, 1}, {3, 7, 9}, {2, 64, 64}, {3, 4096, 4096}, {2, 1000, 1003}}) {
    const Index rows = shape[0], width = shape[1], stride = shape[2];
    CAPTURE(width);
    const auto values = random_values<T>(rows * stride, 1, 3);
    const auto weight = random_values<float>(width, 2);
    std::vector<double> expected;
    for (Index i = 0; i < rows; ++i) {
      double squares = 0;
      const T* const row = values.data() + i * stride;
      for (Index j = 0; j < width; ++j) squares += number(row[j]) * number(row[j]);
      for (Index j = 0; j < width; ++j) {
        expected.push_back(number(row[j]) * number(weight[static_cast<std::size_t>(j)]) /
                           std::sqrt(squares / static_cast<double>(width) + 1e-5));
      }
    }
    DeviceArray<T> x(context, values);
    DeviceArray<float> device_weight(context, weight);
    DeviceArray<T> out(context, std::vector<T>(static_cast<std::size_t>(rows * width), not_a_number<T>()));
    const RowsView<T> in(x.span().data(), rows, width, stride);
    rms_norm<T>(context, in, device_weight.span(), 1e-5F, {out.span().data(), rows, width});
    check_close(out.download(), expected, rounding<T>);
    rms_norm<T>(context, in, device_weight.span(), 1e-5F, in);
    const auto in_place = x.download();
    std::vector<T> packed;
    for (Index i = 0; i < rows; ++i)
      packed.insert(packed.end(), &in_place[static_cast<std::size_t>(i * stride)],
                    &in_place[static_cast<std::size_t>(i * stride)] + width);
    check_close(packed, expected, rounding<T>);
    CHECK_THROWS_AS(rms_norm<T>(context, in, device_weight.span().first(0), 1e-5F, in), std::invalid_argument);
  }
}

/// Rows with three elements behind their heads, which stay.
template <class T>
void head_norm_cases() {
  auto context = CudaMemory::make_context();
  for (const auto& shape : {std::array<Index, 3>{1, 1, 1}, {3, 2, 7}, {70, 9, 64}, {4, 16, 128}, {2, 3, 1000}}) {
    const Index rows = shape[0], heads = shape[1], head_dim = shape[2];
    CAPTURE(head_dim);
    const Index width = heads * head_dim;
    const Index stride = width + 3;
    const auto values = random_values<T>(rows * stride, 1, 3);
    const auto weight = random_values<float>(head_dim, 2);
    std::vector<double> expected;
    for (Index i = 0; i < rows; ++i) {
      const T* const row = values.data() + i * stride;
      for (Index j = 0; j < stride; ++j) {
        double squares = 0;
        const Index first = j / head_dim * head_dim;
        for (Index k = first; k < std::min(first + head_dim, width); ++k) squares += number(row[k]) * number(row[k]);
        const double factor = number(weight[static_cast<std::size_t>(j % head_dim)]) /
                              std::sqrt(squares / static_cast<double>(head_dim) + 1e-5);
        expected.push_back(number(row[j]) * (j < width ? factor : 1));
      }
    }
    DeviceArray<T> x(context, values);
    DeviceArray<float> device_weight(context, weight);
    const RowsView<T> in(x.span().data(), rows, width, stride);
    rms_norm_heads<T>(context, device_weight.span(), 1e-5F, in);
    check_close(x.download(), expected, rounding<T>);
    CHECK_THROWS_AS(rms_norm_heads<T>(context, device_weight.span().first(0), 1e-5F, in), std::invalid_argument);
  }
}

template <class T>
void gate_cases() {
  auto context = CudaMemory::make_context();
  for (const auto& [rows, width] : {std::pair<Index, Index>{1, 1}, {3, 7}, {2, 2816}, {5, 512}}) {
    auto values = random_values<T>(rows * 2 * width, 1, 20);
    values.front() = static_cast<T>(-1e4F);  // its exponential overflows
    std::vector<double> expected;
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < width; ++j) {
        const double gate = number(values[static_cast<std::size_t>(i * 2 * width + j)]);
        expected.push_back(gate / (1 + std::exp(-gate)) *
                           number(values[static_cast<std::size_t>((2 * i + 1) * width + j)]));
      }
    }
    DeviceArray<T> gate_up(context, values);
    DeviceArray<T> out(context, std::vector<T>(static_cast<std::size_t>(rows * width), not_a_number<T>()));
    const RowsView<T> result(out.span().data(), rows, width);
    swiglu<T>(context, {gate_up.data(), rows, 2 * width}, result);
    check_close(out.download(), expected, rounding<T>);
    CHECK_THROWS_AS(swiglu<T>(context, {gate_up.data(), rows, width}, result), std::invalid_argument);
  }
}

template <class T>
void embed_cases() {
  auto context = CudaMemory::make_context();
  for (const Index width : {5, 64}) {
    const auto values = random_values<T>(11 * width, 1);
    DeviceArray<T> table(context, values);
    DeviceArray<T> out(context, std::vector<T>(static_cast<std::size_t>(4 * width), not_a_number<T>()));
    const RowsView<const T> rows(table.data(), 11, width);
    const RowsView<T> result(out.span().data(), 4, width);
    const std::vector<std::int32_t> tokens{3, 0, 10, 3};
    embed(context, rows, tokens, result);
    std::vector<double> expected;
    for (const std::int32_t token : tokens) {
      for (Index i = 0; i < width; ++i) expected.push_back(number(values[static_cast<std::size_t>(token * width + i)]));
    }
    check_close(out.download(), expected, 0);
    CHECK_THROWS_WITH_AS(embed(context, rows, std::vector<std::int32_t>{3, 11, 0, 0}, result),
                         "embed: token 11 is out of range 0 to 10", std::invalid_argument);
    CHECK_THROWS_AS(embed(context, rows, std::vector<std::int32_t>{-1, 0, 0, 0}, result), std::invalid_argument);
  }
}

inline void log_probability_cases() {
  auto context = CudaMemory::make_context();
  for (const Index vocab : {1, 97, 5000}) {
    auto values = random_values<float>(7 * vocab, 1, 20);
    values.front() = 1000;  // the exponentials alone would overflow
    std::vector<std::int32_t> tokens;
    std::vector<double> expected;
    for (Index i = 0; i < 7; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * 1237 % vocab));
      const auto row = std::span(values).subspan(static_cast<std::size_t>(i * vocab), static_cast<std::size_t>(vocab));
      const float highest = *std::ranges::max_element(row);
      double sum = 0;
      for (const float value : row) sum += std::exp(static_cast<double>(value) - highest);
      expected.push_back(static_cast<double>(row[static_cast<std::size_t>(tokens.back())]) - highest - std::log(sum));
    }
    DeviceArray<float> logits(context, values);
    std::vector<float> found(tokens.size());
    log_probabilities(context, {logits.data(), 7, vocab}, tokens, found);
    check_close(found, expected, 1e-5);
    tokens.back() = static_cast<std::int32_t>(vocab);
    CHECK_THROWS_AS(log_probabilities(context, {logits.data(), 7, vocab}, tokens, found), std::invalid_argument);
    CHECK_THROWS_AS(log_probabilities(context, {logits.data(), 6, vocab}, tokens, found), std::invalid_argument);
  }
}

/// K and V of one sequence, in two layers of a cache on the device. NaN until written.
template <class T>
class TestCache {
 public:
  /// Contiguous, heads before tokens, or in pages of `page_size` tokens in random order, tokens before heads.
  TestCache(lazyllm::cuda::Context& context, const AttentionShape& shape, Index capacity, Index page_size,
            unsigned seed)
      : shape_(shape),
        page_size_(page_size),
        pages_(page_size == 0 ? 1 : (capacity + page_size - 1) / page_size),
        table_(static_cast<std::size_t>(pages_)),
        layer_(page_size == 0 ? shape.kv_heads * capacity * shape.head_dim
                              : pages_ * page_size * shape.kv_heads * shape.head_dim),
        capacity_(capacity),
        keys_(static_cast<std::size_t>(2 * layer_), not_a_number<T>()),
        values_(keys_) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(seed));
    device_.emplace_back(context, keys_);
    device_.emplace_back(context, values_);
    device_table_.emplace_back(context, table_);
  }

  KvView<T> view() {
    KvView<T> view{.keys = device_[0].span().data(),
                   .values = device_[1].span().data(),
                   .layer_stride = layer_,
                   .head_stride = capacity_ * shape_.head_dim,
                   .position_stride = shape_.head_dim,
                   .capacity = capacity_};
    if (page_size_ > 0) {
      view.head_stride = shape_.head_dim;
      view.position_stride = shape_.kv_heads * shape_.head_dim;
      view.page_table = device_table_[0].data();
      view.page_size = page_size_;
      view.page_stride = page_size_ * view.position_stride;
    }
    return view;
  }

  std::size_t at(Index layer, Position token, Index head, Index element) const {
    const Index width = shape_.head_dim;
    const Index in_layer =
        page_size_ == 0 ? (head * capacity_ + token) * width
                        : ((table_[static_cast<std::size_t>(token / page_size_)] * page_size_ + token % page_size_) *
                               shape_.kv_heads +
                           head) *
                              width;
    return static_cast<std::size_t>(layer * layer_ + in_layer + element);
  }

  std::vector<T>& keys() { return keys_; }
  std::vector<T>& values() { return values_; }

  void upload(lazyllm::cuda::Context& context) {
    context.upload(std::span<const T>(keys_), device_[0].span().data());
    context.upload(std::span<const T>(values_), device_[1].span().data());
  }
  void download() {
    keys_ = device_[0].download();
    values_ = device_[1].download();
  }

 private:
  AttentionShape shape_;
  Index page_size_;
  Index pages_;
  std::vector<std::int32_t> table_;
  Index layer_;
  Index capacity_;
  std::vector<T> keys_, values_;
  std::vector<DeviceArray<T>> device_;
  std::vector<DeviceArray<std::int32_t>> device_table_;
};

/// One sequence of a step: its active tokens, and those of them that are rows.
struct TestSequence {
  std::vector<Position> keys;
  std::vector<Position> rows;

  Index tokens() const { return keys.back() + 1; }
};

inline lazyllm::detail::PlanBuilder plan_of(const std::vector<TestSequence>& sequences) {
  lazyllm::detail::PlanBuilder plan;
  for (const TestSequence& sequence : sequences) {
    for (const Position row : sequence.rows) plan.append_row(row);
    plan.append_keys(sequence.keys);
    plan.finish_sequence(sequence.tokens(), 1);
  }
  return plan;
}

template <class T>
std::vector<TestCache<T>> caches_of(lazyllm::cuda::Context& context, const AttentionShape& shape,
                                    const std::vector<TestSequence>& sequences, Index page_size) {
  std::vector<TestCache<T>> caches;
  for (const TestSequence& sequence : sequences) {
    caches.emplace_back(context, shape, sequence.tokens(), page_size, static_cast<unsigned>(caches.size()));
  }
  return caches;
}

template <class T>
std::vector<KvView<T>> views_of(std::vector<TestCache<T>>& caches) {
  std::vector<KvView<T>> views;
  for (auto& cache : caches) views.push_back(cache.view());
  return views;
}

template <class T>
void rotary_cases() {
  auto context = CudaMemory::make_context();
  const std::vector<TestSequence> sequences{{some_positions(30, 50), {}}, {range(0, 9), {0, 1, 5, 8}}};
  for (const AttentionShape shape : {AttentionShape{4, 2, 32}, {3, 3, 6}, {2, 1, 128}}) {
    for (const bool interleaved : {false, true}) {
      for (const Index page_size : {0, 4}) {
        CAPTURE(shape.head_dim);
        CAPTURE(interleaved);
        CAPTURE(page_size);
        auto batch = sequences;
        batch[0].rows = batch[0].keys;
        auto caches = caches_of<T>(context, shape, batch, page_size);
        auto lists = plan_of(batch);
        const lazyllm::LayerPlan layer_plan = lists.layer(0, 2);
        DevicePlan<T> plan(shape);
        plan.update(context, layer_plan, views_of(caches));
        const Index half = shape.head_dim / 2;
        const auto angles = random_values<float>(30 * 2 * half, 3);  // any numbers will do for cosines and sines
        DeviceArray<float> device_angles(context, angles);
        const RotaryView table{device_angles.data(), 30, shape.head_dim, interleaved};
        const auto turned = [&](const std::vector<T>& from, std::size_t head_at, Position position, Index i) {
          const Index pair = interleaved ? i / 2 : i % half;
          const auto a = head_at + static_cast<std::size_t>(interleaved ? 2 * pair : pair);
          const auto b = a + static_cast<std::size_t>(interleaved ? 1 : half);
          const double cosine = number(angles[static_cast<std::size_t>(position * 2 * half + pair)]);
          const double sine = number(angles[static_cast<std::size_t>((position * 2 + 1) * half + pair)]);
          return a == head_at + static_cast<std::size_t>(i) ? number(from[a]) * cosine - number(from[b]) * sine
                                                            : number(from[a]) * sine + number(from[b]) * cosine;
        };

        const Index width = shape.heads * shape.head_dim;
        const auto queries = random_values<T>(layer_plan.rows() * width, 4);
        DeviceArray<T> device_queries(context, queries);
        rotate(context, plan, table, RowsView<T>(device_queries.span().data(), layer_plan.rows(), width));
        std::vector<double> expected;
        for (Index i = 0; i < std::ssize(queries); ++i) {
          const Index element = i % shape.head_dim;
          expected.push_back(turned(queries, static_cast<std::size_t>(i - element),
                                    layer_plan.positions()[static_cast<std::size_t>(i / width)], element));
        }
        check_close(device_queries.download(), expected, rounding<T>);

        const Index kv_width = shape.kv_heads * shape.head_dim;
        const auto key_values = random_values<T>(layer_plan.rows() * 2 * kv_width, 5);
        DeviceArray<T> device_key_values(context, key_values);
        write_key_values(context, plan, 1, table,
                         RowsView<const T>(device_key_values.data(), layer_plan.rows(), 2 * kv_width));
        for (Index s = 0; s < layer_plan.sequences(); ++s) {
          auto& cache = caches[static_cast<std::size_t>(s)];
          cache.download();
          const lazyllm::SequencePlan part = layer_plan.sequence(s);
          std::vector<T> got;
          std::vector<double> wanted;
          for (std::size_t row = 0; row < part.positions.size(); ++row) {
            const Position position = part.positions[row];
            for (Index i = 0; i < kv_width; ++i) {
              const auto at = static_cast<std::size_t>((part.first_row + static_cast<Index>(row)) * 2 * kv_width);
              const Index element = i % shape.head_dim;
              const auto place = cache.at(1, position, i / shape.head_dim, element);
              got.push_back(cache.keys()[place]);
              wanted.push_back(turned(key_values, at + static_cast<std::size_t>(i - element), position, element));
              got.push_back(cache.values()[place]);
              wanted.push_back(number(key_values[at + static_cast<std::size_t>(kv_width + i)]));
            }
          }
          check_close(got, wanted, rounding<T>);
          const auto written = std::ranges::count_if(cache.keys(), [](T value) { return !std::isnan(number(value)); });
          CHECK(written == std::ssize(part.positions) * kv_width);
        }
        const RotaryView too_short{device_angles.data(), 29, shape.head_dim, interleaved};
        CHECK_THROWS_WITH_AS(
            rotate(context, plan, too_short, RowsView<T>(device_queries.span().data(), layer_plan.rows(), width)),
            "rotate: position 29 is out of range 0 to 28", std::invalid_argument);
        CHECK_THROWS_AS(write_key_values(context, plan, 1, table,
                                         RowsView<const T>(device_key_values.data(), layer_plan.rows(), kv_width)),
                        std::invalid_argument);
      }
    }
  }
}

/// softmax(scale Q K^T) V of the query rows, the obvious way, in double.
template <class T>
std::vector<double> reference_attention(const lazyllm::LayerPlan& plan, const AttentionShape& shape,
                                        const std::vector<T>& queries, std::vector<TestCache<T>>& caches) {
  std::vector<double> out;
  const Index group = shape.heads / shape.kv_heads;
  std::size_t query_at = 0;
  for (Index s = 0; s < plan.sequences(); ++s) {
    const lazyllm::SequencePlan part = plan.sequence(s);
    auto& cache = caches[static_cast<std::size_t>(s)];
    for (std::size_t row = plan.outputs_only() ? part.positions.size() - 1 : 0; row < part.positions.size(); ++row) {
      for (Index head = 0; head < shape.heads; ++head) {
        const Positions visible = part.keys.first(static_cast<std::size_t>(part.key_limits[row]));
        std::vector<double> weights;
        for (const Position token : visible) {
          const std::size_t key = cache.at(1, token, head / group, 0);
          double score = 0;
          for (std::size_t i = 0; i < static_cast<std::size_t>(shape.head_dim); ++i) {
            score += number(queries[query_at + i]) * number(cache.keys()[key + i]);
          }
          weights.push_back(score * static_cast<double>(shape.scale));
        }
        const double largest = *std::max_element(weights.begin(), weights.end());
        for (double& weight : weights) weight = std::exp(weight - largest);
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (Index i = 0; i < shape.head_dim; ++i) {
          double sum = 0;
          for (std::size_t k = 0; k < visible.size(); ++k) {
            sum += weights[k] / total * number(cache.values()[cache.at(1, visible[k], head / group, i)]);
          }
          out.push_back(sum);
        }
        query_at += static_cast<std::size_t>(shape.head_dim);
      }
    }
  }
  return out;
}

struct AttentionCase {
  AttentionShape shape;
  std::vector<TestSequence> sequences;
  Index page_size = 0;
  bool outputs_only = false;
  float size = 2;  // of Q and K
  bool aligned = true;
};

template <class T>
std::vector<T> check_attention(const AttentionCase& test) {
  CAPTURE(test.shape.heads);
  CAPTURE(test.shape.kv_heads);
  CAPTURE(test.shape.head_dim);
  CAPTURE(test.page_size);
  CAPTURE(test.sequences[0].keys.size());
  CAPTURE(test.sequences[0].rows.size());
  auto context = CudaMemory::make_context();
  AttentionShape shape = test.shape;
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  auto caches = caches_of<T>(context, shape, test.sequences, test.page_size);
  unsigned seed = 10;
  for (std::size_t s = 0; s < caches.size(); ++s) {
    const auto& keys = test.sequences[s].keys;
    const auto count = std::ssize(keys) * shape.kv_heads * shape.head_dim;
    const auto key_values = random_values<T>(count, ++seed, test.size);
    const auto value_values = random_values<T>(count, ++seed);
    std::size_t next = 0;
    for (const Position token : keys) {
      for (Index head = 0; head < shape.kv_heads; ++head) {
        for (Index i = 0; i < shape.head_dim; ++i, ++next) {
          caches[s].keys()[caches[s].at(1, token, head, i)] = key_values[next];
          caches[s].values()[caches[s].at(1, token, head, i)] = value_values[next];
        }
      }
    }
    caches[s].upload(context);
  }
  auto lists = plan_of(test.sequences);
  const lazyllm::LayerPlan layer_plan = test.outputs_only ? lists.layer(1, 2) : lists.layer(1, 3);
  DevicePlan<T> plan(shape);
  plan.update(context, layer_plan, views_of(caches));
  const Index rows = plan.query_rows();
  CHECK(rows == (test.outputs_only ? layer_plan.sequences() : layer_plan.rows()));
  const Index width = shape.heads * shape.head_dim;
  const Index stride = test.aligned ? width + 8 : width + 1;
  const auto queries = random_values<T>(rows * width, 3, test.size);
  std::vector<T> strided(static_cast<std::size_t>(rows * stride), not_a_number<T>());
  for (Index row = 0; row < rows; ++row) {
    std::copy_n(queries.begin() + row * width, width, strided.begin() + row * stride);
  }
  DeviceArray<T> device_queries(context, strided);
  DeviceArray<T> out(context, std::vector<T>(queries.size(), not_a_number<T>()));
  attention<T>(context, plan, 1, {device_queries.data(), rows, width, stride}, {out.span().data(), rows, width});
  const auto got = out.download();
  // The weights are rounded to T, too; those of large scores have fewer places behind the point.
  const double allowed = sizeof(T) == 4 ? (test.size > 10 ? 1e-3 : 2e-5) : rounding<T>;
  check_close(got, reference_attention(layer_plan, shape, queries, caches), allowed);
  return got;
}

template <class T>
void prefill_cases() {
  // Many queries: causal, with tiles that are not full, all head widths, grouped heads.
  for (const Position tokens : {65, 128, 200}) {
    check_attention<T>({{1, 1, 64}, {{range(0, tokens), range(0, tokens)}}});
  }
  for (const Index width : {32, 96, 128}) check_attention<T>({{2, 1, width}, {{range(0, 75), range(0, 75)}}});
  check_attention<T>({{3, 1, 32}, {{range(0, 50), range(0, 50)}}});
  check_attention<T>({{6, 2, 32}, {{range(0, 150), range(110, 150)}}});  // suffix
  // Ragged keys and rows, contiguous and in pages.
  for (const Index page_size : {0, 16}) {
    auto keys = some_positions(300, 60);
    std::vector<Position> rows;
    for (std::size_t i = 3; i < keys.size(); i += 2) rows.push_back(keys[i]);
    check_attention<T>({{2, 2, 32}, {{keys, rows}}, page_size});
    check_attention<T>({{2, 1, 64}, {{keys, keys}}, page_size});
  }
}

template <class T>
void decode_cases() {
  for (const Index width : {32, 64, 96, 128}) {
    for (const Index group : {1, 4}) {
      check_attention<T>({{2 * group, 2, width}, {{range(0, 130), {129}}}});
    }
  }
  for (const Index page_size : {0, 32}) {
    const auto keys = some_positions(200, 70);
    for (const Index rows : {2, 5, 8}) {
      check_attention<T>({{6, 2, 64}, {{keys, {keys.end() - rows, keys.end()}}}, page_size});
    }
    // Rows anywhere: each sees another number of keys.
    check_attention<T>(
        {{2, 2, 32}, {{keys, {keys[0], keys[1], keys[40], keys[63], keys[64], keys.back()}}}, page_size});
  }
  check_attention<T>({{1, 1, 64}, {{{0}, {0}}}});
}

template <class T>
void split_cases() {
  // Parts of the keys; the first rows see nothing of the last ones.
  for (const Position tokens : {512, 1100}) {
    check_attention<T>({{2, 1, 64}, {{range(0, tokens), {tokens - 1}}}});
    check_attention<T>({{1, 1, 32}, {{range(0, tokens), {5, 255, 300, tokens - 1}}}, 16});
  }
  const auto keys = some_positions(1500, 60);
  check_attention<T>({{2, 2, 32}, {{keys, {keys[100], keys[700], keys.back()}}}});
  check_attention<T>({{2, 2, 32}, {{keys, {keys.end() - 70, keys.end()}}}});  // many queries, cut as well
}

template <class T>
void batch_cases() {
  // Few and many queries, listed keys and first positions, cut and whole sequences in one launch.
  const auto keys = some_positions(600, 90);
  const std::vector<TestSequence> batch{{range(0, 90), range(0, 90)},
                                        {keys, {keys.back()}},
                                        {range(0, 40), {0, 39}},
                                        {some_positions(150, 60, 2), some_positions(150, 60, 2)}};
  for (const Index page_size : {0, 8}) {
    for (const bool outputs_only : {false, true}) {
      const auto together = check_attention<T>({{2, 1, 32}, batch, page_size, outputs_only});
      CHECK(!together.empty());
    }
  }
}

template <class T>
void extreme_cases() {
  for (const float size : {30.0F, 1000.0F}) {
    check_attention<T>({{2, 1, 32}, {{range(0, 70), range(0, 70)}}, 0, false, size});
    check_attention<T>({{2, 1, 32}, {{range(0, 530), {529}}}, 0, false, size});
  }
}

template <class T>
void plain_cases() {
  // Head widths and strides that tensor cores do not take.
  for (const Index width : {2, 10, 80, 256}) {
    check_attention<T>({{4, 2, width}, {{range(0, 20), range(0, 20)}}});
    check_attention<T>({{4, 2, width}, {{range(0, 600), {7, 599}}}, 4});
  }
  check_attention<T>({{2, 1, 64}, {{range(0, 20), range(0, 20)}}, 0, false, 2, false});
}

/// The blocks of the longest tiles start first, over all sequences.
template <class T>
void tile_order_cases() {
  auto context = CudaMemory::make_context();
  const AttentionShape shape{2, 1, 8};
  const std::vector<TestSequence> two{{range(0, 300), range(0, 300)}, {range(0, 500), range(0, 500)}};
  auto caches = caches_of<T>(context, shape, two, 0);
  auto lists = plan_of(two);
  DevicePlan<T> plan(shape);
  plan.update(context, lists.layer(0, 2), views_of(caches));
  const auto* const tiles = download(context, plan.many().tiles, plan.many().tile_count);
  std::vector<std::int32_t> keys, sequences;
  for (Index i = 0; i < plan.many().tile_count; ++i) {
    keys.push_back(tiles[i].last_key - tiles[i].first_key);
    sequences.push_back(tiles[i].sequence);
  }
  CHECK(std::ranges::is_sorted(keys, std::greater<>()));
  CHECK_FALSE(std::ranges::is_sorted(sequences));
  CHECK_FALSE(std::ranges::is_sorted(sequences, std::greater<>()));
}

/// Which plans are of nothing but whole prompts, in one piece.
template <class T>
void prompt_cases() {
  auto context = CudaMemory::make_context();
  const AttentionShape shape{2, 1, 8};
  const auto prompts = [&](const std::vector<TestSequence>& sequences, Index layer, Index page_size) {
    auto caches = caches_of<T>(context, shape, sequences, page_size);
    auto lists = plan_of(sequences);
    DevicePlan<T> plan(shape);
    plan.update(context, lists.layer(layer, 2), views_of(caches));
    std::vector<Index> places;
    for (const auto& prompt : plan.prompts()) places.insert(places.end(), {prompt.first_row, prompt.rows});
    return places;
  };
  const TestSequence whole{range(0, 30), range(0, 30)}, longer{range(0, 50), range(0, 50)};
  const TestSequence suffix{range(0, 30), range(20, 30)}, pruned{{1, 4, 5}, {1, 4, 5}};
  CHECK(prompts({whole, longer}, 0, 0) == std::vector<Index>{0, 30, 30, 50});
  CHECK(prompts({whole, longer}, 1, 0).empty());  // the last layer has the queries of the output rows only
  CHECK(prompts({whole, longer}, 0, 16).empty());
  CHECK(prompts({whole, suffix}, 0, 0).empty());
  CHECK(prompts({pruned, longer}, 0, 0).empty());
}

/// The tensor-core kernel numbers the chunks of a layer's keys by 32 bits.
template <class T>
void far_key_cases() {
  auto context = CudaMemory::make_context();
  const AttentionShape shape{2, 1, 8};
  const std::vector<TestSequence> one{{range(0, 3), {2}}};
  auto caches = caches_of<T>(context, shape, one, 0);
  auto lists = plan_of(one);
  const auto numbered = [&](Index capacity, Index position_stride) {
    auto views = views_of(caches);
    views[0].capacity = capacity;
    views[0].position_stride = position_stride;
    DevicePlan<T> plan(shape);
    plan.update(context, lists.layer(0, 2), views);
    return plan.keys_numbered();
  };
  CHECK(numbered(Index{1} << 15, Index{1} << 19));
  CHECK_FALSE(numbered(Index{1} << 16, Index{1} << 19));
}

template <class T>
void error_cases() {
  auto context = CudaMemory::make_context();
  CHECK_THROWS_AS(DevicePlan<T>({4, 3, 32}), std::invalid_argument);
  CHECK_THROWS_AS(DevicePlan<T>({4, 2, 7}), std::invalid_argument);
  const AttentionShape shape{2, 1, 512};
  const std::vector<TestSequence> one{{range(0, 3), {2}}};
  auto caches = caches_of<T>(context, shape, one, 0);
  auto lists = plan_of(one);
  DevicePlan<T> plan(shape);
  auto views = views_of(caches);
  CHECK_THROWS_AS(plan.update(context, lists.layer(0, 2), {}), std::invalid_argument);
  views[0].capacity = 2;
  CHECK_THROWS_WITH_AS(plan.update(context, lists.layer(0, 2), views),
                       "DevicePlan: sequence 0 has 3 tokens, out of range 0 to 2, the capacity of its cache",
                       std::invalid_argument);
  views[0].capacity = 3;
  const std::int32_t table = 0;
  views[0].page_table = &table;
  views[0].page_size = 3;
  CHECK_THROWS_WITH_AS(plan.update(context, lists.layer(0, 2), views),
                       "DevicePlan: page size 3 of sequence 0 is not a power of two", std::invalid_argument);
  views[0].page_table = nullptr;
  plan.update(context, lists.layer(0, 2), views);
  DeviceArray<T> queries(context, std::vector<T>(2048));
  const RowsView<const T> rows(queries.data(), 1, 1024);
  const RowsView<T> out(queries.span().data() + 1024, 1, 1024);
  CHECK_THROWS_WITH_AS(attention<T>(context, plan, 0, rows, out), "attention: head_dim 512 is out of range 2 to 256",
                       std::invalid_argument);
  CHECK_THROWS_AS(attention<T>(context, plan, 0, {queries.data(), 2, 1024}, out), std::invalid_argument);
}

/// Relative error of a product: sums are in float, and only results of T are rounded to it.
template <class T, class Y>
constexpr double product_rounding = sizeof(T) == 2 && sizeof(Y) == 4 ? 1e-5 : rounding<Y>;

template <class T, class Y>
void product_cases() {
  auto context = CudaMemory::make_context();
  Gemm gemm;
  for (const auto& [rows, in, out] : {std::array<Index, 3>{1, 64, 96}, {17, 128, 40}, {70, 72, 8}}) {
    for (const bool biased : {false, true}) {
      const auto x = random_values<T>(rows * in, 1);
      const auto weights = random_values<T>(out * in, 2);
      const auto bias = random_values<T>(out, 3);
      const auto start = random_values<Y>(rows * out, 4);
      DeviceArray<T> device_x(context, x);
      DeviceArray<T> device_weights(context, weights);
      DeviceArray<T> device_bias(context, bias);
      const LinearView<T> linear{device_weights.data(), biased ? device_bias.data() : nullptr, in, out};
      DeviceArray<Y> y(context, start);
      const RowsView<Y> result(y.span().data(), rows, out);
      const RowsView<const T> input(device_x.data(), rows, in);
      if (biased && !std::is_same_v<T, Y>) {
        CHECK_THROWS_AS(gemm.apply(context, linear, input, result), std::invalid_argument);
        continue;
      }
      std::vector<double> expected;
      std::vector<double> added;
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < out; ++j) {
          double sum = biased ? number(bias[static_cast<std::size_t>(j)]) : 0;
          for (Index k = 0; k < in; ++k) {
            sum +=
                number(x[static_cast<std::size_t>(i * in + k)]) * number(weights[static_cast<std::size_t>(j * in + k)]);
          }
          expected.push_back(sum);
          added.push_back(sum + number(start[expected.size() - 1]));
        }
      }
      if constexpr (std::is_same_v<T, Y>) {
        gemm.accumulate(context, linear, input, result);
        check_close(y.download(), added, product_rounding<T, Y>);
      }
      gemm.apply(context, linear, input, result);
      check_close(y.download(), expected, product_rounding<T, Y>);
      CHECK_THROWS_AS(gemm.apply(context, linear, RowsView<const T>(device_x.data(), rows, in - 1), result),
                      std::invalid_argument);
    }
  }
}

TEST_CASE("cuda: norm") {
  norm_cases<float>();
  norm_cases<__half>();
  norm_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: norm of each head") {
  head_norm_cases<float>();
  head_norm_cases<__half>();
  head_norm_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: gated unit") {
  gate_cases<float>();
  gate_cases<__half>();
  gate_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: embeddings") {
  embed_cases<float>();
  embed_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: log probabilities of tokens") { log_probability_cases(); }
TEST_CASE("cuda: rotation of queries and of keys on their way to the cache") {
  rotary_cases<float>();
  rotary_cases<__half>();
  rotary_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: attention of many queries, float") {
  const auto keys = some_positions(100, 80);
  check_attention<float>({{1, 1, 32}, {{range(0, 75), range(0, 75)}}});
  check_attention<float>({{2, 1, 32}, {{keys, {keys.begin() + 30, keys.end()}}}, 16});
}
TEST_CASE("cuda: attention of many queries, half") { prefill_cases<__half>(); }
TEST_CASE("cuda: attention of many queries, bfloat16") { prefill_cases<__nv_bfloat16>(); }
TEST_CASE("cuda: attention of few queries, float") { check_attention<float>({{4, 2, 64}, {{range(0, 130), {129}}}}); }
TEST_CASE("cuda: attention of few queries, half") { decode_cases<__half>(); }
TEST_CASE("cuda: attention of few queries, bfloat16") { decode_cases<__nv_bfloat16>(); }
TEST_CASE("cuda: attention over parts of the keys") {
  check_attention<float>({{1, 1, 32}, {{range(0, 600), {5, 255, 300, 599}}}, 16});
  split_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: attention of a ragged batch") {
  batch_cases<__half>();
  batch_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: attention with large scores") {
  extreme_cases<float>();
  extreme_cases<__half>();
  extreme_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: attention without tensor cores") {
  plain_cases<float>();
  plain_cases<__nv_bfloat16>();
}
TEST_CASE("cuda: the blocks with most keys start first") { tile_order_cases<__nv_bfloat16>(); }
TEST_CASE("cuda: plans of whole prompts") { prompt_cases<__half>(); }
TEST_CASE("cuda: keys too far apart for the tensor cores' kernel") { far_key_cases<__nv_bfloat16>(); }
TEST_CASE("cuda: what attention rejects") { error_cases<__nv_bfloat16>(); }
TEST_CASE("cuda: matrix products") {
  product_cases<float, float>();
  product_cases<__half, __half>();
  product_cases<__half, float>();
  product_cases<__nv_bfloat16, __nv_bfloat16>();
  product_cases<__nv_bfloat16, float>();
}

}  // namespace llama::test
