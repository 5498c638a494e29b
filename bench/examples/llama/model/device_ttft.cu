#include "bench/examples/llama/model/device_ttft.hpp"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "bench/cuda/stream.hpp"
#include "bench/examples/llama/model/device_floor.hpp"
#include "examples/llama/model/cuda/device.cuh"
#include "examples/llama/program/timing.hpp"

namespace llama {
namespace {

using T = __nv_bfloat16;
using DeviceModel = Model<T, CudaDevice>;
using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

/// Random tokens for each sequence.
std::vector<std::vector<TokenId>> random_prompts(const ModelConfig& config, const DeviceCase& what) {
  std::mt19937 random(2);
  std::vector<std::vector<TokenId>> prompts(static_cast<std::size_t>(what.batch));
  for (auto& prompt : prompts) {
    prompt.resize(static_cast<std::size_t>(what.prompt));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random() % static_cast<unsigned>(config.vocab));
  }
  return prompts;
}

/// Tokens [first, first + count) of each prompt.
std::vector<Tokens> parts(const std::vector<std::vector<TokenId>>& prompts, Index first, Index count) {
  std::vector<Tokens> tokens;
  for (const auto& prompt : prompts) {
    tokens.push_back(Tokens(prompt).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  }
  return tokens;
}

/// Where a layer's blocks and the layer begin and end on the stream: between and behind the blocks is the library's
/// work.
struct LayerMarks {
  lazyllm::bench::StreamMark attended, feeding, fed, advanced;
};

struct MarkedAttention {
  AttentionBlock<T, CudaDevice> block;
  LayerMarks* marks;

  void attend(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan, RowsView<T> hidden) {
    block.attend(context, plan, hidden);
    marks->attended.set(context.stream());
  }
  auto queries(const lazyllm::LayerPlan& plan) const { return block.queries(plan); }
  auto key_view(const lazyllm::LayerPlan& plan, Index s) const { return block.key_view(plan, s); }
};

struct MarkedFeedForward {
  FeedForwardBlock<T, CudaDevice> block;
  LayerMarks* marks;

  void feed_forward(lazyllm::cuda::Context& context, RowsView<T> hidden) {
    marks->feeding.set(context.stream());
    block.feed_forward(context, hidden);
    marks->fed.set(context.stream());
  }
};

/// Part of a lazy prefill's layers that scores, selection and copies of rows take, and whatever the stream waits for
/// between them. The gap between two blocks, as layers without such work have it, is no part of it.
double library_share(const DeviceModel& model, const DeviceCase& what, const Pruner& pruner,
                     const std::vector<std::vector<TokenId>>& prompts, cudaStream_t stream) {
  using Sequence = CudaDevice::Sequence<T>;
  lazyllm::cuda::Context context(stream);
  BlockResources<T, CudaDevice> resources(context, model, KvCacheSize(what.prompt, what.batch));
  const ModelConfig& config = model.config();
  std::vector<LayerMarks> marks(static_cast<std::size_t>(config.layers));
  std::vector<lazyllm::LazyDecoderLayer<MarkedAttention, MarkedFeedForward>> layers;
  for (Index layer = 0; layer < config.layers; ++layer) {
    LayerMarks* const own = &marks[static_cast<std::size_t>(layer)];
    layers.emplace_back(MarkedAttention{{&resources, layer}, own}, MarkedFeedForward{{&resources, layer}, own});
  }
  std::vector<TokenId> tokens;
  for (const auto& prompt : prompts) tokens.insert(tokens.end(), prompt.begin(), prompt.end());

  std::vector<Sequence> sequences;
  for (Index s = 0; s < what.batch; ++s) sequences.emplace_back(config.layers, config.hidden_size);
  lazyllm::Step<Sequence, Pruner> step;
  lazyllm::bench::StreamTimer whole;
  std::vector<bool> works(marks.size());  // whether the library has work in a layer
  const auto prefill = [&] {
    std::vector<lazyllm::Step<Sequence, Pruner>::Entry> entries;
    for (Sequence& sequence : sequences) {
      sequence.clear();
      entries.push_back({&sequence, &pruner, what.prompt});
    }
    const RowsView<T> embeddings = step.begin(context, entries);
    model.embed(context, tokens, embeddings);
    whole.start(stream);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto segment = step.segment();
      works[i] = segment.first >= segment.scored_from || segment.first == segment.last;
      layers[i].forward(context, step);
      marks[i].advanced.set(stream);
    }
    whole.stop(stream);
    step.end();
    std::vector<double> gaps, times;
    for (std::size_t i = 0; i < marks.size(); ++i) {
      for (const double time : {marks[i].feeding.milliseconds_since(marks[i].attended),
                                marks[i].advanced.milliseconds_since(marks[i].fed)}) {
        (works[i] ? times : gaps).push_back(time);
      }
    }
    const double gap = gaps.empty() ? 0 : median(std::move(gaps));
    double library_ms = 0;
    for (const double time : times) library_ms += time - gap;
    return library_ms / whole.milliseconds();
  };
  prefill();
  std::vector<double> shares(static_cast<std::size_t>(what.repeats));
  std::ranges::generate(shares, prefill);
  return median(std::move(shares));
}

int current_device() {
  int number = 0;
  kernels::check(cudaGetDevice(&number), "--device cuda: no CUDA device: cudaGetDevice");
  return number;
}

}  // namespace

std::string device_name() {
  cudaDeviceProp properties{};
  kernels::check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  return properties.name;
}

