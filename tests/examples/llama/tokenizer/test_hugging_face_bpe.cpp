#include <doctest/doctest.h>

#include <functional>

#include "support.hpp"
#include "tests/support/runs.hpp"

namespace llama::test {
namespace {

using nlohmann::json;

json fixture_json(const std::string& name) { return json::parse(std::ifstream(fixture(name + ".json"))); }

/// Error of opening the GPT-2 fixture after `change`.
std::string error_after(const std::function<void(json&)>& change) {
  json file = fixture_json("gpt2");
  change(file);
  return error_of("tokenizer.json", file.dump());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("tokenizer.json: ids and decoded text equal those of the tokenizers package") {
  for (const std::string name : {"gpt2", "llama3", "qwen", "llama2_metaspace", "llama2_prepend"}) {
    CAPTURE(name);
    const auto tokenizer = open_tokenizer(fixture(name + ".json"));
    const json& texts = cases()["texts"];
    const json& encodings = cases()["encodings"][name];
    REQUIRE(texts.size() == encodings.size());
    REQUIRE(texts.size() >= 40);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i].dump());
      const auto expected = encodings[i]["ids"].get<std::vector<TokenId>>();
      CHECK(tokenizer->encode(texts[i].get<std::string>(), true) == expected);
      CHECK(streamed(*tokenizer, expected) == encodings[i]["decoded"].get<std::string>());
    }
  }
}

TEST_CASE("tokenizer.json: every normalizer, pre-tokenizer and flag gives the ids of the tokenizers package") {
  const auto variants = json::parse(std::ifstream(fixture("variants.json")));
  REQUIRE(variants.size() >= 40);
  for (const json& variant : variants) {
    CAPTURE(variant["name"]);
    json file = fixture_json(variant["base"]);
    file.merge_patch(variant["patch"]);
    const TemporaryFolder folder;
    const auto tokenizer = open_tokenizer(folder.write("tokenizer.json", file.dump()));
    for (std::size_t i = 0; i < variant["ids"].size(); ++i) {
      CAPTURE(cases()["texts"][i].dump());
      CHECK(tokenizer->encode(cases()["texts"][i].get<std::string>(), true) ==
            variant["ids"][i].get<std::vector<TokenId>>());
    }
  }
}

TEST_CASE("tokenizer.json: the template decides what comes before a text") {
  const auto llama3 = open_tokenizer(fixture("llama3.json"));
  REQUIRE(llama3->bos());
  auto with_bos = llama3->encode("Hello", true);
  CHECK(with_bos.front() == *llama3->bos());
  with_bos.erase(with_bos.begin());
  CHECK(llama3->encode("Hello", false) == with_bos);

  const auto gpt2 = open_tokenizer(fixture("gpt2.json"));
  CHECK(gpt2->encode("Hello", true) == gpt2->encode("Hello", false));
}

TEST_CASE("tokenizer.json: ignore_merges finds words that no merge makes") {
  json file = fixture_json("llama3");
  const TemporaryFolder folder;
  const auto whole = open_tokenizer(fixture("llama3.json"));
  file["model"]["ignore_merges"] = false;
  const auto merged = open_tokenizer(folder.write("tokenizer.json", file.dump()));
  CHECK(whole->encode(" little", false).size() == 1);
  CHECK(merged->encode(" little", false).size() > 1);
  CHECK(streamed(*merged, merged->encode(" little", false)) == " little");
}

TEST_CASE("tokenizer.json: invalid UTF-8 in the text becomes U+FFFD") {
  const auto tokenizer = open_tokenizer(fixture("gpt2.json"));
  CHECK(tokenizer->encode("a\xFFz\xE4\xBD", false) == tokenizer->encode("a\uFFFDz\uFFFD", false));
}

TEST_CASE("tokenizer.json: a long word takes about linear time") {
  // Quadratic merging of these 2^20 bytes would take hours.
  const auto tokenizer = open_tokenizer(fixture("llama2_prepend.json"));
  std::string text;
  while (text.size() < lazyllm::test::runs(1U << 20)) text += "the world is on ";
  CHECK(streamed(*tokenizer, tokenizer->encode(text, true)) == text);
}

TEST_CASE("tokenizer.json: padded ids add nothing, negative ones are refused") {
  const auto tokenizer = open_tokenizer(fixture("qwen.json"));
  CHECK(tokenizer->decode(no_token, static_cast<TokenId>(tokenizer->vocabulary_size())).empty());
  CHECK_THROWS_AS(tokenizer->decode(no_token, -1), std::invalid_argument);
}

TEST_CASE("tokenizer.json: a byte that the vocabulary lacks is an error only where a text has it, and says where") {
  json file = fixture_json("gpt2");
  file["model"]["vocab"].erase("\u0104");  // byte 0x04
  const TemporaryFolder folder;
  const auto tokenizer = open_tokenizer(folder.write("tokenizer.json", file.dump()));
  CHECK(tokenizer->encode("the world", false) == open_tokenizer(fixture("gpt2.json"))->encode("the world", false));
  CHECK_THROWS_WITH_AS(tokenizer->encode("the <|endoftext|>w\u00f6r\x04ld", false),
                       "the vocabulary has no token for the byte 0x04 at offset 21 of the text, and no unknown token",
                       tokenizer_error);

  file = fixture_json("llama2_metaspace");
  file["model"].merge_patch({{"byte_fallback", false}, {"unk_token", nullptr}});
  const auto characters = open_tokenizer(folder.write("tokenizer.json", file.dump()));
  CHECK_THROWS_WITH_AS(characters->encode("on \U00010fff", false),
                       doctest::Contains("bytes 0xF0 0x90 0xBF 0xBF at offset 3"), tokenizer_error);
}

