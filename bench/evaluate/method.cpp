#include "bench/evaluate/method.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace llama {

namespace {

constexpr std::pair<const char*, Method> names[] = {{"dense", Method::dense},
                                                    {"lazy", Method::lazy},
                                                    {"static", Method::static_pruning},
                                                    {"random-drop", Method::random_drop},
                                                    {"compress", Method::compress}};

}  // namespace

Method parse_method(const std::string& name) {
  for (const auto& [known, method] : names) {
    if (name == known) return method;
  }
  fail("method '", name, "' is not one of dense, lazy, static, random-drop and compress");
}

std::string name_of(Method method) {
  return std::ranges::find(names, method, [](const auto& entry) { return entry.second; })->first;
}

MethodOptions resolve(MethodOptions options, Index layers, const lazyllm::LayerWidths& widths) {
  if (options.seeds < 1) fail("seeds ", options.seeds, " is out of range, at least 1");
  if (!(options.keep > 0 && options.keep <= 1)) fail("keep ", options.keep, " is out of range (0, 1]");
  PruningOptions& pruning = options.pruning;
  pruning = resolved(std::move(pruning), layers, widths);
  if (options.method == Method::static_pruning && !pruning.schedule.starts_with("static@")) {
    if (pruning.schedule == "paper" || pruning.schedule == "dense" || pruning.schedule.find('@') != std::string::npos) {
      fail("--method static needs --schedule LAYER:KEEP,... or a preset, for example 3:0.5, not '", pruning.schedule,
           "'");
    }
    pruning.schedule = "static@" + pruning.schedule;
  }
  if (options.uses_library()) make_pruner(pruning, layers);  // throws for what is wrong
  return options;
}

FilterOptions filter_options(const MethodOptions& options, bool bos) {
  return {options.keep, std::max<Index>(options.pruning.protect_first.value(), bos ? 1 : 0),
          options.pruning.protect_last.value()};
}

nlohmann::ordered_json to_json(const MethodOptions& options) {
  nlohmann::ordered_json json = {{"method", name_of(options.method)}};
  if (options.uses_library()) {
    json.update(to_json(options.pruning));
  }
  if (options.is_filter()) {
    json["keep"] = options.keep;
    json["protect_first"] = options.pruning.protect_first.value();
    json["protect_last"] = options.pruning.protect_last.value();
  }
  if (options.method == Method::random_drop) {
    json["seed"] = options.seed;
    json["seeds"] = options.seeds;
  }
  if (options.method == Method::compress) json["compressor"] = options.compressor;
  return json;
}

}  // namespace llama
