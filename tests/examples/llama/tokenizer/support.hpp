#pragma once

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/llama/tokenizer/tokenizer.hpp"
#include "tests/examples/llama/files.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {

/// The fixtures that tests/reference/make_tokenizer_fixtures.py writes.
inline std::filesystem::path fixture(const std::string& name) {
  return lazyllm::test::source_folder() / "tests/reference/fixtures/tokenizer" / name;
}

/// Texts with the ids and the decoded text that the Python packages give, see `fixture`.
inline const nlohmann::json& cases() {
  static const auto content = nlohmann::json::parse(std::ifstream(fixture("cases.json")));
  return content;
}

/// Text of `tokens` as a program that streams them prints it.
inline std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  TextStream stream;
  std::string text;
  TokenId previous = no_token;
  for (const TokenId token : tokens) {
    text += stream.push(tokenizer.decode(previous, token));
    previous = token;
  }
  return text + stream.flush();
}

/// What opening a file with this content says; empty when it opens.
inline std::string error_of(const std::string& name, const std::string& bytes) {
  const TemporaryFolder folder;
  try {
    open_tokenizer(folder.write(name, bytes));
  } catch (const tokenizer_error& error) {
    return error.what();
  }
  return {};
}

/// The day of the fixtures of chat templates.
inline std::tm fifth_of_august_2026() {
  std::tm day = {};
  day.tm_mday = 5;
  day.tm_mon = 7;
  day.tm_year = 2026 - 1900;
  return day;
}

}  // namespace llama::test
