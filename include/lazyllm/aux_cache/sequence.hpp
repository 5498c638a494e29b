#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lazyllm/aux_cache/aux_cache.hpp"
#include "lazyllm/aux_cache/saved_sequence.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

namespace detail {

template <ParksRows Aux>
class RunningSequence;

/// A prompt of which a step has computed a part: more of it is to come, or its rows did not fit into one step. Its rows
/// wait at the layer at which it is ranked next.
template <ParksRows Aux>
struct UnfinishedPrompt {
  Index tokens = 0;            ///< that its steps have brought so far; 0 if there is no such prompt
  Index layer = 0;             ///< from which its rows go on
  std::vector<Position> keys;  ///< the active tokens from there on; unused at layer 0, where all are active
  using Sums = typename Aux::context_type::template Buffer<float>;  ///< memory of the backend
  Sums score_sums;                                                  ///< `[keys]` if its score sums over layers
  /// Older tokens that steps of this prompt have revived. They wait together with the prompt's own tokens.
  std::vector<Position> revived = {};

  /// Makes it none.
  void finish() noexcept {
    tokens = layer = 0;
    revived.clear();
  }
};

}  // namespace detail

/// The state of one request: how deep each token has gone, and the parked rows of those that have not gone all the way.
/// Its K/V are the engine's, which must follow every `truncate`, `erase`, `fork` and `clear`. After a step that is
/// aborted, or whose entry fails alone, only the slots of the new tokens are to be given back: what else it has written
/// is written again before a plan reads it. On CUDA a sequence stays with the stream of its first step. It must not be
/// moved or destroyed while it is in a running step; what changes or copies its tokens throws `logic_error` then.
template <ParksRows Aux>
class Sequence {
 public:
  using aux_type = Aux;                             ///< where rows are parked
  using context_type = typename Aux::context_type;  ///< the backend's
  using value_type = typename Aux::value_type;      ///< of a row's elements

  /// A sequence without tokens. Throws `invalid_argument` if `layers`, the model's number of layers, is out of range,
  /// or the Aux Cache is not empty.
  Sequence(Index layers, Aux aux) : aux_(std::move(aux)), parked_at_(checked(layers), 0) {
    if (aux_.parked_rows() != 0) {
      detail::fail("Sequence: the Aux Cache holds ", aux_.parked_rows(), " rows, it must be empty");
    }
  }

  /// A sequence without tokens, with an Aux Cache of its own for rows of `hidden_size` elements: of `PooledStorage`,
  /// too, with a pool that it shares with its forks alone.
  Sequence(Index layers, Index hidden_size) : Sequence(layers, Aux(hidden_size)) {}

  /// Takes over all tokens; the other sequence cannot be used any more.
  Sequence(Sequence&&) noexcept = default;
  /// Takes over all tokens; those that were here are dropped.
  Sequence& operator=(Sequence&& other) noexcept {
    if (this == &other) return *this;
    aux_ = std::move(other.aux_);
    depth_ = std::move(other.depth_);
    parked_at_ = std::move(other.parked_at_);
    undo_ = std::move(other.undo_);
    prompt_ = std::move(other.prompt_);
    steps_ = other.steps_;
    prompt_end_ = other.prompt_end_;
    in_step_ = other.in_step_;
    return *this;
  }

  /// Makes room for `tokens` tokens, so that steps up to there allocate nothing in the sequence, but for the keys, and
  /// their sums over layers, of a prompt that waits at a deeper layer. Where a step revives tokens and prunes them
  /// again, which policies with `KeepComputed` do not in decode steps, they hold two slots until it ends: that may take
  /// up to twice as many. The slots of a shared pool are reserved once, for all its sequences. Throws
  /// `invalid_argument` unless `tokens` is in the range of `Position`.
  void reserve(context_type& context, Index tokens) {
    if (tokens < 0 || tokens > detail::most_tokens) {
      detail::fail("Sequence::reserve: ", tokens, " tokens is out of range 0 to ", detail::most_tokens);
    }
    depth_.reserve(detail::to_size(tokens));
    undo_.reserve(detail::to_size(tokens));
    prompt_.revived.reserve(detail::to_size(tokens));
    aux_.reserve(context, tokens);
  }

  /// Drops all tokens from position `tokens` on. Throws `invalid_argument` unless 0 <= tokens <= length(), or if only a
  /// part of an unfinished prompt would be dropped.
  void truncate(Index tokens) {
    check_idle("Sequence::truncate");
    if (tokens < 0 || tokens > length()) {
      detail::fail("Sequence::truncate: ", tokens, " tokens is out of range 0 to ", length());
    }
    if (tokens == length()) return;
    if (tokens > finished_tokens()) {
      detail::fail("Sequence::truncate: ", tokens, " tokens is out of range 0 to ", finished_tokens(),
                   ": the prompt behind is unfinished");
    }
    drop_from(tokens);
    prompt_.finish();
  }

