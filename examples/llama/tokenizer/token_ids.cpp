#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "examples/llama/base.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/loaders.hpp"

namespace llama {
namespace {

constexpr std::string_view white_space = " \t\r\n\f\v";
constexpr std::string_view separators = " \t\r\n\f\v,";

/// Decimal id of `text`, or nothing when it is not one in [0, vocabulary).
std::optional<TokenId> parse_id(std::string_view text, Index vocabulary) {
  TokenId id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || text[0] == '-' || id >= vocabulary) {
    return std::nullopt;  // not even -0
  }
  return id;
}

}  // namespace

std::vector<TokenId> read_token_ids(const std::filesystem::path& path, Index vocabulary) {
  if (vocabulary < 1) fail("vocabulary of token ids is ", vocabulary, ", must be at least 1");
  const std::string content = read_input(path, InputKind::file_or_pipe);
  const std::string_view text = content;
  std::vector<TokenId> ids;
  const auto add = [&](std::string_view value, std::string_view unit, std::size_t number) {
    const auto id = parse_id(value, vocabulary);
    if (!id) {
      throw tokenizer_error(fmt::format("{}: {} {}: \"{}\" is not a token id in [0, {})", path.string(), unit, number,
                                        value.substr(0, 40), vocabulary));
    }
    ids.push_back(*id);
  };

  const std::size_t first = text.find_first_not_of(white_space);
  if (first != std::string_view::npos && text[first] == '[') {
    const nlohmann::json entries = parse_tokenizer_json(text, path.string());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const bool negative = entries[i].is_number_integer() && !entries[i].is_number_unsigned();
      add(negative && entries[i] == 0 ? "-0" : entries[i].dump(), "entry", i);
    }
    return ids;
  }
  std::size_t line = 1;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, start), text.size());
    if (end > start) add(text.substr(start, end - start), "line", line);
    if (end < text.size() && text[end] == '\n') ++line;
    start = end + 1;
  }
  return ids;
}

}  // namespace llama
