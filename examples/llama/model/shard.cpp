#include "examples/llama/model/shard.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {
namespace {

/// The part of `rank` where `count` things are split as evenly as can be.
Part part_of(Index count, Index rank, Index ranks) {
  const Index first = count * rank / ranks;
  return {first, count * (rank + 1) / ranks - first};
}

/// `part` of numbers that stand for `width` elements each.
Part elements(const Part& part, Index width) { return {part.first * width, part.count * width}; }

}  // namespace

Shard shard_of(const ModelConfig& config, Index rank, Index ranks) {
  const Index most = std::min({config.heads, config.intermediate_size, config.vocab});
  if (ranks < 1 || ranks > most) {
    fail(ranks, " ranks are out of range 1 to ", most, " for ", config.heads, " query heads on ", config.kv_heads,
         " key heads, a feed-forward of ", config.intermediate_size, " and a vocabulary of ", config.vocab);
  }
  Shard shard{.intermediate = part_of(config.intermediate_size, rank, ranks),
              .vocab = part_of(config.vocab, rank, ranks)};
  const Index group = config.heads / config.kv_heads;
  if (ranks <= config.kv_heads) {
    shard.kv_heads = part_of(config.kv_heads, rank, ranks);
    shard.heads = elements(shard.kv_heads, group);
    return shard;
  }
  // Key head h has the ranks from h * ranks / kv_heads on, and each of them some of its query heads.
  const Index head = ((rank + 1) * config.kv_heads - 1) / ranks;
  const Part sharers = part_of(ranks, head, config.kv_heads);
  const Part own = part_of(group, rank - sharers.first, sharers.count);
  if (sharers.count > group) {
    fail(ranks, " ranks on ", config.kv_heads, " key heads: key head ", head, " would have ", sharers.count,
         " ranks, and has ", group, " query heads");
  }
  shard.kv_heads = {head, 1};
  shard.heads = {head * group + own.first, own.count};
  return shard;
}

ModelConfig config_of(ModelConfig config, const Shard& shard) {
  config.heads = shard.heads.count;
  config.kv_heads = shard.kv_heads.count;
  config.intermediate_size = shard.intermediate.count;
  return config;
}

WeightSource weights_of(const WeightSource& source, const ModelConfig& config, const Shard& shard) {
  return [source, config, shard](const std::string& name, const std::vector<Index>& shape) {
    struct Split {
      std::string_view name;
      std::size_t dimension;
      Part part;
      Index whole;
    };
    const Part queries = elements(shard.heads, config.head_dim);
    const Part keys = elements(shard.kv_heads, config.head_dim);
    const Index query_width = config.heads * config.head_dim;
    const Index key_width = config.kv_heads * config.head_dim;
    const Split splits[] = {{".q_proj.", 0, queries, query_width},
                            {".k_proj.", 0, keys, key_width},
                            {".v_proj.", 0, keys, key_width},
                            {".o_proj.", 1, queries, query_width},
                            {".gate_proj.", 0, shard.intermediate, config.intermediate_size},
                            {".up_proj.", 0, shard.intermediate, config.intermediate_size},
                            {".down_proj.", 1, shard.intermediate, config.intermediate_size},
                            {"lm_head.", 0, shard.vocab, config.vocab}};
    for (const Split& split : splits) {
      if (name.find(split.name) == std::string::npos) continue;
      std::vector<Index> whole = shape;
      whole.at(split.dimension) = split.whole;
      const Tensor tensor = source(name, whole);
      return split.dimension == 0 ? rows_of(tensor, split.part.first, split.part.count)
                                  : columns_of(tensor, split.part.first, split.part.count);
    }
    return source(name, shape);
  };
}

}  // namespace llama