  /// Drops all tokens.
  void clear() { truncate(0); }

  /// Drops the tokens at positions [first, last) and moves those behind to `first` (context shift). The engine must
  /// move their K/V too and rotate K (RoPE) to the new positions. Throws `invalid_argument` unless 0 <= first <= last
  /// <= length(), `logic_error` while a prompt is unfinished.
  void erase(Index first, Index last) {
    check_idle("Sequence::erase");
    check_finished("erase");
    if (first < 0 || last < first || last > length()) {
      detail::fail("Sequence::erase: first ", first, " and last ", last, " are out of range 0 to ", length(),
                   ", ascending");
    }
    aux_.erase(first, last);
    depth_.erase(depth_.begin() + first, depth_.begin() + last);
    prompt_end_ -= std::clamp<Index>(prompt_end_ - first, 0, last - first);
    count_parked();
    if (depth_.empty()) steps_ = 0;
  }

  /// An independent copy, with parked rows of its own, in the same pool if there is one. The engine must copy its K/V
  /// too, at the latest when either writes: reviving writes K/V of old tokens. Throws `logic_error` while a prompt is
  /// unfinished.
  Sequence fork(context_type& context) const {
    check_idle("Sequence::fork");
    check_finished("fork");
    return Sequence(*this, aux_.fork(context));
  }

  /// Appends `tokens` tokens whose K/V the engine already has in every layer, for example a re-used prefix. They count
  /// as a prompt: the next decode step is a first one. Throws `invalid_argument` unless 0 <= tokens and the sequence
  /// stays within the range of `Position`, `logic_error` while a prompt is unfinished.
  void append_computed(Index tokens) {
    check_idle("Sequence::append_computed");
    check_finished("append_computed");
    const Index max_tokens = detail::most_tokens - length();
    if (tokens < 0 || tokens > max_tokens) {
      detail::fail("Sequence::append_computed: ", tokens, " tokens is out of range 0 to ", max_tokens);
    }
    depth_.resize(depth_.size() + detail::to_size(tokens), static_cast<Depth>(layers()));
    if (tokens > 0) prompt_end_ = length();
  }

  /// Throws `invalid_argument` unless the K/V of the first `tokens` tokens can be shared with other sequences: only
  /// K/V of tokens that have gone through all layers are never written again. It equals that of a dense prefill only if
  /// nothing was pruned while they ran. Throws `logic_error` while a step runs.
  void check_shareable(Index tokens) const {
    check_idle("Sequence::check_shareable");
    if (tokens < 0 || tokens > length()) {
      detail::fail("Sequence::check_shareable: ", tokens, " tokens is out of range 0 to ", length());
    }
    const auto shallow =
        std::find_if(depth_.begin(), depth_.begin() + tokens, [this](Depth depth) { return depth < layers(); });
    if (shallow != depth_.begin() + tokens) {
      detail::fail("Sequence::check_shareable: position ", shallow - depth_.begin(), " has gone through ", *shallow,
                   " of ", layers(), " layers, a shared token through all");
    }
  }

  /// Begins an empty sequence with the first `tokens` tokens of `source`, whose K/V both share. Throws what
  /// `source.check_shareable` throws, and `logic_error` if this sequence is not empty or of another number of layers.
  void append_shared(const Sequence& source, Index tokens) {
    source.check_shareable(tokens);
    if (length() != 0 || source.layers() != layers()) {
      detail::fail<logic_error>("Sequence::append_shared: the sequence has ", length(), " tokens and ", layers(),
                                " layers, it must have 0 and ", source.layers());
    }
    append_computed(tokens);
  }

  /// The sequence as bytes of the present format: depths and parked rows. Waits for the context where rows are parked.
  /// Throws `logic_error` while a prompt is unfinished. The engine saves K/V of the layers below each token's depth.
  std::vector<std::byte> save(context_type& context) const {
    check_idle("Sequence::save");
    check_finished("save");
    return detail::save_sequence(context, aux_,
                                 {.layers = layers(), .steps = steps_, .prompt_end = prompt_end_, .depths = depth_});
  }

