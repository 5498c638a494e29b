#include "bench/evaluate/result_log.hpp"

#include <stdexcept>
#include <utility>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {

namespace {

/// The result in a line. Throws `std::runtime_error` that names a field if no run can have given it: what is read goes
/// into means.
ItemResult checked_result(const nlohmann::json& line) {
  constexpr double max_ms = 1e12;
  constexpr double max_operations = 1e30;
  constexpr double max_percent = 1e6;  // of a compressor's K/V against those of a short dense run
  whole_field(line, "prompt_tokens", 1, ModelLimits::context);
  number_field(line, "dense_operations", 0, max_operations);
  for (const nlohmann::json& run : line.at("runs")) {
    number_field(run, "score", 0, 1);
    whole_field(run, "tokens", 1, ModelLimits::context);
    number_field(run, "operations", 0, max_operations);
    for (const char* name : {"ttft_ms", "total_ms"}) number_field(run, name, 0, max_ms);
    for (const char* name : {"computed_percent", "reserved_percent", "filled_percent"}) {
      number_field(run, name, 0, max_percent);
    }
  }
  for (const nlohmann::json& times : line.at("timing")) {
    for (const nlohmann::json& ms : times) number_field({{"timing", ms}}, "timing", 0, max_ms);
  }
  auto result = line.get<ItemResult>();
  if (result.runs.empty()) throw std::runtime_error("no runs");
  const Timing& timing = result.timing;
  for (const auto* list : {&timing.ttft_ms, &timing.dense_total_ms, &timing.total_ms}) {
    if (list->size() != timing.dense_ttft_ms.size()) throw std::runtime_error("lists of times of different lengths");
  }
  return result;
}

}  // namespace

ResultLog::ResultLog(std::filesystem::path path, const nlohmann::ordered_json& settings) : log_(std::move(path), true) {
  log_.start(settings, [this](const nlohmann::json& line) {
    ItemResult result = checked_result(line);
    const std::string id = result.id;
    results_.insert_or_assign(id, std::move(result));
  });
}

const ItemResult* ResultLog::find(const Item& item) const {
  const auto found = results_.find(item.id);
  if (found == results_.end()) return nullptr;
  if (found->second.fingerprint != item.fingerprint) {
    fail(item.place, ": the item ", item.id, " has changed since ", log_.path().string(),
         " was started; use another file");
  }
  return &found->second;
}

}  // namespace llama
