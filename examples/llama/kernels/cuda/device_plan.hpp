#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <lazyllm/cuda_context.hpp>
#include <span>
#include <vector>

#include "examples/llama/kernels/attention_shape.hpp"
#include "examples/llama/kernels/kv_view.hpp"
#include "examples/llama/library.hpp"

namespace llama {

/// What the kernels need of a `LayerPlan`, on the device: its lists, where the caches are, and how attention is cut
/// into blocks. Serves one context at a time. A layer whose plan equals the last one's uploads nothing.
template <class T>
class DevicePlan {
 public:
  /// A part of a sequence's queries (row-major: query = row * group + head within its key/value head's group) with a
  /// part of the keys: the work of one block, for each key/value head.
  struct Tile {
    std::int32_t sequence;
    std::int32_t first_query;
    std::int32_t first_key;
    std::int32_t last_key;  ///< one behind
    std::int32_t part;      ///< number of its partial result, or -1 where the tile has all the keys
  };

  /// Partial results to put together: `parts` of them from `part` on.
  struct Join {
    std::int32_t sequence;
    std::int32_t first_query;
    std::int32_t part;
    std::int32_t parts;
  };

  /// One sequence's rows and keys in the lists.
  struct Extent {
    std::int32_t first_row;  ///< of the queries
    std::int32_t rows;
    std::int32_t first_key;  ///< in `keys`, or -1 where the keys are the positions 0, 1, ...
  };

  /// Work for kernels with tiles of one size.
  struct Tiles {
    const Tile* tiles = nullptr;
    const Join* joins = nullptr;
    Index tile_count = 0;
    Index join_count = 0;
    Index part_count = 0;
  };

  /// A sequence all of whose tokens are rows, K and V of which lie in one piece, on the host.
  struct Prompt {
    Index first_row;  ///< of the queries
    Index rows;
    KvView<T> cache;
  };

  /// Throws `std::invalid_argument` unless `kv_heads` divides `heads`, and `head_dim` is even.
  explicit DevicePlan(const AttentionShape& shape);

  /// Enqueues copies of what has changed since the last call. `caches` are the sequences' in the order of the plan;
  /// `plan` and `caches` may be changed at once. The page tables that the views point to are read by the kernels, so
  /// they must be there when these run. Where `plan.outputs_only()`, the queries of the attention are the
  /// output rows, one sequence after the other. Throws `std::invalid_argument` if the plan has not one cache for each
  /// sequence, a cache is too small or has an impossible layout; `cuda_error` if there is no memory.
  void update(lazyllm::cuda::Context& context, const lazyllm::LayerPlan& plan, std::span<const KvView<T>> caches);

  const AttentionShape& shape() const { return shape_; }
  Index rows() const { return std::ssize(lists_.positions); }             ///< of the plan
  Index query_rows() const { return std::ssize(host_query_positions_); }  ///< `rows()`, or the output rows
  Index tokens() const { return tokens_; }                                ///< of the longest sequence
  bool aligned() const { return aligned_; }  ///< whether all heads of the caches lie at multiples of 16 bytes
  bool keys_numbered() const { return keys_numbered_; }  ///< whether 32 bits number these multiples in each layer

  const Position* positions() const { return positions_; }              ///< `[rows]`
  const std::int32_t* row_sequences() const { return row_sequences_; }  ///< `[rows]` each row's sequence
  const Position* query_positions() const { return query_positions_; }  ///< `[query_rows]`
  const Position* key_limits() const { return key_limits_; }            ///< `[query_rows]`
  const Position* keys() const { return keys_; }                        ///< of the sequences that need a list
  const Extent* extents() const { return extents_; }                    ///< `[sequences]`
  const KvView<T>* caches() const { return caches_; }                   ///< `[sequences]`

  /// The sequences with rows, if each is such a prompt and no query is left out; else none.
  std::span<const Prompt> prompts() const { return prompts_; }

  /// Appends to `key` all that decides which kernels run with which arguments for this plan: sizes and addresses. What
  /// the lists hold does not.
  void identify(std::vector<std::uint64_t>& key) const;

  /// Sequences with many queries for each key/value head, in tiles of `many_queries`; the tiles with most keys first.
  const Tiles& many() const { return many_; }
  /// Sequences with few, in tiles of `few_queries`.
  const Tiles& few() const { return few_; }

  static constexpr Index many_queries = 128;
  static constexpr Index few_queries = 16;

 private:
  struct Work {
    std::vector<Tile> tiles;
    std::vector<Join> joins;
    std::int32_t parts = 0;
  };

  /// What is on the device, to see whether a plan differs.
  struct Lists {
    std::vector<Position> positions, keys, key_limits;
    std::vector<Index> row_indptr, key_indptr, outputs;
    std::vector<KvView<T>> caches;
    bool outputs_only = false;
  };

  /// Whether the queries of the attention are fewer than the rows.
  static bool outputs_only(const lazyllm::LayerPlan& plan);
  void check(const lazyllm::LayerPlan& plan, std::span<const KvView<T>> caches) const;
  bool on_device(const lazyllm::LayerPlan& plan, std::span<const KvView<T>> caches) const;
  void cut(std::int32_t sequence, Positions limits);
  void upload(lazyllm::cuda::Context& context);

  AttentionShape shape_;
  Index tokens_ = 0;
  bool aligned_ = false;
  bool keys_numbered_ = false;
  // Host lists of the update, kept for their memory.
  std::vector<std::int32_t> host_row_sequences_;
  std::vector<Position> host_query_positions_, host_key_limits_, host_keys_;
  std::vector<Extent> host_extents_;
  Work many_work_, few_work_;
  std::vector<Prompt> prompts_;
  Lists lists_;
  bool uploaded_ = false;
  // On the device.
  lazyllm::cuda::Context::Buffer<std::byte> memory_;
  const Position* positions_ = nullptr;
  const std::int32_t* row_sequences_ = nullptr;
  const Position* query_positions_ = nullptr;
  const Position* key_limits_ = nullptr;
  const Position* keys_ = nullptr;
  const Extent* extents_ = nullptr;
  const KvView<T>* caches_ = nullptr;
  Tiles many_, few_;
};

extern template class DevicePlan<float>;
extern template class DevicePlan<__half>;
extern template class DevicePlan<__nv_bfloat16>;

}  // namespace llama
