#pragma once

#include <ggml-cpp.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "examples/ggml_engine/model.hpp"

namespace ggml_engine {

/// What the attention of a layer computes. A token's K/V lie in the cell of its position.
struct Attended {
  std::span<const std::int32_t> positions;   ///< `[rows]` of the tokens to compute, ascending
  std::span<const std::int32_t> keys;        ///< cells that are attended to, ascending
  std::span<const std::int32_t> key_limits;  ///< `[rows]` row i sees the first `key_limits[i]` of them
  Index outputs = 1;                         ///< the last rows, which are all that goes through the last layer
};

/// Half layers, from `first` to before `end`: 2l is the attention of layer l, 2l + 1 its feed-forward.
struct Blocks {
  Index first = 0, end = 0;
};

/// How the attention probabilities of the query heads become one.
enum class Heads { mean, max };

/// What a forward pass has room for.
struct Room {
  Index context = 4096;                  ///< tokens of the sequence
  Index rows = 512;                      ///< of one graph; more rows take turns
  Index queries = 1;                     ///< rows whose Q is kept in each layer
  int threads = 1;                       ///< of ggml
  ggml_type cache_type = GGML_TYPE_F16;  ///< of K and V
};

/// The model's layers as ggml graphs, with the K/V of one sequence.
class Forward {
 public:
  /// Takes all memory that graphs need. Throws `std::runtime_error` if there is not enough.
  Forward(const Model& model, const Room& room);

  const Shape& shape() const { return model_.shape(); }
  const Room& room() const { return room_; }

  /// Writes the embeddings of `tokens` to `rows` `[tokens x hidden_size]`. Throws `std::runtime_error` for a token that
  /// the model does not have.
  void embed(std::span<const std::int32_t> tokens, float* rows);

  /// Runs blocks on `hidden` `[rows x hidden_size]` in place, and leaves K/V of the rows in their cells. Rows go
  /// through all blocks `room().rows` at a time: keys lie before the rows that see them. In the last layer only the
  /// rows of `attended.outputs` get a result.
  void run(Blocks blocks, const Attended& attended, float* hidden);

  /// Runs the feed-forward of one layer on `rows` rows.
  void feed_forward(Index layer, float* hidden, Index rows);

  /// The logits of `rows` rows, one after the other.
  std::vector<float> logits(const float* hidden, Index rows);

  /// For `count` of the rows whose Q the last `run` has kept, counted from the first one kept: the attention
  /// probabilities of each key in `layer`, mean or highest of the query heads, `[count x keys]`.
  std::vector<float> probabilities(Index layer, Index first_kept, Index count, Heads heads, const Attended& attended);

  ggml_tensor* keys(Index layer) { return cells_[static_cast<std::size_t>(layer)].keys; }  ///< `[kv_width, context]`
  ggml_tensor* values(Index layer) {
    return cells_[static_cast<std::size_t>(layer)].values;
  }  ///< `[kv_width, context]`
  ggml_tensor* queries(Index layer) { return cells_[static_cast<std::size_t>(layer)].queries; }

  std::size_t cache_bytes() const;    ///< of K, V and kept Q
  std::size_t compute_bytes() const;  ///< of all that graphs compute

 private:
  struct Cells {
    ggml_tensor *keys, *values, *queries;
  };
  class Graph;

  /// Rows [first, first + count) of `attended` through the blocks.
  void run_rows(Blocks blocks, const Attended& attended, Index first, Index count, float* hidden);
  void reserve();

  const Model& model_;
  Room room_;
  ggml_backend_ptr backend_;
  ggml_context_ptr tensors_;
  ggml_backend_buffer_ptr cache_;
  std::vector<Cells> cells_;
  ggml_gallocr_ptr allocator_;
  std::vector<std::byte> graph_memory_;  // of tensors and nodes without their data
  std::vector<std::uint16_t> mask_;
  std::vector<std::int64_t> cell_numbers_;
};

}  // namespace ggml_engine
