#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "bench/evaluate/filters.hpp"
#include "examples/llama/program/pruning_options.hpp"

namespace llama {

/// What is compared: dense inference and the ways to do less of it.
enum class Method {
  dense,
  lazy,            ///< the library, with any schedule
  static_pruning,  ///< the library, pruning in the prompt's step only and reviving nothing
  random_drop,     ///< random tokens of the prompt go before the model sees it
  compress         ///< so do the tokens that tell least, by a language model (Selective Context)
};

struct MethodOptions {
  Method method = Method::lazy;
  PruningOptions pruning;  ///< its protection holds for the filters too
  double keep = 0.4;       ///< share of the prompt that the filters keep
  std::uint64_t seed = 1;  ///< of the first run of random_drop, the next runs count up from it
  Index seeds = 5;         ///< runs of random_drop for each item
  std::string compressor;  ///< path of the language model of compress; empty: the model itself

  bool uses_library() const { return method == Method::lazy || method == Method::static_pruning; }
  bool is_filter() const { return method == Method::random_drop || method == Method::compress; }
  Index runs() const { return method == Method::random_drop ? seeds : 1; }
};

/// The method called `name`: dense, lazy, static, random-drop or compress. Throws `std::invalid_argument`.
Method parse_method(const std::string& name);
std::string name_of(Method method);

/// The same options for a model of `layers` layers without anything left open: a preset's values in place of its name,
/// defaults in place of what is absent, and for static_pruning a schedule that says so. `widths` are the model's, for a
/// recommended preset.
/// Throws `std::invalid_argument` for what is out of range or does not go with the method.
MethodOptions resolve(MethodOptions options, Index layers, const lazyllm::LayerWidths& widths = {});

/// What the filters keep, of resolved options. `bos` says whether the prompts start with the token that starts a text,
/// which no filter may drop: without it models break for a reason that has nothing to do with the filter.
FilterOptions filter_options(const MethodOptions& options, bool bos);

/// The resolved options that the method depends on, and no others.
nlohmann::ordered_json to_json(const MethodOptions& options);

}  // namespace llama
