#pragma once

/// \file
/// Ranks over MPI; link LazyLLM::mpi. A backend is included beside it.

#include "lazyllm/core.hpp"
#include "lazyllm/parallel/mpi.hpp"
