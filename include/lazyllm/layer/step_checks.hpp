#pragma once

#include <concepts>
#include <span>

#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/layer/step_entry.hpp"
#include "lazyllm/layer/step_member.hpp"

/// \file
/// What `Step` refuses before anything has changed.

namespace lazyllm::detail {

/// Throws `invalid_argument` for a `Step::Capacity` with a number out of range, or with rows and no hidden size.
template <class Capacity>
void check_capacity(const Capacity& capacity) {
  constexpr Index most = Index{1} << 48;  // no memory has more
  const auto check = [most](const char* what, Index value, Index least) {
    if (value < least || value > most) {
      fail("Step::reserve: ", what, " ", value, " is out of range ", least, " to ", most);
    }
  };
  check("sequences", capacity.sequences, 0);
  check("tokens", capacity.tokens, 0);
  check("rows", capacity.rows, 0);
  check("layers", capacity.layers, 0);
  check("hidden_size", capacity.hidden_size, capacity.rows > 0 ? 1 : 0);
  if (capacity.rows > 0 && capacity.hidden_size > most / capacity.rows) {
    fail("Step::reserve: hidden_size ", capacity.hidden_size, " is out of range 1 to ", most / capacity.rows, " for ",
         capacity.rows, " rows");
  }
}

/// Throws for entries that lack an object or do not fit each other or the context, and for numbers of new tokens out of
/// range; see `Step::begin`.
template <SequenceOfTokens Sequence, PrunesTokens Pruner>
void check_entries(typename Sequence::context_type& context, std::span<const StepEntry<Sequence, Pruner>> entries) {
  if (entries.empty()) fail("Step::begin: no entries, at least 1 is needed");
  for (Index s = 0; s < std::ssize(entries); ++s) {
    const auto& entry = entries[to_size(s)];
    if (entry.sequence == nullptr) fail_entry(s, "Step::begin: the sequence of entry ", s, " is null");
    if (entry.pruner == nullptr) fail_entry(s, "Step::begin: the pruner of entry ", s, " is null");
    const Sequence& sequence = *entry.sequence;
    if (sequence.layers() == 0) fail<logic_error>("Step::begin: entry ", s, " has a sequence that was moved");
    sequence.aux().check(context);
    const Index min_tokens = sequence.unfinished() ? 0 : 1;
    const Index max_tokens = most_tokens - sequence.length();
    if (entry.new_tokens < min_tokens || entry.new_tokens > max_tokens) {
      fail_entry(s, "Step::begin: entry ", s, " has ", entry.new_tokens, " new tokens, out of range ", min_tokens,
                 " to ", max_tokens);
    }
    const Sequence& first = *entries.front().sequence;
    if (sequence.layers() != first.layers() || sequence.aux().hidden_size() != first.aux().hidden_size()) {
      fail_entry(s, "Step::begin: entry ", s, " has ", sequence.layers(), " layers of hidden size ",
                 sequence.aux().hidden_size(), ", entry 0 has ", first.layers(), " of hidden size ",
                 first.aux().hidden_size());
    }
  }
}

/// Throws `entry_error` for a score that looks at more rows than `block` keeps, where the block says how many.
/// `members` are the running step's.
template <class Block, class Members>
void check_queries(Block& block, const Members& members) {
  if constexpr (requires { block.max_queries(); }) {
    static_assert(std::convertible_to<decltype(block.max_queries()), Index>,
                  "lazyllm: `max_queries()` of the attention block must be a number");
    const auto most = static_cast<Index>(block.max_queries());
    for (Index entry = 0; const auto& member : members) {
      const Index last_queries = member.score.last_queries;
      if (last_queries > most && member.running.running()) {
        fail_entry(entry, "Step::advance: last_queries ", last_queries, " of the score of entry ", entry,
                   " is out of range 1 to ", most, ", the queries that the attention block keeps");
      }
      ++entry;
    }
  }
}

}  // namespace lazyllm::detail
