#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// Which keys a row may see; each kind includes the ones before it.
enum class Mask : std::uint8_t {
  causal,         ///< the rows are the keys: any causal kernel works on the compacted rows
  suffix_causal,  ///< the rows are the last keys
  ragged_causal   ///< row i sees the first `key_limits[i]` keys
};

/// What one sequence does in one layer. All lists ascend; nothing is owned. A sequence without rows does nothing: it
/// waits for a deeper layer, or has ended its part of the step.
struct SequencePlan {
  Positions positions;  ///< `[rows]` tokens to compute: the rows of the hidden states, of Q and of the new K/V
  Positions keys;       ///< `[keys]` active tokens; once the new K/V are written, all of them have K/V in this layer
  std::span<const Position> key_limits;  ///< `[rows]` row i sees `keys[0 .. key_limits[i])`; its own token is the last
  Index first_row = 0;                   ///< where the sequence's rows begin in the batch
  Index tokens = 0;                      ///< tokens of the sequence so far, those of this step included
  Index outputs = 0;                     ///< the last rows that are read after the last layer
  Mask mask = Mask::causal;              ///< of this sequence alone
};

namespace detail {

/// The lists behind a `LayerPlan`: of all sequences, one after the other (CSR: `indptr` has one entry more than there
/// are sequences).
struct PlanLists {
  std::vector<Position> positions;      ///< `[rows]`
  std::vector<Position> keys;           ///< positions of the active tokens
  std::vector<Position> key_limits;     ///< `[rows]`
  std::vector<Index> row_indptr = {0};  ///< `[sequences + 1]`
  std::vector<Index> key_indptr = {0};  ///< `[sequences + 1]`
  std::vector<Index> tokens;            ///< `[sequences]`
  std::vector<Index> outputs;           ///< `[sequences]`
  std::vector<Mask> masks;              ///< `[sequences]`
};

}  // namespace detail

/// What the engine's attention block computes in one layer for a ragged batch. A view of lists in host memory, valid
/// until `Step::advance` or `Step::begin_advance`, or until the `DensePlan` starts again.
class LayerPlan {
 public:
  /// The plan of one layer of `layers`. `lists` must outlive it.
  LayerPlan(const detail::PlanLists& lists, Index layer, Index layers, bool scores_wanted = false)
      : lists_(&lists), layer_(layer), layers_(layers), scores_wanted_(scores_wanted) {}

  Index layer() const { return layer_; }    ///< the layer to run, from 0
  Index layers() const { return layers_; }  ///< layers of the model

  /// Whether this is the last layer: only the output rows of each sequence are read after its attention. The other rows
  /// need only their K/V.
  bool outputs_only() const { return layer_ + 1 == layers_; }

  /// Whether scores of this layer will be asked for. If not, Q need not be kept, and a fused kernel may skip scores.
  bool scores_wanted() const { return scores_wanted_; }

  Index sequences() const { return std::ssize(lists_->masks); }  ///< of the batch, in the order of the entries
  Index rows() const { return std::ssize(lists_->positions); }   ///< of all sequences

  Positions positions() const { return lists_->positions; }  ///< `[rows]`
  Positions keys() const { return lists_->keys; }            ///< `[key_indptr().back()]` active tokens
  /// `[rows]` row r sees the first so many keys of its own sequence. A count, not a position.
  std::span<const Position> key_limits() const { return lists_->key_limits; }
  std::span<const Index> row_indptr() const { return lists_->row_indptr; }  ///< `[sequences + 1]` into positions()
  std::span<const Index> key_indptr() const { return lists_->key_indptr; }  ///< `[sequences + 1]` into keys()
  std::span<const Index> outputs() const { return lists_->outputs; }        ///< `[sequences]` rows, the last ones

  /// The most general mask that a sequence of the batch has, `causal` where there is none.
  Mask mask() const {
    Mask mask = Mask::causal;
    for (const Mask of_sequence : lists_->masks) mask = std::max(mask, of_sequence);
    return mask;
  }

  /// The part of sequence `i`, counted in the order in which the sequences were given to the step.
  SequencePlan sequence(Index i) const {
    const auto s = detail::to_size(i);
    const auto part = [s](std::span<const Position> all, const std::vector<Index>& indptr) {
      return all.subspan(detail::to_size(indptr[s]), detail::to_size(indptr[s + 1] - indptr[s]));
    };
    return {.positions = part(lists_->positions, lists_->row_indptr),
            .keys = part(lists_->keys, lists_->key_indptr),
            .key_limits = part(lists_->key_limits, lists_->row_indptr),
            .first_row = lists_->row_indptr[s],
            .tokens = lists_->tokens[s],
            .outputs = lists_->outputs[s],
            .mask = lists_->masks[s]};
  }

 private:
  const detail::PlanLists* lists_;
  Index layer_;
  Index layers_;
  bool scores_wanted_;
};

}  // namespace lazyllm