TEST_CASE("tokenizer.json: a Replace that matches an empty part of a text is refused") {
  json file = fixture_json("gpt2");
  const TemporaryFolder folder;
  for (const char* pattern : {"x*", "(?=H)", "$"}) {
    CAPTURE(pattern);
    file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", "-"}};
    const std::string path = folder.write("tokenizer.json", file.dump());
    const std::string message =
        "the pattern {\"Regex\":\"" + std::string(pattern) +
        "\"} of the normalizer Replace matches an empty part of the text, which is not supported";
    CHECK_THROWS_WITH_AS(open_tokenizer(path)->encode("Hello", false), doctest::Contains(message.c_str()),
                         tokenizer_error);
  }
}

TEST_CASE("tokenizer.json: long runs of white space need no more of the regular expressions than others") {
  for (const std::string name : {"gpt2", "llama3", "llama2_metaspace"}) {
    for (const std::string space : {" ", "\n"}) {
      CAPTURE(name);
      CAPTURE(space);
      std::string text = "the";
      while (text.size() < lazyllm::test::runs(1'000'000)) text += space;
      text += "end";
      const auto tokenizer = open_tokenizer(fixture(name + ".json"));
      CHECK(streamed(*tokenizer, tokenizer->encode(text, true)) == text);
    }
  }
}

TEST_CASE("tokenizer.json: what is not supported is named") {
  CHECK(error_after([](json&) {}).empty());
  CHECK(contains(error_after([](json& f) { f["model"]["type"] = "Unigram"; }), "Unigram"));
  CHECK(contains(error_after([](json& f) { f["model"]["type"] = "WordPiece"; }), "WordPiece"));
  CHECK(contains(error_after([](json& f) { f["normalizer"] = {{"type", "Precompiled"}}; }), "Precompiled"));
  CHECK(contains(error_after([](json& f) { f["pre_tokenizer"] = {{"type", "BertPreTokenizer"}}; }), "BertPre"));
  CHECK(contains(error_after([](json& f) { f["decoder"] = {{"type", "WordPiece"}}; }), "WordPiece"));
  CHECK(contains(error_after([](json& f) { f["post_processor"] = {{"type", "BertProcessing"}}; }), "BertProcessing"));
  CHECK(contains(error_after([](json& f) { f["model"]["dropout"] = 0.1; }), "dropout"));
  CHECK(contains(error_after([](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }), "</w>"));
  const json shuffle = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Shuffled"}};
  CHECK(contains(error_after([&](json& f) { f["pre_tokenizer"] = shuffle; }), "Shuffled"));
}

TEST_CASE("tokenizer.json: what contradicts itself is named") {
  CHECK(contains(error_after([](json& f) { f["model"]["vocab"].erase("t"); }), "\"t\", which the vocabulary lacks"));
  CHECK(contains(error_after([](json& f) { f["model"]["vocab"]["a"] = -1; }), "-1"));
  CHECK(contains(error_after([](json& f) { f["model"]["vocab"]["a"] = 5000000000; }), "5000000000"));
  CHECK(contains(error_after([](json& f) { f["model"]["vocab"]["a"] = f["model"]["vocab"]["b"]; }), "two tokens"));
  CHECK(contains(error_after([](json& f) { f["model"]["vocab"]["a"] = "1"; }), "\"a\""));
  CHECK(contains(error_after([](json& f) { f["model"]["merges"][3] = "q"; }), "merge 3"));
  CHECK(contains(error_after([](json& f) { f["model"]["merges"][3] = "qqq zzz"; }), "qqq"));
  CHECK(contains(error_after([](json& f) { f["model"]["merges"][3] = {"a"}; }), "merge 3"));
  CHECK(contains(error_after([](json& f) { f["added_tokens"][0]["id"] = 7; }), "<|endoftext|>"));
  CHECK(contains(error_after([](json& f) { f.erase("model"); }), "model"));
  const json open = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  CHECK(contains(error_after([&](json& f) { f["pre_tokenizer"] = open; }), "(a"));
}

TEST_CASE("tokenizer.json: a hostile nesting or pattern is an error") {
  const std::string opening = R"({"normalizer":)";
  std::string nested;
  for (int i = 0; i < 200000; ++i) nested += R"({"type":"Sequence","normalizers":[)";
  CHECK(contains(error_of("tokenizer.json", opening + nested), "nested deeper than 64"));

  json file = fixture_json("gpt2");
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  const json explodes = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a|a)+b"}}}, {"behavior", "Isolated"}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["pre_tokenizer"]["pretokenizers"] = {explodes, bytes};
  const TemporaryFolder folder;
  const auto tokenizer = open_tokenizer(folder.write("tokenizer.json", file.dump()));
  CHECK(streamed(*tokenizer, tokenizer->encode("xaab", false)) == "xaab");
  CHECK_THROWS_WITH_AS(tokenizer->encode(std::string(60, 'a'), false), doctest::Contains("regex time out"),
                       tokenizer_error);
}

TEST_CASE("tokenizer.json: every truncation is an error") {
  const std::string bytes = read(fixture("qwen.json"));
  for (std::size_t size = 0; size < bytes.size(); size += 97) {
    CAPTURE(size);
    CHECK(contains(error_of("tokenizer.json", bytes.substr(0, size)), "tokenizer.json"));
  }
}

}  // namespace
}  // namespace llama::test