  /// A sequence from the bytes of `save`; `aux` is empty. The engine restores its K/V. The bytes do not say whether
  /// its blocks were fused (`NoFeedForward`): that must be as it was. Throws `invalid_argument` for bytes of another
  /// version, type of elements or hidden size, and for damaged ones (by a checksum).
  static Sequence restore(context_type& context, std::span<const std::byte> bytes, Aux aux) {
    const detail::SavedSequence saved = detail::read_sequence(bytes, aux);
    Sequence result(saved.layers, std::move(aux));
    detail::restore_rows(context, bytes, saved, result.aux_);
    result.depth_ = saved.depths;
    result.steps_ = saved.steps;
    result.prompt_end_ = saved.prompt_end;
    result.count_parked();
    return result;
  }

  /// The same with an Aux Cache of its own: compare its `hidden_size`, and `layers`, with the model's.
  static Sequence restore(context_type& context,
                          std::span<const std::byte> bytes) requires std::constructible_from<Aux, Index> {
    return restore(context, bytes, Aux(detail::saved_hidden_size(bytes)));
  }

  Index layers() const { return std::ssize(parked_at_); }  ///< of the model; 0 once moved from
  Index length() const { return std::ssize(depth_); }      ///< tokens so far
  Index steps() const { return steps_; }  ///< prompts, however cut, and decode steps finished since it was last empty
  /// Where the last prompt, or `append_computed`, ended; after `truncate` to fewer tokens the new length. Tokens from
  /// there on came in decode steps, or are of an unfinished prompt.
  Index prompt_end() const { return prompt_end_; }
  /// Whether a prompt waits for its next chunk or, because of `max_rows`, for the next step; so may a decode step.
  bool unfinished() const { return prompt_.tokens > 0; }
  /// Tokens before the unfinished prompt, all where none is: `truncate` to there gives it up.
  Index finished_tokens() const { return length() - prompt_.tokens; }
  /// `[length]` how deep each token has gone, before or after a step. K/V of one that has gone through all layers will
  /// not be written again.
  std::span<const Depth> depths() const { return depth_; }
  const Aux& aux() const { return aux_; }  ///< the parked rows

 private:
  friend class detail::RunningSequence<Aux>;

  /// What a token of the history was before the running step.
  struct Undo {
    Position position;
    Depth depth;
    Index slot;
  };

  /// A copy of another sequence, whose parked rows `aux` holds.
  Sequence(const Sequence& other, Aux aux)
      : aux_(std::move(aux)),
        depth_(other.depth_),
        parked_at_(other.parked_at_),
        steps_(other.steps_),
        prompt_end_(other.prompt_end_) {}

  static std::size_t checked(Index layers) {
    if (layers < 1 || layers > detail::max_layers) {
      detail::fail("Sequence: layers ", layers, " is out of range 1 to ", detail::max_layers);
    }
    return detail::to_size(layers);
  }

  void check_idle(const char* what) const {
    if (in_step_) {
      detail::fail<logic_error>(what, " called while the sequence is in a running step");
    }
  }

  void check_finished(const char* what) const {
    if (unfinished()) detail::fail<logic_error>("Sequence::", what, " called while a prompt is unfinished");
  }

  void drop_from(Index tokens) {
    if (tokens == 0) steps_ = 0;
    prompt_end_ = std::min(prompt_end_, tokens);
    depth_.resize(detail::to_size(tokens));
    aux_.truncate(tokens);
    count_parked();
  }

  void count_parked() {
    std::ranges::fill(parked_at_, 0);
    for (std::size_t i = 0; i < depth_.size(); ++i) {
      if (aux_.holds(static_cast<Position>(i))) ++parked_at_[detail::to_size(depth_[i])];
    }
  }

  Aux aux_;
  std::vector<Depth> depth_;      // by position
  std::vector<Index> parked_at_;  // by depth: how many tokens are parked there
  std::vector<Undo> undo_;        // of the running step
  detail::UnfinishedPrompt<Aux> prompt_;
  Index steps_ = 0;
  Index prompt_end_ = 0;
  bool in_step_ = false;
};

/// The requirement on the sequences of a `Step`.
template <class S>
concept SequenceOfTokens = ParksRows<typename S::aux_type> && std::same_as<S, Sequence<typename S::aux_type>>;

/// Share of the (token, layer) pairs of the first tokens that have been computed, in [0, 1]; 1 for no tokens. `depths`
/// are those of the tokens, `layers` the model's.
inline double computed_share(std::span<const Depth> depths, Index layers) {
  double computed = 0;
  for (const Depth depth : depths) computed += depth;
  return depths.empty() ? 1 : computed / static_cast<double>(std::ssize(depths) * layers);
}

}  // namespace lazyllm
