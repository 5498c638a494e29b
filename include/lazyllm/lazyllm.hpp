#pragma once

/// \file
/// The library with its CPU backend.

#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/cpu/rows.hpp"
#include "lazyllm/backend/cpu/score.hpp"
#include "lazyllm/backend/cpu/select.hpp"
#include "lazyllm/core.hpp"

namespace lazyllm::cpu {

/// Parked rows of one sequence; see `lazyllm::OwnStorage`.
template <class T>
using OwnStorage = lazyllm::OwnStorage<Context, T>;

/// Parked rows of many sequences; see `lazyllm::PooledStorage`.
template <class T>
using PooledStorage = lazyllm::PooledStorage<Context, T>;

/// A sequence on the CPU with hidden states of type T.
template <class T, template <class> class Storage = OwnStorage>
using Sequence = lazyllm::Sequence<AuxCache<Storage<T>>>;

}  // namespace lazyllm::cpu
