#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "lazyllm/core/positions.hpp"

namespace lazyllm {

/// Which keys a row may see; each kind includes the ones before it.
enum class Mask : std::uint8_t {
  causal,         ///< the rows are the keys: any causal kernel works on the compacted rows
  suffix_causal,  ///< the rows are the last keys
  ragged_causal   ///< row i sees the first `key_limits[i]` keys
};

/// What one sequence does in one layer. All lists ascend; nothing is owned.
struct SequencePlan {
  Positions positions;   ///< `[rows]` tokens to compute: the rows of the hidden states, of Q and of the new K/V
  Positions keys;        ///< `[keys]` active tokens; once the new K/V are written, all of them have K/V in this layer
  Positions key_limits;  ///< `[rows]` row i sees `keys[0 .. key_limits[i])`, its own token being the last of them
  Index first_row = 0;   ///< where the sequence's rows begin in the batch
  Index tokens = 0;      ///< tokens of the sequence so far, those of this step included
  Mask mask = Mask::causal;
};

/// What the host's attention block computes in one layer for a ragged batch (CSR: `indptr` has one entry more than
/// there are sequences). A view of a `PlanBuffers`, in host memory: in a step, valid until `advance` goes on to the
/// next layer.
class LayerPlan {
 public:
  LayerPlan(Index layer, Index layers, Positions positions, Positions keys, Positions key_limits,
            std::span<const Index> row_indptr, std::span<const Index> key_indptr, std::span<const Index> tokens,
            std::span<const Mask> masks, bool scores_wanted)
      : layer_(layer),
        layers_(layers),
        positions_(positions),
        keys_(keys),
        key_limits_(key_limits),
        row_indptr_(row_indptr),
        key_indptr_(key_indptr),
        tokens_(tokens),
        masks_(masks),
        scores_wanted_(scores_wanted) {}

  Index layer() const { return layer_; }
  Index layers() const { return layers_; }

  /// In the last layer only the last row of each sequence is read after attention; the other rows need only their K/V.
  bool last_rows_only() const { return layer_ + 1 == layers_; }

  /// Whether scores of this layer will be asked for: a kernel that computes them along the way can leave them out else.
  bool scores_wanted() const { return scores_wanted_; }

  Index sequences() const { return std::ssize(masks_); }
  Index rows() const { return std::ssize(positions_); }

  Positions positions() const { return positions_; }    ///< `[rows]` of all sequences, one after the other
  Positions keys() const { return keys_; }              ///< active tokens of all sequences
  Positions key_limits() const { return key_limits_; }  ///< `[rows]`, counted within the row's own sequence
  std::span<const Index> row_indptr() const { return row_indptr_; }  ///< `[sequences + 1]` into positions()
  std::span<const Index> key_indptr() const { return key_indptr_; }  ///< `[sequences + 1]` into keys()

  /// The most general mask that a sequence of the batch has.
  Mask mask() const { return *std::max_element(masks_.begin(), masks_.end()); }

  /// The part of sequence `i`, counted in the order in which the sequences were given to the step.
  SequencePlan sequence(Index i) const {
    const auto s = static_cast<std::size_t>(i);
    const auto part = [s](Positions all, std::span<const Index> indptr) {
      return all.subspan(static_cast<std::size_t>(indptr[s]), static_cast<std::size_t>(indptr[s + 1] - indptr[s]));
    };
    return {part(positions_, row_indptr_),
            part(keys_, key_indptr_),
            part(key_limits_, row_indptr_),
            row_indptr_[s],
            tokens_[s],
            masks_[s]};
  }

 private:
  Index layer_;
  Index layers_;
  Positions positions_;
  Positions keys_;
  Positions key_limits_;
  std::span<const Index> row_indptr_;
  std::span<const Index> key_indptr_;
  std::span<const Index> tokens_;
  std::span<const Mask> masks_;
  bool scores_wanted_;
};

/// The lists behind a `LayerPlan`. A step of the library keeps its own; an engine's dense path can use one directly:
/// `start` once, then the same plan serves all layers.
class PlanBuffers {
 public:
  /// One sequence of a step: `history` tokens that have K/V in every layer or a parked row, then `new_tokens` more.
  struct Extent {
    Index history = 0;
    Index new_tokens = 0;
  };

