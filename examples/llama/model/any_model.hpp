#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/llama/checkpoint/checkpoint.hpp"
#include "examples/llama/library.hpp"
#include "examples/llama/model/kv_caches.hpp"
#include "examples/llama/model/layer_observer.hpp"
#include "examples/llama/model/placement.hpp"
#include "examples/llama/model/weight_source.hpp"
#include "examples/llama/token_ids.hpp"

/// \file
/// The host for programs that do not know at compile time where a model runs and with which element type.
namespace llama {

/// How likely a model finds each token of a text.
struct TokenLogProbabilities {
  std::vector<float> values;  ///< `[tokens]` natural logarithm of p(token | tokens before it); the first one's is 0
  double operations = 0;      ///< floating-point operations, the classifier's included
};

/// A `DenseDecoder` or `LazyDecoder` of any device and type; their members say more. Refers to its model.
class AnyDecoder {
 public:
  virtual ~AnyDecoder() = default;

  virtual std::span<const float> step(Tokens tokens) = 0;
  virtual RowsView<const float> step_all(std::span<const Tokens> tokens) = 0;
  virtual void clear() = 0;
  virtual void clear(Index s) = 0;
  virtual void observe_layers(LayerObserver observer) = 0;
  /// From now on, decode steps replay CUDA graphs. Throws `std::invalid_argument` for a dense decoder and on the CPU.
  virtual void use_graphs() = 0;
  virtual Index length(Index s = 0) const = 0;
  virtual double operations() const = 0;
  virtual Index kv_bytes() const = 0;

  /// Of the last step; empty for a dense decoder.
  virtual lazyllm::StepStats stats() const = 0;
  /// How many layers hold K/V of each token of a sequence; empty for a dense decoder, where all do.
  virtual std::span<const lazyllm::Depth> depths(Index s = 0) const = 0;
  /// Share of the (token, layer) pairs of a sequence's first `tokens` tokens that have been computed, in percent.
  virtual double computed_percent(Index tokens, Index s = 0) const = 0;
};

/// A `Model` of any device and type.
class AnyModel {
 public:
  using Pruner = lazyllm::TokenPruner<lazyllm::AnyPolicy>;

  virtual ~AnyModel() = default;

  /// Where ranks run the model, heads and feed-forward are those of this rank.
  virtual const ModelConfig& config() const = 0;

  /// K/V of `tokens` tokens in all layers.
  virtual Index kv_bytes(Index tokens) const = 0;

  /// Runs `tokens` densely. Throws `std::invalid_argument` if there is no token, one outside the vocabulary, or more
  /// than the model's context.
  virtual TokenLogProbabilities log_probabilities(Tokens tokens) const = 0;

  /// Both throw `std::invalid_argument` for pages on the CPU or a wrong number of pruners, `std::runtime_error` and
  /// `lazyllm::cuda_error`, which name the K/V and their size, without memory or device memory for them.
  virtual std::unique_ptr<AnyDecoder> dense(const KvCacheSize& size) const = 0;
  /// `pruners` are one for each sequence.
  virtual std::unique_ptr<AnyDecoder> lazy(const KvCacheSize& size, std::vector<Pruner> pruners) const = 0;

  /// `pruner` is that of all sequences.
  std::unique_ptr<AnyDecoder> lazy(const KvCacheSize& size, const Pruner& pruner) const {
    return lazy(size, std::vector<Pruner>(static_cast<std::size_t>(size.sequences), pruner));
  }
};

/// Loads a model. Throws `std::invalid_argument` if the device cannot compute with the type, or `cuda` is asked of
/// a build without CUDA, `lazyllm::cuda_error` without a CUDA device or enough of its memory, `std::runtime_error`
/// that names the weights and their size where memory ends or Linux has less free, and what `weights` throws.
std::unique_ptr<AnyModel> open_model(const ModelConfig& config, const WeightSource& weights,
                                     const Placement& placement);

}  // namespace llama
