#include "examples/calibrate/outcome_log.hpp"

namespace llama {
namespace {

using Json = nlohmann::json;

std::string key(const lazyllm::Preset& preset) { return Json(preset).dump(); }

}  // namespace

OutcomeLog::OutcomeLog(std::filesystem::path path, const nlohmann::ordered_json& settings, bool resume)
    : log_(std::move(path), settings, resume, [this](const Json& line, const std::string& place) {
        const Outcome outcome{line.at("positions"), line.at("equal"), line.at("kl")};
        if (outcome.positions < 1 || outcome.equal < 0 || outcome.equal > outcome.positions) {
          fail(place, ": ", outcome.equal, " equal tokens of ", outcome.positions, " are out of range");
        }
        outcomes_[{key(line.at("preset").get<lazyllm::Preset>()), line.at("prompt").get<Index>()}] = outcome;
      }) {}

const Outcome* OutcomeLog::find(const lazyllm::Preset& preset, Index prompt) const {
  const auto found = outcomes_.find({key(preset), prompt});
  return found == outcomes_.end() ? nullptr : &found->second;
}

void OutcomeLog::add(const lazyllm::Preset& preset, Index prompt, const Outcome& outcome) {
  log_.append({{"preset", preset},
               {"prompt", prompt},
               {"positions", outcome.positions},
               {"equal", outcome.equal},
               {"kl", outcome.kl}});
  outcomes_[{key(preset), prompt}] = outcome;
}

}  // namespace llama
