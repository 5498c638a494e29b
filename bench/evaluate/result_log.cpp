#include "bench/evaluate/result_log.hpp"

#include <fmt/format.h>

#include <iterator>
#include <stdexcept>
#include <utility>

#include "bench/evaluate/metrics.hpp"
#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/checkpoint/model_config.hpp"
#include "examples/llama/program/counted.hpp"

namespace llama {

namespace {

using Type = nlohmann::json::value_t;

/// Throws unless the data set is one of those that are evaluated, and the one that the item's id starts with.
void check_dataset(const nlohmann::json& line) {
  const auto& id = field_of(line, "id", Type::string, "a text").get_ref<const std::string&>();
  const auto& dataset = field_of(line, "dataset", Type::string, "a text").get_ref<const std::string&>();
  category(dataset);
  if (!id.starts_with(dataset + "/")) {
    throw std::runtime_error(
        fmt::format("field \"dataset\" is {}, which does not go with \"id\" {}", shown(dataset), shown(id)));
  }
}

/// The result in a line. Throws an exception that names a field if no item of `runs` runs can have given it: what is
/// read goes into means.
ItemResult checked_result(const nlohmann::json& line, Index runs) {
  constexpr double max_ms = 1e12;
  constexpr double max_operations = 1e30;
  constexpr double max_percent = 1e6;  // of a compressor's K/V against those of a short dense run
  check_dataset(line);
  field_of(line, "fingerprint", Type::number_unsigned, "a whole number of at least 0");
  whole_field(line, "prompt_tokens", 1, ModelLimits::context);
  number_field(line, "dense_operations", 0, max_operations);
  const nlohmann::json& list_of_runs = field_of(line, "runs", Type::array, "a list");
  if (std::ssize(list_of_runs) != runs) {
    throw std::runtime_error(
        fmt::format("field \"runs\" has {}, expected {}", counted(list_of_runs.size(), "run"), runs));
  }
  for (const nlohmann::json& run : list_of_runs) {
    field_of(run, "prediction", Type::string, "a text");
    number_field(run, "score", 0, 1);
    whole_field(run, "tokens", 1, ModelLimits::context);
    number_field(run, "operations", 0, max_operations);
    for (const char* name : {"ttft_ms", "total_ms"}) number_field(run, name, 0, max_ms);
    for (const char* name : {"computed_percent", "reserved_percent", "filled_percent"}) {
      number_field(run, name, 0, max_percent);
    }
  }
  const nlohmann::json& timing_lists = field_of(line, "timing", Type::object, "an object");
  for (const char* name : {"dense_ttft_ms", "ttft_ms", "dense_total_ms", "total_ms"}) {
    for (const nlohmann::json& ms : field_of(timing_lists, name, Type::array, "a list")) {
      number_field({{name, ms}}, name, 0, max_ms);
    }
  }
  auto result = line.get<ItemResult>();
  const Timing& timing = result.timing;
  for (const auto* list : {&timing.ttft_ms, &timing.dense_total_ms, &timing.total_ms}) {
    if (list->size() != timing.dense_ttft_ms.size()) throw std::runtime_error("lists of times of different lengths");
  }
  return result;
}

}  // namespace

ResultLog::ResultLog(std::filesystem::path path, const nlohmann::ordered_json& settings, Index runs)
    : log_(std::move(path), true) {
  log_.start(settings, [&](const nlohmann::json& line) {
    ItemResult result = checked_result(line, runs);
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
