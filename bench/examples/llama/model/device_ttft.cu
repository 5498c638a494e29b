#include "bench/examples/llama/model/device_ttft.hpp"

#include <cuda_bf16.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "bench/cuda/stream.hpp"
#include "bench/examples/llama/model/device_floor.hpp"
#include "examples/llama/model/cuda/device.cuh"

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

/// A block of the host that is timed each time it runs.
struct TimedAttention {
  AttentionBlock<T, CudaDevice> block;
  lazyllm::bench::StreamTimer* timer;

  void attend(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan, RowsView<T> hidden) {
    timer->start(context.stream());
    block.attend(context, plan, hidden);
    timer->stop(context.stream());
  }
  auto queries(const lazyllm::LayerPlan& plan) const { return block.queries(plan); }
  auto keys(const lazyllm::LayerPlan& plan, Index s) const { return block.keys(plan, s); }
};

struct TimedFeedForward {
  FeedForwardBlock<T, CudaDevice> block;
  lazyllm::bench::StreamTimer* timer;

  void feed_forward(lazyllm::cuda::Context& context, RowsView<T> hidden) {
    timer->start(context.stream());
    block.feed_forward(context, hidden);
    timer->stop(context.stream());
  }
};

/// Part of a lazy prefill's layers that is not in the host's blocks: scores, selection, copies of rows, and whatever
/// the stream waits for meanwhile.
double library_share(const DeviceModel& model, const DeviceCase& what, const Pruner& pruner,
                     const std::vector<std::vector<TokenId>>& prompts, cudaStream_t stream) {
  using Sequence = CudaDevice::Sequence<T>;
  lazyllm::cuda::Context context(stream);
  Shared<T, CudaDevice> shared(context, model, KvRoom(what.prompt, what.batch));
  const ModelConfig& config = model.config();
  std::vector<lazyllm::bench::StreamTimer> timers(static_cast<std::size_t>(2 * config.layers));
  std::vector<lazyllm::LazyDecoderLayer<TimedAttention, TimedFeedForward>> layers;
  for (Index layer = 0; layer < config.layers; ++layer) {
    lazyllm::bench::StreamTimer* const own = &timers[static_cast<std::size_t>(2 * layer)];
    layers.emplace_back(TimedAttention{{&shared, layer}, own}, TimedFeedForward{{&shared, layer}, own + 1});
  }
  std::vector<TokenId> tokens;
  for (const auto& prompt : prompts) tokens.insert(tokens.end(), prompt.begin(), prompt.end());

  std::vector<Sequence> sequences;
  for (Index s = 0; s < what.batch; ++s) sequences.emplace_back(config.layers, config.hidden_size);
  lazyllm::Step<Sequence, Pruner> step;
  lazyllm::bench::StreamTimer whole;
  const auto prefill = [&] {
    std::vector<lazyllm::Step<Sequence, Pruner>::Entry> entries;
    for (Sequence& sequence : sequences) {
      sequence.clear();
      entries.push_back({&sequence, &pruner, what.prompt});
    }
    const RowsView<T> embeddings = step.begin(context, entries);
    model.embed(context, tokens, embeddings);
    whole.start(stream);
    for (auto& layer : layers) layer.forward(context, step);
    whole.stop(stream);
    step.end();
  };
  prefill();
  prefill();
  const double layers_ms = whole.milliseconds();
  double blocks_ms = 0;
  for (const lazyllm::bench::StreamTimer& timer : timers) blocks_ms += timer.milliseconds();
  return 1 - blocks_ms / layers_ms;
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
};

DeviceBench::DeviceBench(const ModelConfig& config, const WeightSource& weights)
    : state_(std::make_unique<State>(config, weights)) {}

DeviceBench::~DeviceBench() = default;

Index DeviceBench::weight_bytes() const {
  const ModelConfig& config = state_->model.config();
  const auto& layer = state_->model.layer(0);
  Index weights = config.vocab * config.hidden_size;
  for (const auto* linear : {&layer.query, &layer.key_value, &layer.output, &layer.gate_up, &layer.down}) {
    weights += config.layers * linear->in() * linear->out();
  }
  return weights * static_cast<Index>(sizeof(T));
}

DeviceTimes DeviceBench::measure(const DeviceCase& what, const lazyllm::TokenPruner<lazyllm::AnyPolicy>& pruner) {
  const DeviceModel& model = state_->model;
  const cudaStream_t stream = state_->stream.get();
  const KvRoom room(what.prompt + what.generate, what.batch);
  const auto prompts = random_prompts(model.config(), what);
  const std::vector<Tokens> whole = parts(prompts, 0, what.prompt);
  lazyllm::bench::StreamTimer timer;
  const auto timed = [&](const auto& work) {
    timer.start(stream);
    work();
    timer.stop(stream);
    return timer.milliseconds();
  };
  // A prefill to warm up and one to time; then decode steps, with `after_step()` after each.
  const auto run = [&](auto& decoder, DeviceRun& to, Index generate, const auto& after_step) {
    decoder.step_all(whole);
    decoder.clear();
    const double before = decoder.operations();
    to.prefill_ms.push_back(timed([&] { decoder.step_all(whole); }));
    to.operations = decoder.operations() - before;
    to.kv_bytes = decoder.kv_bytes();
    std::vector<double>& steps = to.decode_ms.emplace_back();
    for (Index i = 1; i < generate; ++i) {
      const std::vector<Tokens> next = parts(prompts, i % what.prompt, 1);
      steps.push_back(timed([&] { decoder.step_all(next); }));
      after_step();
    }
  };

  kernels::check(cudaMemPoolTrimTo(state_->pool, 0), "cudaMemPoolTrimTo");  // of a case before
  DeviceTimes times;
  const Index lazy_steps = what.repeats * (what.generate - 1);
  for (Index i = 0; i < what.repeats; ++i) {
    {
      DenseDecoder<T, CudaDevice> decoder(model, room, stream);
      run(decoder, times.dense, what.generate, [] {});
    }
    {
      LazyDecoder<T, CudaDevice> decoder(model, room, stream, Pruner(lazyllm::KeepAll()));
      run(decoder, times.keep_one, 1, [] {});
    }
    {
      LazyDecoder<T, CudaDevice> decoder(model, room, stream, pruner);
      run(decoder, times.lazy, what.generate, [&] {
        times.revived_per_step += static_cast<double>(decoder.stats().revived()) / static_cast<double>(lazy_steps);
      });
    }
  }
  times.library_share = library_share(model, what, pruner, prompts, stream);
  times.floor = device_floor(model.config(), what.prompt, what.batch, stream);
  return times;
}

}  // namespace llama
