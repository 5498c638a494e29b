#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/evaluate/item.hpp"
#include "bench/evaluate/result.hpp"
#include "examples/llama/program/resumable_log.hpp"

namespace llama {

/// Results of finished items on disk, see `ResumableLog`.
class ResultLog {
 public:
  /// Goes on from the file if it is there. Each item has `runs` runs. Throws as `ResumableLog`, and `file_error` for a
  /// result that no such item can have.
  ResultLog(std::filesystem::path path, const nlohmann::ordered_json& settings, Index runs);

  /// The result of `item` from an earlier start, or null. Throws `std::invalid_argument` if the item has changed
  /// since.
  const ItemResult* find(const Item& item) const;

  /// Keeps one more. Throws `file_error` if it cannot be written.
  void add(const ItemResult& result) { log_.append(nlohmann::json(result)); }

  std::size_t size() const { return results_.size(); }  ///< results from earlier starts

 private:
  std::map<std::string, ItemResult> results_;
  ResumableLog log_;
};

}  // namespace llama
