#include "examples/calibrate/outcome_log.hpp"

#include <stdexcept>
#include <utility>

#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/checkpoint/model_config.hpp"

namespace llama {
namespace {

using nlohmann::json;

std::string key(const lazyllm::Preset& preset) { return json(preset).dump(); }

}  // namespace

void OutcomeLog::start(const nlohmann::ordered_json& settings, Index prompts, Index layers) {
  log_.start(settings, [&](const json& line) {
    if (line.contains("answers")) {
      written_ = field_of(line, "answers", json::value_t::number_unsigned, "a whole number").get<std::uint64_t>();
      return;
    }
    if (!written_) throw std::runtime_error("an outcome stands before the answers that it compares with");
    constexpr double max_kl = 1e6;  // nats of a position: far above what floats give
    const auto whole = [&](const char* name, Index least, Index most) { return whole_field(line, name, least, most); };
    Outcome outcome;
    outcome.positions = whole("positions", 1, ModelLimits::context);
    outcome.equal = whole("equal", 0, outcome.positions);
    outcome.kl = number_field(line, "kl", -1, max_kl * static_cast<double>(outcome.positions));
    const auto preset = field_of(line, "preset").get<lazyllm::Preset>();
    preset.schedule.check(layers);
    outcomes_[{key(preset), whole("prompt", 0, prompts - 1)}] = {outcome, false};
  });
  unused_ = std::ssize(outcomes_);
}

void OutcomeLog::compare_with(std::uint64_t answers) {
  if (written_.value_or(answers) != answers) {
    reject(log_.path().string(),
           "its outcomes compare with other dense answers than those found now, by another version "
           "of the program or another processor; use those, or another file");
  }
  answers_ = answers;
}

const Outcome* OutcomeLog::find(const lazyllm::Preset& preset, Index prompt) {
  const auto found = outcomes_.find({key(preset), prompt});
  if (found == outcomes_.end()) return nullptr;
  if (!std::exchange(found->second.used, true)) --unused_;
  return &found->second.outcome;
}

void OutcomeLog::add(const lazyllm::Preset& preset, Index prompt, const Outcome& outcome) {
  if (written_ != answers_) {
    log_.append({{"answers", answers_}});
    written_ = answers_;
  }
  log_.append({{"preset", preset},
               {"prompt", prompt},
               {"positions", outcome.positions},
               {"equal", outcome.equal},
               {"kl", outcome.kl}});
  outcomes_[{key(preset), prompt}] = {outcome, true};
}

}  // namespace llama
