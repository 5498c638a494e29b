#pragma once

/// \file
/// The library with its CUDA backend, for compilers of CUDA C++. Needs no Eigen, and nothing of the CPU backend.

#include "lazyllm/backend/cuda/rows.cuh"
#include "lazyllm/backend/cuda/score.cuh"
#include "lazyllm/backend/cuda/select.cuh"
#include "lazyllm/backend/cuda/select_ahead.cuh"
#include "lazyllm/cuda_context.hpp"

namespace lazyllm::cuda {

/// Parked rows of one sequence; see `lazyllm::OwnStorage`.
template <class T>
using OwnStorage = lazyllm::OwnStorage<Context, T>;

/// Parked rows of many sequences; see `lazyllm::PooledStorage`.
template <class T>
using PooledStorage = lazyllm::PooledStorage<Context, T>;

/// Parked rows of one sequence in pinned host memory, for contexts so long that the device's is scarce: rows are parked
/// and revived over the bus.
template <class T>
using PinnedStorage = lazyllm::OwnStorage<Context, T, Context::PinnedBuffer<T>>;

/// A sequence on the device with hidden states of type T.
template <class T, template <class> class Storage = OwnStorage>
using Sequence = lazyllm::Sequence<AuxCache<Storage<T>>>;

}  // namespace lazyllm::cuda
