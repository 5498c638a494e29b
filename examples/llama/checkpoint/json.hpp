#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "examples/llama/base.hpp"

namespace llama {

/// Largest JSON text that is read, in bytes: the limit of the safetensors format.
inline constexpr std::size_t max_json_bytes = 100'000'000;

/// Parses untrusted JSON. Throws `checkpoint_error`, naming `place`, for a text over `max_json_bytes`, bad syntax,
/// nesting deeper than 16, more than a million values, and an object with two equal names.
nlohmann::json parse_json(std::span<const std::byte> text, std::string_view place);

/// Where the first zero byte of a JSON text is, as a reason to refuse it: the parser would take it for the text's end,
/// and not read what follows. Empty if there is none.
std::string zero_byte_in(std::string_view text);

/// `json` as text, in one line unless there is an `indent`. Bytes that are not UTF-8, which a path may hold, become
/// U+FFFD.
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

/// The value `name` of `object`. Throws `std::runtime_error` that names it unless it is there.
const nlohmann::json& field_of(const nlohmann::json& object, const char* name);

/// The same of one type, which is `expected` in words.
const nlohmann::json& field_of(const nlohmann::json& object, const char* name, nlohmann::json::value_t type,
                               std::string_view expected);

/// The whole number `name` of `object`. Throws `std::runtime_error` that names it unless it is there and in range.
Index whole_field(const nlohmann::json& object, const char* name, Index least, Index most);

/// The same for any number.
double number_field(const nlohmann::json& object, const char* name, double least, double most);

/// What `error` says, as short printable ASCII: the library quotes what it read, which may be a whole file.
std::string plain_reason(const nlohmann::json::exception& error);

/// `value` as short printable ASCII for an error message.
std::string shown(const nlohmann::json& value);

}  // namespace llama
