#include "examples/llama/calibrate/outcome_log.hpp"

#include <fmt/format.h>

#include <iterator>
#include <span>
#include <string_view>

#include "examples/llama/checkpoint/json.hpp"

namespace lazyllm::llama {
namespace {

using Json = nlohmann::json;

std::string key(const Preset& preset) { return Json(preset).dump(); }

}  // namespace

OutcomeLog::OutcomeLog(std::filesystem::path path, const Json& settings, bool resume) : path_(std::move(path)) {
  std::string text;
  const bool is_there = std::filesystem::exists(path_);
  if (is_there && !std::filesystem::is_regular_file(path_)) detail::fail(path_.string(), " is not a regular file");
  if (resume && is_there) {
    std::ifstream file(path_, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file) detail::fail("the file ", path_.string(), " cannot be read");
    text.resize(text.rfind('\n') + 1);  // nothing if there is none
    read(text, settings);
    std::filesystem::resize_file(path_, text.size());
  }
  stream_.open(path_, std::ios::binary | (text.empty() ? std::ios::trunc : std::ios::app));
  if (!stream_) detail::fail("the file ", path_.string(), " cannot be written");
  if (text.empty()) write({{"settings", settings}});
}

void OutcomeLog::read(const std::string& text, const Json& settings) {
  Index number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path_.string(), ++number);
    begin = end + 1;
    try {
      const Json json = parse_json(std::as_bytes(std::span(line)), place);
      if (number == 1) {
        if (json.at("settings") != settings) {
          detail::fail("the file ", path_.string(), " was made with other settings: ", shown(json.at("settings")),
                       ", now ", shown(settings), "; run without --resume to start it anew");
        }
        continue;
      }
      const Outcome outcome{json.at("positions"), json.at("mismatches"), json.at("first_match"), json.at("kl")};
      if (outcome.positions < 1 || outcome.mismatches < 0 || outcome.mismatches > outcome.positions) {
        detail::fail(place, ": ", outcome.mismatches, " mismatches at ", outcome.positions,
                     " positions are out of range");
      }
      outcomes_[{key(json.at("preset").get<Preset>()), json.at("prompt").get<Index>()}] = outcome;
    } catch (const Json::exception& error) {
      detail::fail(place, " does not hold an outcome of lazyllm-calibrate: ", error.what());
    }
  }
}

const Outcome* OutcomeLog::find(const Preset& preset, Index prompt) const {
  const auto found = outcomes_.find({key(preset), prompt});
  return found == outcomes_.end() ? nullptr : &found->second;
}

void OutcomeLog::add(const Preset& preset, Index prompt, const Outcome& outcome) {
  write({{"preset", preset},
         {"prompt", prompt},
         {"positions", outcome.positions},
         {"mismatches", outcome.mismatches},
         {"first_match", outcome.first_match},
         {"kl", outcome.kl}});
  outcomes_[{key(preset), prompt}] = outcome;
}

void OutcomeLog::write(const Json& line) {
  // Paths need not be UTF-8, but JSON must.
  stream_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  if (!stream_) detail::fail("the file ", path_.string(), " cannot be written");
}

}  // namespace lazyllm::llama
