#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "bench/evaluate/item.hpp"

namespace llama {

/// Most tokens that an answer may be said to have.
inline constexpr Index max_answer_tokens = Index{1} << 20;

/// Which data to read, and what its lines may leave open.
struct DataOptions {
  std::filesystem::path data;           ///< a JSONL file, or a folder of *.jsonl
  std::filesystem::path prompts;        ///< LongBench's dataset2prompt.json; empty: all lines hold a rendered `prompt`
  std::filesystem::path lengths;        ///< LongBench's dataset2maxlen.json; empty: none
  std::optional<Index> max_tokens;      ///< for lines and data sets without a length of their own
  std::optional<Index> longest_answer;  ///< no answer has more tokens, whatever its length; absent: any
  std::optional<Index> limit;           ///< at most so many items of each data set; absent: all
};

struct Data {
  std::vector<Item> items;  ///< in the order of the files' names and their lines
  std::vector<BadLine> bad_lines;
};

/// Reads data sets: JSON objects, one to a line, either of LongBench (`input`, `context`, `answers`, `all_classes`,
/// `dataset`) or with a rendered `prompt`. `answers` is an array of texts, one text, or a text that holds such an
/// array. A line without `dataset` belongs to the one that its file is named after. The length of an answer is the
/// line's `max_tokens`, else the data set's in `lengths`, else `max_tokens`; at most `longest_answer`.
///
/// A line that cannot be used is among `bad_lines`; a blank one is passed over. Throws `file_error` when a
/// file cannot be read, and `checkpoint_error`, which is one, when a configuration file is damaged.
Data read_data(const DataOptions& options);

}  // namespace llama
