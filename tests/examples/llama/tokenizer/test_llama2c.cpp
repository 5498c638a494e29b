#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <regex>

#include "support.hpp"
#include "tests/support/runs.hpp"

namespace llama::test {
namespace {

struct Entry {
  float score;
  std::string text;
};

std::string as_bytes(const auto& value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

std::string file_of(const std::vector<Entry>& entries) {
  std::int32_t longest = 1;
  std::string body;
  for (const Entry& entry : entries) {
    const auto length = static_cast<std::int32_t>(entry.text.size());
    longest = std::max(longest, length);
    body += as_bytes(entry.score) + as_bytes(length) + entry.text;
  }
  return as_bytes(longest) + body;
}

std::vector<Entry> entries_of(const std::string& file) {
  std::vector<Entry> entries;
  for (std::size_t at = 4; at < file.size();) {
    float score = 0;
    std::int32_t length = 0;
    std::memcpy(&score, file.data() + at, 4);
    std::memcpy(&length, file.data() + at + 4, 4);
    entries.push_back({score, file.substr(at + 8, static_cast<std::size_t>(length))});
    at += 8 + static_cast<std::size_t>(length);
  }
  return entries;
}

/// Special tokens, bytes, the letters, and words of random letters with few different scores, so that ties are common.
std::vector<Entry> random_entries(std::mt19937& draw) {
  std::vector<Entry> entries{{0, "<unk>"}, {0, "\n<s>\n"}, {0, "\n</s>\n"}};
  for (int byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    entries.push_back({0, text});
  }
  const std::vector<std::string> characters{" ",          "a", "b", "c", "\u00e9", "\u4f60",
                                            "\U0001f600", "<", "0", "x", "A",      ">"};
  for (const auto& character : characters) entries.push_back({-1, character});
  std::vector<std::string> words = characters;
  for (int i = 0; i < 150; ++i) {
    words.push_back(words[draw() % words.size()] + words[draw() % words.size()]);
    if (words.back().size() > 30) words.back() = "ab";
    const float scores[] = {-1, -2, -3, 4, -5, -std::numeric_limits<float>::infinity(), std::nanf("")};
    entries.push_back({scores[draw() % std::size(scores)], words.back()});
  }
  return entries;
}

/// llama2.c's own algorithm: looks at every pair again after each merge.
std::vector<TokenId> naive_encode(const std::vector<Entry>& entries, const std::string& text, bool add_bos) {
  std::map<std::string, TokenId> ids;
  for (std::size_t i = 0; i < entries.size(); ++i) ids.emplace(entries[i].text, static_cast<TokenId>(i));
  std::vector<TokenId> tokens;
  if (add_bos) tokens.push_back(1);
  if (!text.empty()) tokens.push_back(ids.at(" "));
  std::string character;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xC0) != 0x80) character.clear();
    character += text[i];
    if (i + 1 < text.size() && (text[i + 1] & 0xC0) == 0x80 && character.size() < 4) continue;
    if (ids.contains(character)) {
      tokens.push_back(ids[character]);
    } else {
      for (const char byte : character) tokens.push_back(static_cast<unsigned char>(byte) + 3);
    }
    character.clear();
  }
  while (true) {
    float best_score = -1e10F;
    std::size_t best = tokens.size();
    TokenId best_token = -1;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ids.find(entries[static_cast<std::size_t>(tokens[i])].text +
                                  entries[static_cast<std::size_t>(tokens[i + 1])].text);
      if (found == ids.end() || !(entries[static_cast<std::size_t>(found->second)].score > best_score)) continue;
      best_score = entries[static_cast<std::size_t>(found->second)].score;
      best = i;
      best_token = found->second;
    }
    if (best == tokens.size()) return tokens;
    tokens[best] = best_token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

void check_texts(const Tokenizer& tokenizer, const std::vector<Entry>& entries) {
  for (const auto& text : cases()["texts"]) {
    const auto content = text.get<std::string>();
    CAPTURE(text.dump());
    const auto tokens = tokenizer.encode(content, true);
    CHECK(tokens == naive_encode(entries, content, true));
    CHECK(streamed(tokenizer, tokens) == content);
  }
}

TEST_CASE("tokenizer.bin: same ids as llama2.c's quadratic algorithm, on random vocabularies") {
  std::mt19937 draw(5);
  const TemporaryFolder folder;
  const std::string letters[] = {" ",          "a",      "b",  "c",    "\u00e9", "\u4f60",
                                 "\U0001f600", "<0x41>", "\n", "\xC3", "z",      "\0"};
  for (int round = 0; round < 40; ++round) {
    const auto entries = random_entries(draw);
    const auto tokenizer = open_tokenizer(folder.write("tokenizer.bin", file_of(entries)));
    CHECK(tokenizer->vocabulary_size() == static_cast<Index>(entries.size()));
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (auto length = draw() % 80; length > 0; --length) text += letters[draw() % std::size(letters)];
      CAPTURE(text);
      CHECK(tokenizer->encode(text, i % 2 == 0) == naive_encode(entries, text, i % 2 == 0));
    }
  }
}

