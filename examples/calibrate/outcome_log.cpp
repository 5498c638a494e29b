#include "examples/calibrate/outcome_log.hpp"

#include <stdexcept>

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
      if (answers_ || line.size() != 1) throw std::runtime_error("\"answers\" stands once, in a line of its own");
      answers_ = field_of(line, "answers", json::value_t::number_unsigned, "a whole number").get<std::uint64_t>();
      return;
    }
    if (!answers_) throw std::runtime_error("an outcome stands before the answers that it compares with");
    constexpr double max_kl = 1e6;  // nats of a position: far above what floats give
    const auto whole = [&](const char* name, Index least, Index most) { return whole_field(line, name, least, most); };
    Outcome outcome;
    outcome.positions = whole("positions", 1, ModelLimits::context);
    outcome.equal = whole("equal", 0, outcome.positions);
    outcome.kl = number_field(line, "kl", -1, max_kl * static_cast<double>(outcome.positions));
    const auto preset = field_of(line, "preset").get<lazyllm::Preset>();
    preset.schedule.check(layers);
    outcomes_[{key(preset), whole("prompt", 0, prompts - 1)}] = outcome;
  });
}

void OutcomeLog::compare_with(std::uint64_t answers) {
  if (!answers_) {
    log_.before_next({{"answers", answers}});
  } else if (*answers_ != answers) {
    reject(log_.path().string(),
           "was written with other dense answers than this program has here: resume with the same version "
           "of the program on the same kind of processor, or use another file");
  }
}

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
