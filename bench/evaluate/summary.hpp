#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/evaluate/result.hpp"

namespace llama {

/// Speed of the timed items of a group, as the sum over them of each one's median.
struct Speed {
  double dense_ttft_ms = 0;  ///< mean of an item
  double ttft_ms = 0;        ///< mean of an item
  double ttft_speedup = 1;
  double generation_speedup = 1;  ///< prompt and answer, of as many tokens as both runs have generated
};

/// Figures of a data set, or their mean over the data sets of a category, or that over all categories.
struct Group {
  std::string name;
  Index items = 0;
  double score = 0;                  ///< in [0, 100]
  std::vector<double> score_by_run;  ///< the same for each run: random_drop has one for each seed
  double prompt_tokens = 0;          ///< mean
  double generated_tokens = 0;       ///< mean
  double computed_percent = 0;       ///< mean, of the prompt's (token, layer) pairs
  double ideal_ttft_speedup = 1;     ///< by operation count, all items together
  double reserved_percent = 0;       ///< mean of the peak of K/V and parked rows, against the dense run's K/V
  double filled_percent = 0;         ///< the same counting only K/V that were computed
  Index timed_items = 0;
  std::optional<Speed> speed;  ///< absent if no item was timed
};

struct CategorySummary {
  Group mean;
  std::vector<Group> datasets;
};

/// What a whole evaluation found.
struct Summary {
  Group overall;                            ///< the mean of the categories
  std::vector<CategorySummary> categories;  ///< in LongBench's order
};

/// Throws `std::invalid_argument` if there is no result.
Summary summarize(std::span<const ItemResult> results);

/// The summary as a table for people, with units.
std::string table(const Summary& summary);

nlohmann::ordered_json to_json(const Summary& summary);

}  // namespace llama
