#include <doctest/doctest.h>

#include <iostream>
#include <random>

#include "support.hpp"

namespace llama::test {
namespace {

TEST_CASE("tokenizer.model: ids and decoded text equal those of Python's sentencepiece") {
  const auto path = real_input("llama2_tokenizer.model");
  if (!std::filesystem::exists(path)) {
    std::cout << "skipped: no " << path.filename() << '\n';
    return;
  }
  const auto tokenizer = open_tokenizer(path);
  CHECK(tokenizer->vocabulary_size() == 32000);
  CHECK(tokenizer->bos() == 1);
  CHECK(tokenizer->eos() == 2);
  const auto& texts = cases()["texts"];
  const auto& encodings = cases()["encodings"]["llama2_model"];
  REQUIRE(texts.size() == encodings.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    CAPTURE(texts[i].dump());
    auto expected = encodings[i]["ids"].get<std::vector<TokenId>>();
    const auto text = texts[i].get<std::string>();
    CHECK(tokenizer->encode(text, true) == expected);
    CHECK(streamed(*tokenizer, expected) == encodings[i]["decoded"].get<std::string>());
    expected.erase(expected.begin());
    CHECK(tokenizer->encode(text, false) == expected);
  }
}

TEST_CASE("tokenizer.model: damage is an error or is read, never a crash") {
  const auto path = real_input("llama2_tokenizer.model");
  if (!std::filesystem::exists(path)) {
    std::cout << "skipped: no " << path.filename() << '\n';
    return;
  }
  const std::string bytes = read(path);
  CHECK(error_of("tokenizer.model", bytes.substr(0, bytes.size() / 2 + 1)).find("SentencePiece") != std::string::npos);
  CHECK_FALSE(error_of("tokenizer.model", bytes.substr(0, 100)).empty());
  std::mt19937 draw(3);
  const TemporaryFolder folder;
  for (int round = 0; round < 30; ++round) {
    std::string damaged = bytes;
    for (int i = 0; i < 20; ++i) damaged[draw() % damaged.size()] = static_cast<char>(draw());
    try {
      const auto tokenizer = open_tokenizer(folder.write("tokenizer.model", damaged));
      streamed(*tokenizer, tokenizer->encode("Some text, \u4f60\u597d", true));
    } catch (const tokenizer_error&) {
    }
  }
}

}  // namespace
}  // namespace llama::test
