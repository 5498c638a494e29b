#pragma once

#include <nlohmann/json.hpp>

#include "bench/examples/llama/model/ttft_options.hpp"

namespace llama {

/// The figures of one prompt length and one schedule on the CPU, as `bench/make_tables.py` reads them. Throws
/// `std::invalid_argument` for options that only a CUDA device has.
nlohmann::ordered_json run_on_cpu(const TtftOptions& options);

}  // namespace llama
