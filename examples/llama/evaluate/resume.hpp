#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/llama/evaluate/item.hpp"
#include "examples/llama/evaluate/result.hpp"

namespace lazyllm::llama {

/// Keeps the results of finished items, so that an interrupted evaluation goes on where it stopped: a file of JSON
/// lines, the settings first, then one line for each item as it is finished.
class ResumeFile {
 public:
  /// Reads `path` and opens it to go on, or starts it. A last line that was cut off in the middle is dropped. Throws
  /// `lazyllm::invalid_argument`, with the file as it was, if it cannot be read or written, is something else, or was
  /// started with other settings, which the message names.
  ResumeFile(std::filesystem::path path, const nlohmann::ordered_json& settings);

  /// The result of `item` from an earlier start, or null. Throws `lazyllm::invalid_argument` if the item has changed
  /// since.
  const ItemResult* find(const Item& item) const;

  /// Keeps one more. Throws `lazyllm::invalid_argument` if it cannot be written.
  void append(const ItemResult& result);

  std::size_t size() const { return results_.size(); }  ///< results from earlier starts

 private:
  void write(const std::string& line);

  std::filesystem::path path_;
  std::map<std::string, ItemResult> results_;
  std::ofstream stream_;
};

}  // namespace lazyllm::llama
