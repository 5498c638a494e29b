#include "examples/llama/tokenizer/json.hpp"

#include <fmt/format.h>

#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& file) {
  if (const std::string reason = zero_byte_in(text); !reason.empty())
    throw tokenizer_error(fmt::format("{}: not valid JSON: {}", file, reason));
  constexpr int deepest = 64;
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    if (depth > deepest) throw tokenizer_error(fmt::format("{}: nested deeper than {} levels", file, deepest));
    return true;
  };
  try {
    return nlohmann::json::parse(text, check_depth);
  } catch (const nlohmann::json::exception& error) {
    throw tokenizer_error(fmt::format("{}: not valid JSON: {}", file, plain_reason(error)));
  }
}

const nlohmann::json& member(const nlohmann::json& section, std::string_view name) {
  if (!section.is_object())
    throw tokenizer_error(fmt::format("{} stands where an object with {} is needed", shown(section), shown(name)));
  const auto found = section.find(name);
  if (found == section.end()) throw tokenizer_error(fmt::format("a section lacks {}", shown(name)));
  return *found;
}

std::string string_member(const nlohmann::json& section, const char* name) {
  const auto found = section.find(name);
  if (found == section.end() || !found->is_string()) {
    throw tokenizer_error(fmt::format("a section lacks the string \"{}\"", name));
  }
  return found->get<std::string>();
}

}  // namespace llama
