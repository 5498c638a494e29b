#pragma once

#include <cstdint>
#include <span>

#include "lazyllm/check/check_report.hpp"
#include "lazyllm/check/check_run.hpp"
#include "lazyllm/check/engine_checks.hpp"

/// \file
/// A check of an engine's blocks, to be run in the engine's own tests.

namespace lazyllm {

/// Checks an engine's blocks with a prompt of at least 16 tokens more than `decode_steps`: what an engine must do for a
/// pruned run to be right, and what its own dense run cannot show, such as a wrong scale or order of heads in what it
/// gives to be scored. `make(sequences, tokens)` returns a `CheckedEngine` with K/V for that many sequences of that
/// many tokens. Throws `invalid_argument` for options out of range; what the engine throws fails the check that met it.
template <Backend Context, class Make>
CheckReport check_engine(Context& context, const Make& make, std::span<const std::int32_t> prompt,
                         const CheckOptions& options = {}) {
  return detail::EngineChecks<Context, Make>(context, make, prompt, options).report();
}

}  // namespace lazyllm
