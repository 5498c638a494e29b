#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace llama {

/// JSON value of `text`. Throws `tokenizer_error` naming `file` when it is not JSON, or nests so deeply that walking
/// through it could exhaust the stack.
nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& file);

/// The string member `name` of `section`. Throws `tokenizer_error`.
std::string string_member(const nlohmann::json& section, const char* name);

/// The member `name` of `section`, or `otherwise` where it is missing or null. Throws `nlohmann::json::exception` when
/// it is of another type.
template <class T>
T member_or(const nlohmann::json& section, const char* name, T otherwise) {
  const auto found = section.find(name);
  return found == section.end() || found->is_null() ? otherwise : found->template get<T>();
}

}  // namespace llama
