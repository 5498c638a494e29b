#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// What followed a sequence's last tokens where they stood before. A model that copies (a label of the prompt's
/// examples, a name in code) looks there for its next token: induction heads, arXiv 2209.11895. Scores of earlier
/// tokens cannot know it, so a prompt's pruning drops these places; `KeepComputed` revives some of them.
///
/// One object for each sequence, beside it: it holds the token ids, which the library does not see. An engine that
/// keeps them itself gives all of them each time, `find(0, tokens)`. It must do so once after `append_computed`,
/// `append_shared`, `restore` and `erase`, which change a sequence's tokens without this object. Copy it for `fork`.
class Continuations {
 public:
  /// A token id.
  using Token = std::int32_t;

  static constexpr Index most = 32;    ///< that are found
  static constexpr Index longest = 8;  ///< longer matches count as this many tokens

  /// Takes `tokens` as those of a step that begins at position `length`, the sequence's length then; tokens from there
  /// on, of a step that failed, are forgotten. The positions of at most `most` tokens that followed an earlier place
  /// with the same last tokens: the longest match first, of equal ones the latest. Valid until the next call. Reads all
  /// token ids once. Throws `invalid_argument` for a `length` outside 0 to the number of tokens so far.
  std::span<const Position> find(Index length, std::span<const Token> tokens) {
    if (length < 0 || length > std::ssize(tokens_)) {
      detail::fail("Continuations::find: length ", length, " is out of range 0 to ", tokens_.size(),
                   ", the tokens seen so far; give all of a sequence's tokens with length 0");
    }
    tokens_.resize(detail::to_size(length));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    found_.clear();
    positions_.clear();
    for (Index end = std::ssize(tokens_) - 1; end > 0; --end) {  // the match ends before it
      if (tokens_[detail::to_size(end - 1)] != tokens_.back()) continue;
      const Index match = match_before(end);
      if (std::ssize(found_) == most && found_.back().match >= match) continue;
      const auto place = std::ranges::find_if(found_, [match](const Found& other) { return other.match < match; });
      found_.insert(place, {match, static_cast<Position>(end)});
      if (std::ssize(found_) > most) found_.pop_back();
    }
    for (const Found& place : found_) positions_.push_back(place.position);
    return positions_;
  }

 private:
  struct Found {
    Index match = 0;  // tokens
    Position position = 0;
  };

  /// How many tokens before `end` are those before the sequence's end.
  Index match_before(Index end) const {
    Index match = 1;
    const auto token = [this](Index index) { return tokens_[detail::to_size(index)]; };
    while (match < std::min(longest, end) && token(end - 1 - match) == token(std::ssize(tokens_) - 1 - match)) ++match;
    return match;
  }

  std::vector<Token> tokens_;
  std::vector<Found> found_;
  std::vector<Position> positions_;
};

}  // namespace lazyllm
