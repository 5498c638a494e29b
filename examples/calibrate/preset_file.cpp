#include "examples/calibrate/preset_file.hpp"

#include <cmath>

namespace llama {
namespace {

using Json = nlohmann::ordered_json;

/// Six decimals, so that people can read the file.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

Json to_json(const Agreement& agreement) {
  const auto interval = [](const Interval& of) { return Json{rounded(of.low), rounded(of.high)}; };
  return {{"kl", rounded(agreement.kl)},     {"kl_95%", interval(agreement.kl_interval)},
          {"top1", rounded(agreement.top1)}, {"top1_95%", interval(agreement.top1_interval)},
          {"prompts", agreement.prompts},    {"tokens", agreement.tokens}};
}

Json to_json(const Conditions& conditions) {
  Json json = {{"prompt_tokens", conditions.prompt_tokens}, {"chat", conditions.chat}, {"dtype", conditions.dtype}};
  if (conditions.int8) json["weights"] = "int8";
  if (!conditions.follow_up.empty()) json["follow_up"] = conditions.follow_up;
  return json;
}

}  // namespace

Json preset_file(const std::string& model, Index layers, const std::vector<NamedPreset>& presets,
                 const Conditions& conditions) {
  Json file = {{"format", 1}, {"model", model}, {"layers", layers}, {"default", presets.at(0).name}};
  for (const auto& [name, candidate, held_out, ttft_speedup] : presets) {
    Json& preset = file["presets"][name] = candidate.preset;
    preset["measured"] = {{"ideal_ttft_speedup", rounded(candidate.ideal_speedup)},
                          {"ttft_speedup", rounded(ttft_speedup)},
                          {"held_out", to_json(held_out)},
                          {"searched", to_json(candidate.agreement)},
                          {"with", to_json(conditions)}};
  }
  return file;
}

}  // namespace llama