TEST_CASE("tokenizer.bin: bytes, special tokens and the space after BOS decode as llama2.c prints them") {
  std::mt19937 draw(1);
  const TemporaryFolder folder;
  const auto entries = random_entries(draw);
  const auto tokenizer = open_tokenizer(folder.write("tokenizer.bin", file_of(entries)));
  const auto space = static_cast<TokenId>(3 + 256);
  REQUIRE(entries[static_cast<std::size_t>(space)].text == " ");
  CHECK(tokenizer->bos() == 1);
  CHECK(tokenizer->eos() == 2);
  CHECK(tokenizer->decode(space, 3 + 'A') == "A");
  CHECK(tokenizer->decode(space, 3 + 0xFF) == "\xFF");
  CHECK(tokenizer->decode(space, space) == " ");
  CHECK(tokenizer->decode(1, space).empty());
  CHECK(tokenizer->decode(no_token, space).empty());
  CHECK(tokenizer->decode(space, 1).empty());
  CHECK(tokenizer->decode(space, 2).empty());
  CHECK(tokenizer->encode("", true) == std::vector<TokenId>{1});
  CHECK(tokenizer->encode("", false).empty());
}

TEST_CASE("tokenizer.bin: the stories260K vocabulary") {
  const auto path = real_input("stories260K/tok512.bin");
  if (!std::filesystem::exists(path)) {
    std::cout << "skipped: no " << path.filename() << '\n';
    return;
  }
  const auto tokenizer = open_tokenizer(path);
  CHECK(tokenizer->vocabulary_size() == 512);
  CHECK(open_tokenizer(path, 512)->vocabulary_size() == 512);
  check_texts(*tokenizer, entries_of(read(path)));
  const std::string story = read(real_input("stories260K/expected.txt"));
  CHECK(streamed(*tokenizer, tokenizer->encode(story, true)) == story);
}

TEST_CASE("tokenizer.bin: the Llama 2 vocabulary as llama2.c exports it") {
  const auto path = real_input("llama2_tokenizer.model");
  if (!std::filesystem::exists(path)) {
    std::cout << "skipped: no " << path.filename() << '\n';
    return;
  }
  sentencepiece::SentencePieceProcessor model;
  REQUIRE(model.Load(path.string()).ok());
  const std::regex word_start("\u2581");
  std::vector<Entry> entries;
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    const std::string text = id == 1 ? "\n<s>\n" : id == 2 ? "\n</s>\n" : model.IdToPiece(id);
    entries.push_back({model.GetScore(id), std::regex_replace(text, word_start, " ")});
  }
  const TemporaryFolder folder;
  const auto tokenizer = open_tokenizer(folder.write("tokenizer.bin", file_of(entries)));
  check_texts(*tokenizer, entries);
  std::string text;
  while (text.size() < lazyllm::test::runs(1U << 20)) text += "Once upon a time there was a long prompt. ";
  CHECK(streamed(*tokenizer, tokenizer->encode(text, true)) == text);
}

TEST_CASE("tokenizer.bin: damage is named") {
  std::mt19937 draw(2);
  const auto entries = random_entries(draw);
  const std::string good = file_of(entries);
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(error_of("tokenizer.bin", good).empty());
  CHECK(contains(error_of("tokenizer.bin", ""), "too short"));
  CHECK(contains(error_of("tokenizer.bin", std::string(4, '\0')), "max_token_length is 0"));
  CHECK(contains(error_of("tokenizer.bin", good + "x"), "ends inside"));

  std::string negative = good;
  std::memset(negative.data() + 8, 0xFF, 4);
  CHECK(contains(error_of("tokenizer.bin", negative), "entry 0 has length -1"));
  std::string huge = good;
  std::memset(huge.data() + 11, 0x7F, 1);
  CHECK(contains(error_of("tokenizer.bin", huge), "entry 0 has length 2130706437"));

  auto without_space = entries;
  without_space[259].text = "~";
  std::erase_if(without_space, [](const Entry& entry) { return entry.text == " "; });
  CHECK(contains(error_of("tokenizer.bin", file_of(without_space)), "space"));
  CHECK(contains(error_of("tokenizer.bin", file_of({entries.begin(), entries.begin() + 100})), "100 entries"));

  const TemporaryFolder folder;
  const auto path = folder.write("tokenizer.bin", good);
  const auto vocabulary = static_cast<Index>(entries.size());
  CHECK(open_tokenizer(path, vocabulary)->vocabulary_size() == vocabulary);
  CHECK_THROWS_WITH_AS(open_tokenizer(path, 300),
                       doctest::Contains(fmt::format("has {} entries, the model's vocabulary 300", vocabulary).c_str()),
                       tokenizer_error);
  CHECK_THROWS_WITH_AS(open_tokenizer(folder.write("longer.bin", good + "xx"), vocabulary),
                       doctest::Contains(fmt::format("ends inside entry {}", vocabulary).c_str()), tokenizer_error);
  CHECK_THROWS_AS(open_tokenizer(path, 1 << 20), tokenizer_error);
  for (std::size_t size = 0; size < good.size(); ++size) {
    folder.write("tokenizer.bin", good.substr(0, size));
    CHECK_THROWS_AS(open_tokenizer(path, vocabulary), tokenizer_error);
  }
}

}  // namespace
}  // namespace llama::test
