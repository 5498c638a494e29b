#include "bench/evaluate/result_log.hpp"

#include <utility>

#include "examples/llama/base.hpp"

namespace llama {

ResultLog::ResultLog(std::filesystem::path path, const nlohmann::ordered_json& settings)
    : log_(std::move(path), settings, true, [this](const nlohmann::json& line, const std::string& place) {
        auto result = line.get<ItemResult>();
        if (result.runs.empty()) fail(place, ": no runs");
        results_.insert_or_assign(result.id, std::move(result));
      }) {}

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
