#pragma once

/// \file
/// The library with its CPU backend.

#include "lazyllm/aux_cache/aux_cache.hpp"
#include "lazyllm/aux_cache/storage.hpp"
#include "lazyllm/backend/cpu/context.hpp"
#include "lazyllm/backend/cpu/rows.hpp"
#include "lazyllm/backend/cpu/score.hpp"
#include "lazyllm/backend/cpu/select.hpp"
#include "lazyllm/concepts.hpp"
#include "lazyllm/core/host_device.hpp"
#include "lazyllm/core/layer_plan.hpp"
#include "lazyllm/core/positions.hpp"
#include "lazyllm/core/rows.hpp"
#include "lazyllm/core/sequence.hpp"
#include "lazyllm/core/stats.hpp"
#include "lazyllm/error.hpp"
#include "lazyllm/importance/attention_score.hpp"
#include "lazyllm/importance/queries.hpp"
#include "lazyllm/kv/contiguous_keys.hpp"
#include "lazyllm/kv/paged_keys.hpp"
#include "lazyllm/layer/lazy_decoder_layer.hpp"
#include "lazyllm/layer/step.hpp"
#include "lazyllm/policy/policies.hpp"
#include "lazyllm/policy/preset.hpp"
#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/policy/wrappers.hpp"
#include "lazyllm/pruner/token_pruner.hpp"
#include "lazyllm/version.hpp"

namespace lazyllm::cpu {

template <class T>
using DenseStorage = lazyllm::DenseStorage<Context, T>;

template <class T>
using PooledStorage = lazyllm::PooledStorage<Context, T>;

/// A sequence on the CPU with hidden states of type T.
template <class T, template <class> class Storage = DenseStorage>
using Sequence = lazyllm::Sequence<AuxCache<Storage<T>>>;

}  // namespace lazyllm::cpu
