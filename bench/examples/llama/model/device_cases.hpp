#pragma once

#include <nlohmann/json.hpp>

#include "bench/examples/llama/model/device_report.hpp"
#include "bench/examples/llama/model/ttft_options.hpp"

namespace llama {

/// The figures of every prompt length with every batch size and every schedule on a CUDA device; see `measure_cases`.
/// Throws `std::invalid_argument` for options that only the CPU has.
nlohmann::ordered_json run_on_device(const TtftOptions& options, const SaveCases& save);

}  // namespace llama
