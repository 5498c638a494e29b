#pragma once

#include <vector>

#include "lazyllm/engine/positions.hpp"

namespace lazyllm::test {

/// What a sequence is: to be compared with itself later, or with another one.
template <class T>
struct SequenceState {
  std::vector<Depth> depths;
  Index steps;
  Index prompt_end;
  bool unfinished;
  Index parked_rows;
  std::vector<std::vector<T>> rows;  // by position, empty for those without a parked row

  bool operator==(const SequenceState&) const = default;
};

/// The present state of a sequence in host memory.
template <class Sequence>
SequenceState<typename Sequence::value_type> state_of(const Sequence& sequence) {
  SequenceState<typename Sequence::value_type> state{{sequence.depths().begin(), sequence.depths().end()},
                                                     sequence.steps(),
                                                     sequence.prompt_end(),
                                                     sequence.unfinished(),
                                                     sequence.aux().parked_rows(),
                                                     {}};
  const auto& aux = sequence.aux();
  for (Position p = 0; p < sequence.length(); ++p) {
    auto& row = state.rows.emplace_back();
    if (aux.holds(p)) row.assign(aux.rows().row(aux.slot(p)), aux.rows().row(aux.slot(p)) + aux.hidden_size());
  }
  return state;
}

}  // namespace lazyllm::test
