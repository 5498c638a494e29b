#pragma once

#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/model/weight_source.hpp"

namespace llama {

/// Numbers `first` to `first + count`.
struct Part {
  Index first = 0;
  Index count = 0;

  bool operator==(const Part&) const = default;
};

/// What one rank has of a model. Every rank has all norms and, in its file, the whole embedding table.
struct Shard {
  Part heads = {};         ///< query heads
  Part kv_heads = {};      ///< those that the query heads look at
  Part intermediate = {};  ///< of the feed-forward
  Part vocab = {};         ///< of the classifier
};

/// The part of rank `rank` of `ranks`. Key heads are split with all their query heads. Where there are fewer key heads
/// than ranks, several ranks have the same key head and share its query heads. Throws `std::invalid_argument` where a
/// rank would have no query head, no row of the feed-forward or none of the classifier.
Shard shard_of(const ModelConfig& config, Index rank, Index ranks);

/// `config` with the heads and the feed-forward of `shard`; the vocabulary is the whole one.
ModelConfig config_of(ModelConfig config, const Shard& shard);

/// The weights of `source`, of a model with `config`, as far as they belong to `shard`, under the same names. Views:
/// nothing else is read.
WeightSource weights_of(const WeightSource& source, const ModelConfig& config, const Shard& shard);

}  // namespace llama
