#pragma once

#include <lazyllm/core.hpp>

#include "examples/llama/base.hpp"

/// \file
/// The library for code of the host that does not ask for a backend, and the names for numbers and matrices that the
/// host's own signatures share with it. All else of the library is written `lazyllm::…`.

namespace llama {

using lazyllm::Position;
using lazyllm::Positions;
using lazyllm::RowsView;

}  // namespace llama
