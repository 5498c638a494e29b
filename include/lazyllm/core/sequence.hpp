#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/core/positions.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm {

/// Number of layers that hold a token's K/V: 0 before the token has run at all, all layers once it needs no more work.
using Depth = std::int32_t;

template <class Sequence, class Pruner>
class Step;

/// The state of one request: how deep each token has gone, and the parked rows of those that have not gone all the way.
/// Its K/V are the engine's, which must follow every `truncate`, `fork` and `clear`, and a step that is aborted. On
/// CUDA it stays with the stream of its first step. Must not be moved while it is in a running step; what changes or
/// copies its tokens throws `invalid_argument` then.
template <class Aux>
class Sequence {
 public:
  using aux_type = Aux;
  using context_type = typename Aux::context_type;
  using value_type = typename Aux::value_type;

  /// A sequence without tokens. Throws `invalid_argument` unless `layers`, the model's number of layers, is at least 1.
  Sequence(Index layers, Aux aux) : aux_(std::move(aux)), parked_at_(checked(layers), 0) {}

  /// The same with an Aux Cache of its own for rows of `width` elements.
  Sequence(Index layers, Index width) : Sequence(layers, Aux(width)) {}

  /// Makes room for `tokens` tokens, so that steps up to there allocate nothing in the sequence. The rows of a shared
  /// pool are reserved once, for all its sequences.
  void reserve(context_type& context, Index tokens) {
    depth_.reserve(static_cast<std::size_t>(tokens));
    aux_.reserve(context, tokens);
  }

  /// Drops all tokens from position `tokens` on. Throws `invalid_argument` unless 0 <= tokens <= length().
  void truncate(Index tokens) {
    check_idle("truncate");
    if (tokens < 0 || tokens > length()) {
      detail::fail("Sequence::truncate: ", tokens, " tokens is out of range 0 to ", length());
    }
    drop_from(tokens);
  }

  /// Drops all tokens.
  void clear() { truncate(0); }

  /// An independent copy, with parked rows of its own. The engine must copy its K/V too, at the latest when either
  /// sequence writes: reviving writes K/V of old tokens.
  Sequence fork(context_type& context) const {
    check_idle("fork");
    Sequence copy(layers(), aux_.fork(context));
    copy.depth_ = depth_;
    copy.parked_at_ = parked_at_;
    copy.steps_ = steps_;
    return copy;
  }

  /// Appends `tokens` tokens whose K/V the engine already has in every layer, for example a re-used prefix.
  /// Throws `invalid_argument` if `tokens` is negative.
  void append_computed(Index tokens) {
    check_idle("append_computed");
    if (tokens < 0) detail::fail("Sequence::append_computed: ", tokens, " tokens is out of range, at least 0");
    depth_.resize(depth_.size() + static_cast<std::size_t>(tokens), static_cast<Depth>(layers()));
  }

  Index layers() const { return std::ssize(parked_at_); }
  Index length() const { return std::ssize(depth_); }  ///< tokens so far
  Index steps() const { return steps_; }               ///< steps finished since the sequence was last empty
  /// `[length]` how deep each token has gone. K/V of one that has gone through all layers will not be written again:
  /// a page of such tokens can be shared.
  std::span<const Depth> depths() const { return depth_; }
  const Aux& aux() const { return aux_; }

  /// Share of the (token, layer) pairs of the first `tokens` tokens that have been computed, in percent; 100 for no
  /// tokens. Throws `invalid_argument` unless 0 <= tokens <= length().
  double computed_percent(Index tokens) const {
    if (tokens < 0 || tokens > length()) {
      detail::fail("Sequence::computed_percent: ", tokens, " tokens is out of range 0 to ", length());
    }
    Index computed = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(tokens); ++i) computed += depth_[i];
    return tokens == 0 ? 100 : 100 * static_cast<double>(computed) / static_cast<double>(tokens * layers());
  }

 private:
  template <class, class>
  friend class Step;

  static std::size_t checked(Index layers) {
    if (layers < 1 || layers > std::numeric_limits<Depth>::max()) {
      detail::fail("Sequence: layers ", layers, " is out of range, at least 1");
    }
    return static_cast<std::size_t>(layers);
  }

  void check_idle(const char* what) const {
    if (in_step_) detail::fail("Sequence::", what, " called while the sequence is in a running step");
  }

  void drop_from(Index tokens) {
    if (tokens == 0) steps_ = 0;
    depth_.resize(static_cast<std::size_t>(tokens));
    aux_.truncate(tokens);
    std::fill(parked_at_.begin(), parked_at_.end(), 0);
    for (std::size_t i = 0; i < depth_.size(); ++i) {
      if (aux_.holds(static_cast<Position>(i))) ++parked_at_[static_cast<std::size_t>(depth_[i])];
    }
  }

  Aux aux_;
  std::vector<Depth> depth_;      // by position
  std::vector<Index> parked_at_;  // by depth: how many tokens are parked there
  Index steps_ = 0;
  bool in_step_ = false;
};

}  // namespace lazyllm
