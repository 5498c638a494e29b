#pragma once

#include <nlohmann/json.hpp>

#include "bench/examples/llama/model/device_times.hpp"

namespace lazyllm::llama {

/// The figures of a case as `bench/make_tables.py` reads them; of repeated times the medians. `weight_bytes` are those
/// that a decode step reads.
nlohmann::ordered_json report(const DeviceCase& what, const DeviceTimes& times, Index weight_bytes);

}  // namespace lazyllm::llama