struct DeviceBench::State {
  State(const ModelConfig& config, const WeightSource& weights) : model(config, weights, stream.get()) {
    kernels::check(cudaDeviceGetDefaultMemPool(&pool, current_device()), "cudaDeviceGetDefaultMemPool");
    // Memory that one decoder gives back is the next one's, without a detour through the driver.
    std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
    kernels::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), "cudaMemPoolSetAttribute");
  }

  lazyllm::bench::Stream stream;
  DeviceModel model;
  cudaMemPool_t pool = nullptr;
  bool graphs_work = true;  ///< as far as is known: an error leaves them out of all further cases
};

DeviceBench::DeviceBench(const ModelConfig& config, const WeightSource& weights)
    : state_(std::make_unique<State>(config, weights)) {}

DeviceBench::~DeviceBench() = default;

Index DeviceBench::weight_bytes() const {
  const ModelConfig& config = state_->model.config();
  Index weights = config.vocab * config.hidden_size;
  for (Index i = 0; i < config.layers; ++i) {
    const auto& layer = state_->model.layer(i);
    for (const auto* linear : {&layer.projection, &layer.output, &layer.gate_up, &layer.down}) {
      weights += linear->in() * linear->out();
    }
    if (layer.query) weights += layer.query->in() * layer.query->out();
  }
  return weights * static_cast<Index>(sizeof(T));
}

DeviceTimes DeviceBench::measure(const DeviceCase& what, const lazyllm::TokenPruner<lazyllm::AnyPolicy>& pruner) {
  const DeviceModel& model = state_->model;
  const cudaStream_t stream = state_->stream.get();
  const KvCacheSize size(what.prompt + what.generate, what.batch);
  const auto prompts = random_prompts(model.config(), what);
  const std::vector<Tokens> whole = parts(prompts, 0, what.prompt);
  lazyllm::bench::StreamTimer timer;
  const auto timed = [&](const auto& work) {
    timer.start(stream);
    work();
    timer.stop(stream);
    return timer.milliseconds();
  };
  const auto prefill = [&](auto& decoder) {
    decoder.clear();
    return timed([&] { decoder.step_all(whole); });
  };
  const auto prefill_to = [&](auto& decoder, DeviceRun& run) {
    const double before = decoder.operations();
    run.prefill_ms.push_back(prefill(decoder));
    run.operations = decoder.operations() - before;
    run.kv_bytes = decoder.kv_bytes();
  };
  const auto decode_to = [&](auto& decoder, DeviceRun& run, const auto& after_step) {
    std::vector<double>& steps = run.decode_ms.emplace_back();
    for (Index i = 1; i < what.generate; ++i) {
      const std::vector<Tokens> next = parts(prompts, i % what.prompt, 1);
      steps.push_back(timed([&] { decoder.step_all(next); }));
      after_step();
    }
  };
  // Warms up, and calls `turn(i)` for turns enough.
  const auto take_turns = [&](auto& a, auto& b, const auto& turn) {
    prefill(a);  // loads and looks up what the next ones have
    prefill(b);
    double warm_up = 0;
    double longest = 0;
    while (warm_up < warm_up_ms) {
      longest = std::max(prefill(a), prefill(b));
      warm_up += longest;
    }
    const auto enough = std::min(max_turns, static_cast<Index>(std::ceil(timed_ms / longest)));
    for (Index i = 0; i < std::max(enough, what.repeats); ++i) turn(i);
  };

  kernels::check(cudaMemPoolTrimTo(state_->pool, 0), "cudaMemPoolTrimTo");  // of a case before
  DeviceTimes times;
  {
    DenseDecoder<T, CudaDevice> dense(model, size, stream);
    {
      LazyDecoder<T, CudaDevice> keep_one(model, size, stream, Pruner(lazyllm::KeepAll()));
      take_turns(dense, keep_one, [&](Index) {
        prefill_to(dense, times.keep_one.dense);
        prefill_to(keep_one, times.keep_one.library);
      });
    }
    LazyDecoder<T, CudaDevice> lazy(model, size, stream, pruner);
    const auto lazy_steps = static_cast<double>(what.repeats * (what.generate - 1));
    take_turns(dense, lazy, [&](Index i) {
      prefill_to(dense, times.lazy.dense);
      if (i < what.repeats) decode_to(dense, times.lazy.dense, [] {});
      prefill_to(lazy, times.lazy.library);
      if (i >= what.repeats) return;
      decode_to(lazy, times.lazy.library,
                [&] { times.revived_per_step += static_cast<double>(lazy.stats().revived()) / lazy_steps; });
      if (what.generate < 2 || !state_->graphs_work) return;
      lazy.use_graphs(true);
      try {
        for (int round = i == 0 ? 0 : 2; round < 3;
             ++round) {  // the first two run the steps as they are and capture them
          DeviceRun not_counted;
          prefill(lazy);
          decode_to(lazy, round < 2 ? not_counted : times.graphs, [] {});
        }
      } catch (const lazyllm::cuda_error& error) {
        std::cerr << "CUDA graphs failed, and are left out from here on: " << error.what() << '\n';
        state_->graphs_work = false;
        times.graphs = {};
      }
      lazy.use_graphs(false);
    });
  }
  times.library_share = library_share(model, what, pruner, prompts, stream);
  times.floor = device_floor(model.config(), what.prompt, what.batch, stream);
  return times;
}

}  // namespace llama
