#pragma once

#include <tuple>
#include <type_traits>
#include <vector>

#include "examples/llama/base.hpp"

namespace llama {

/// Calls each of `runs` in turn, for example a dense and a pruned run, `repeats` times: so a machine whose speed drifts
/// treats all alike. Gives the results of each, in order.
template <class... Runs>
std::tuple<std::vector<std::invoke_result_t<const Runs&>>...> interleaved(Index repeats, const Runs&... runs) {
  std::tuple<std::vector<std::invoke_result_t<const Runs&>>...> results;
  for (Index i = 0; i < repeats; ++i) {
    std::apply([&](auto&... of) { (of.push_back(runs()), ...); }, results);
  }
  return results;
}

}  // namespace llama
