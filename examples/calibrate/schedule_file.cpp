#include "examples/calibrate/schedule_file.hpp"

#include <cmath>

namespace llama {
namespace {

using Json = nlohmann::ordered_json;

/// Six decimals, so that people can read the file.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

Json to_json(const Candidate& candidate) {
  Json json = candidate.preset;
  const Agreement& agreement = candidate.agreement;
  json["measured"] = {{"loss", rounded(agreement.loss)}, {"first_token_match", rounded(agreement.first_token_match)},
                      {"kl", rounded(agreement.kl)},     {"ideal_ttft_speedup", rounded(candidate.ideal_speedup)},
                      {"prompts", agreement.prompts},    {"tokens", agreement.tokens}};
  for (const auto& [category, loss] : agreement.category_loss) {
    if (!category.empty()) json["measured"]["category_loss"][category] = rounded(loss);
  }
  return json;
}

}  // namespace

Json schedule_file(const std::string& model, Index layers, const std::vector<NamedPreset>& presets,
                   const std::vector<Candidate>& front) {
  Json file = {{"format", 1}, {"model", model}, {"layers", layers}, {"default", presets.at(0).name}};
  for (const NamedPreset& preset : presets) {
    file["presets"][preset.name] = to_json(preset.candidate);
    file["presets"][preset.name]["measured"]["ttft_speedup"] = rounded(preset.ttft_speedup);
  }
  file["front"] = Json::array();
  for (const Candidate& candidate : front) file["front"].push_back(to_json(candidate));
  return file;
}

}  // namespace llama
