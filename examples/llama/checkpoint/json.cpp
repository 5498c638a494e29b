#include "examples/llama/checkpoint/json.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <vector>

#include "examples/llama/checkpoint/error.hpp"

namespace llama {

nlohmann::json parse_json(std::span<const std::byte> text, std::string_view place) {
  using Json = nlohmann::json;
  constexpr std::size_t max_depth = 16;
  constexpr std::size_t max_values = 1'000'000;
  if (text.size() > max_json_bytes)
    reject(place, "the JSON text has {} bytes, allowed are {}", text.size(), max_json_bytes);

  const std::string_view characters(reinterpret_cast<const char*>(text.data()), text.size());
  if (const std::string reason = zero_byte_in(characters); !reason.empty()) reject(place, "not valid JSON: {}", reason);

  std::vector<std::set<std::string>> names;  // of the objects and arrays that are open; arrays have none
  std::size_t values = 0;
  const Json::parser_callback_t check = [&](int, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (names.size() == max_depth) reject(place, "the JSON text is nested deeper than {}", max_depth);
        names.emplace_back();
        ++values;
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end: names.pop_back(); break;
      case Json::parse_event_t::key:
        if (!names.back().insert(parsed.get_ref<const std::string&>()).second)
          reject(place, "the name {} appears twice in one JSON object", shown(parsed));
        break;
      case Json::parse_event_t::value: ++values; break;
    }
    if (values > max_values) reject(place, "the JSON text has more than {} values", max_values);
    return true;
  };
  try {
    return Json::parse(characters, check);
  } catch (const Json::exception& error) {
    reject(place, "not valid JSON: {}", plain_reason(error));
  }
}

std::string zero_byte_in(std::string_view text) {
  const std::size_t at = text.find('\0');
  if (at == std::string_view::npos) return {};
  const std::string_view before = text.substr(0, at);
  return fmt::format("a zero byte at line {}, column {}", std::ranges::count(before, '\n') + 1,
                     at - (before.rfind('\n') + 1) + 1);
}

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

const nlohmann::json& field_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw std::runtime_error(fmt::format("field \"{}\" is missing", name));
  return *found;
}

const nlohmann::json& field_of(const nlohmann::json& object, const char* name, nlohmann::json::value_t type,
                               std::string_view expected) {
  const nlohmann::json& value = field_of(object, name);
  if (value.type() == type) return value;
  throw std::runtime_error(fmt::format("field \"{}\" is {}, expected {}", name, shown(value), expected));
}

Index whole_field(const nlohmann::json& object, const char* name, Index least, Index most) {
  const nlohmann::json& value = field_of(object, name);
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                               : value.is_number_integer() && value.get<std::int64_t>() <= most;
  if (fits && value.get<Index>() >= least) return value.get<Index>();
  throw std::runtime_error(
      fmt::format("field \"{}\" is {}, expected an integer from {} to {}", name, shown(value), least, most));
}

double number_field(const nlohmann::json& object, const char* name, double least, double most) {
  const nlohmann::json& value = field_of(object, name);
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most) return value.get<double>();
  throw std::runtime_error(
      fmt::format("field \"{}\" is {}, expected a number from {} to {}", name, shown(value), least, most));
}

std::string plain_reason(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  const std::size_t end = text.find("] ");  // of the number that the library gives the error
  if (text.starts_with('[') && end != std::string_view::npos) text.remove_prefix(end + 2);
  return shown(text.substr(0, 160));
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t max_length = 160;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > max_length) text.replace(max_length, std::string::npos, "...");
  return text;
}

}  // namespace llama
