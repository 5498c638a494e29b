#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "bench/examples/llama/model/device_times.hpp"

namespace llama {

/// The figures of a case as `bench/make_tables.py` reads them; of repeated times the medians. `weight_bytes` are those
/// that a decode step reads.
nlohmann::ordered_json report(const DeviceCase& what, const DeviceTimes& times, Index weight_bytes);

/// Saves the figures of all cases, those that are not measured yet among them.
using SaveCases = std::function<void(const nlohmann::ordered_json&)>;

/// Adds the figures of `measure(i)` to each `cases[i]` while `time_left()`. A case for which there is no time or no
/// memory says so. `save` gets all cases before the first and after each, so that a program that is stopped has saved
/// what it had measured, and what it had not. Passes other errors of `measure` on.
nlohmann::ordered_json measure_cases(nlohmann::ordered_json cases, const std::function<bool()>& time_left,
                                     const std::function<nlohmann::ordered_json(std::size_t)>& measure,
                                     const SaveCases& save);

}  // namespace llama
