#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {

/// JSON value of `text`. Throws `tokenizer_error` naming `file` when it is not JSON, or nests so deeply that walking
/// through it could exhaust the stack.
nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& file);

/// The member `name` of `section`. Throws `tokenizer_error` that names it when there is none.
const nlohmann::json& member(const nlohmann::json& section, std::string_view name);

/// The string member `name` of `section`. Throws `tokenizer_error`.
std::string string_member(const nlohmann::json& section, const char* name);

/// The member `name` of `section`, or `otherwise` where it is missing or null. Throws `tokenizer_error` that names it
/// when it is of another type.
template <class T>
T member_or(const nlohmann::json& section, const char* name, T otherwise) {
  const auto found = section.find(name);
  if (found == section.end() || found->is_null()) return otherwise;
  try {
    return found->template get<T>();
  } catch (const nlohmann::json::exception&) {
    throw tokenizer_error(std::string("\"") + name + "\" is " + shown(*found) + ", expected " +
                          (std::is_same_v<T, bool>   ? "true or false"
                           : std::is_arithmetic_v<T> ? "a number"
                                                     : "a text"));
  }
}

}  // namespace llama