  /// Plans layer 0: the new tokens are the rows, all tokens are the keys.
  void start(std::span<const Extent> extents) {
    clear();
    for (const Extent& extent : extents) {
      const Index tokens = extent.history + extent.new_tokens;
      append_range(positions_, extent.history, tokens);
      append_range(keys_, 0, tokens);
      finish_sequence(tokens);
    }
  }

  /// The same for one sequence.
  void start(Index history, Index new_tokens) {
    const Extent extent{history, new_tokens};
    start(std::span(&extent, 1));
  }

  /// Empties the lists and keeps their memory.
  void clear() {
    positions_.clear();
    keys_.clear();
    key_limits_.clear();
    row_indptr_.assign(1, 0);
    key_indptr_.assign(1, 0);
    tokens_.clear();
    masks_.clear();
  }

  void append_row(Position position) { positions_.push_back(position); }
  void append_key(Position position) { keys_.push_back(position); }

  /// Closes a sequence of `tokens` tokens after its rows and keys have been appended, ascending and the rows among the
  /// keys: sets its indptr, mask and key limits.
  void finish_sequence(Index tokens) {
    tokens_.push_back(tokens);
    const Positions rows = Positions(positions_).subspan(static_cast<std::size_t>(row_indptr_.back()));
    const Positions keys = Positions(keys_).subspan(static_cast<std::size_t>(key_indptr_.back()));
    const auto before = static_cast<Position>(keys.size() - rows.size());
    if (rows.empty() || rows.front() == keys[static_cast<std::size_t>(before)]) {
      append_range(key_limits_, before + 1, before + 1 + std::ssize(rows));
      masks_.push_back(before == 0 ? Mask::causal : Mask::suffix_causal);
    } else {
      for (const Position row : rows) {
        const auto after = std::upper_bound(keys.begin(), keys.end(), row);
        key_limits_.push_back(static_cast<Position>(after - keys.begin()));
      }
      masks_.push_back(Mask::ragged_causal);
    }
    row_indptr_.push_back(std::ssize(positions_));
    key_indptr_.push_back(std::ssize(keys_));
  }

  /// The lists as the plan of one layer of `layers`.
  LayerPlan layer(Index layer, Index layers, bool scores_wanted = false) const {
    return {layer, layers, positions_, keys_, key_limits_, row_indptr_, key_indptr_, tokens_, masks_, scores_wanted};
  }

  void swap(PlanBuffers& other) noexcept { std::swap(*this, other); }

  /// Makes room for `sequences` sequences with `tokens` tokens in all, at least doubling a list that must grow.
  void reserve(Index sequences, Index tokens) {
    for (auto* list : {&positions_, &keys_, &key_limits_}) grow(*list, tokens);
    for (auto* list : {&row_indptr_, &key_indptr_, &tokens_}) grow(*list, sequences + 1);
    grow(masks_, sequences);
  }

  Index row_count() const { return std::ssize(positions_); }
  Index key_count() const { return std::ssize(keys_); }

 private:
  template <class T>
  static void grow(std::vector<T>& list, Index count) {
    const auto size = static_cast<std::size_t>(count);
    if (size > list.capacity()) list.reserve(std::max(size, 2 * list.capacity()));
  }

  static void append_range(std::vector<Position>& list, Index first, Index last) {
    const std::size_t old_size = list.size();
    list.resize(old_size + static_cast<std::size_t>(last - first));
    std::iota(list.begin() + static_cast<Index>(old_size), list.end(), static_cast<Position>(first));
  }

  std::vector<Position> positions_;
  std::vector<Position> keys_;
  std::vector<Position> key_limits_;
  std::vector<Index> row_indptr_ = {0};
  std::vector<Index> key_indptr_ = {0};
  std::vector<Index> tokens_;
  std::vector<Mask> masks_;
};

}  // namespace lazyllm
