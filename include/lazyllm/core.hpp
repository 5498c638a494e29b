#pragma once

/// \namespace lazyllm
/// Dynamic token pruning for transformer engines (LazyLLM, arXiv 2407.14057).
/// \namespace lazyllm::cpu
/// The backend on the CPU.
/// \namespace lazyllm::cuda
/// The backend on CUDA devices.

/// \file
/// What the CPU and the CUDA backend share: the control plane, without Eigen and without CUDA.

#include "lazyllm/aux_cache/aux_cache.hpp"
#include "lazyllm/aux_cache/sequence.hpp"
#include "lazyllm/aux_cache/storage.hpp"
#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/concepts.hpp"
#include "lazyllm/engine/contiguous_keys.hpp"
#include "lazyllm/engine/dense_plan.hpp"
#include "lazyllm/engine/element.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/layer_plan.hpp"
#include "lazyllm/engine/paged_keys.hpp"
#include "lazyllm/engine/positions.hpp"
#include "lazyllm/engine/queries.hpp"
#include "lazyllm/engine/rows.hpp"
#include "lazyllm/layer/lazy_decoder_layer.hpp"
#include "lazyllm/layer/step.hpp"
#include "lazyllm/layer/step_entry.hpp"
#include "lazyllm/layer/step_output.hpp"
#include "lazyllm/layer/step_stats.hpp"
#include "lazyllm/parallel/ranks.hpp"
#include "lazyllm/parallel/score_of_ranks.hpp"
#include "lazyllm/policy/continuations.hpp"
#include "lazyllm/policy/policies.hpp"
#include "lazyllm/policy/schedule.hpp"
#include "lazyllm/policy/selection.hpp"
#include "lazyllm/policy/wrappers.hpp"
#include "lazyllm/pruner/preset.hpp"
#include "lazyllm/pruner/recommended.hpp"
#include "lazyllm/pruner/text.hpp"
#include "lazyllm/pruner/token_pruner.hpp"
#include "lazyllm/score/attention_score.hpp"
#include "lazyllm/score/token_score.hpp"
#include "lazyllm/version.hpp"
