#include <doctest/doctest.h>
#include <sys/stat.h>

#include "support.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {
namespace {

TEST_CASE("a folder's tokenizer.json is opened, and the files beside it name BOS and EOS") {
  const TemporaryFolder folder;
  const std::string file = read(fixture("qwen.json"));
  folder.write("tokenizer.json", file);
  const auto bare = open_tokenizer(folder.path());
  CHECK(bare->bos() == std::nullopt);
  CHECK(bare->eos() == std::nullopt);

  const auto start = bare->encode("<|im_start|>", false), end = bare->encode("<|im_end|>", false),
             last = bare->encode("<|endoftext|>", false);
  REQUIRE(start.size() + end.size() + last.size() == 3);
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"})");
  folder.write("generation_config.json", nlohmann::json{{"eos_token_id", {last[0], end[0]}}}.dump());
  const auto named = open_tokenizer(folder.path());
  CHECK(named->bos() == start[0]);
  CHECK(named->eos() == end[0]);
  CHECK(named->stop_tokens() == std::vector{end[0], last[0]});
  CHECK(named->encode("x", true) == named->encode("x", false));

  folder.write("generation_config.json", nlohmann::json{{"eos_token_id", last[0]}}.dump());
  CHECK(open_tokenizer(folder.path() / "tokenizer.json")->stop_tokens() == std::vector{end[0], last[0]});

  // transformers opens these, too.
  folder.write("tokenizer_config.json", R"({"bos_token": "<|none|>", "eos_token": {"content": "<|none|>"}})");
  const auto unknown = open_tokenizer(folder.path());
  CHECK(unknown->bos() == std::nullopt);
  CHECK(unknown->stop_tokens() == last);
}

TEST_CASE("BOS before a text is what tokenizer.json says; add_bos_token counts for nothing, as in transformers") {
  const auto fixtures = lazyllm::test::source_folder() / "tests/reference/fixtures/chat";
  const auto bos_cases = nlohmann::json::parse(read(fixtures / "bos.json"));
  REQUIRE(bos_cases.size() == 18);
  for (const auto& each : bos_cases) {
    CAPTURE(each.dump());
    auto content = nlohmann::json::parse(read(fixture("llama2_metaspace.json")));
    if (!each["in_file"].get<bool>()) content["post_processor"] = nullptr;
    const TemporaryFolder folder;
    folder.write("tokenizer.json", content.dump());
    folder.write("tokenizer_config.json", each["tokenizer_config"].dump());
    CHECK(open_tokenizer(folder.path())->encode(each["text"].get<std::string>(), true) ==
          each["ids"].get<std::vector<TokenId>>());
  }
}

TEST_CASE("what is no tokenizer is refused by name") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(open_tokenizer(folder.path()), doctest::Contains("tokenizer.model"), tokenizer_error);
  CHECK_THROWS_WITH_AS(open_tokenizer(folder.path() / "missing.bin"), doctest::Contains("missing.bin"), file_error);
  REQUIRE(::mkfifo((folder.path() / "tokenizer.json").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(open_tokenizer(folder.path()), doctest::Contains("tokenizer.json: not a regular file"),
                       file_error);
  for (const auto& [text, message] :
       {std::pair(R"({})", "a section lacks \"model\""), std::pair(R"({"model": null})", "null stands where an object"),
        std::pair(R"({"model": {"type": 1}})", "\"type\" is 1, expected a text"),
        std::pair(R"({"model": {"vocab": []}})", "\"vocab\" is []"), std::pair("{", "not valid JSON: \"parse error at"),
        std::pair(R"({"model": {"vocab": {"a": 0}, "merges": [["a", 1]]}})", "merge 0 is [\"a\",1]")}) {
    const char* const json = text;  // clang 14 captures no structured binding
    CAPTURE(json);
    CHECK(error_of("tokenizer.json", json).find(message) != std::string::npos);
  }
  const std::string good = read(fixture("gpt2.json"));
  CHECK(error_of("tokenizer.json", good + '\0').find("a zero byte at line ") != std::string::npos);
  CHECK(error_of("tokenizer.model", "IQ== 0\nIg== 1\n").find("tiktoken") != std::string::npos);
}

TEST_CASE("links that go round are refused by name") {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    const TemporaryFolder folder;
    folder.write("tokenizer.json", read(fixture("gpt2.json")));
    std::filesystem::remove(folder.path() / name);
    std::filesystem::create_symlink(name, folder.path() / name);
    CHECK_THROWS_WITH_AS(
        open_tokenizer(folder.path()),
        ((folder.path() / name).string() + ": cannot open the file: Too many levels of symbolic links").c_str(),
        file_error);
  }
  const TemporaryFolder folder;
  const auto link = folder.path() / "link";
  std::filesystem::create_symlink("link", link);
  CHECK_THROWS_WITH_AS(open_tokenizer(link),
                       (link.string() + ": cannot open the file: Too many levels of symbolic links").c_str(),
                       file_error);
}

TEST_CASE("content decides, not the name") {
  const TemporaryFolder folder;
  const auto path = folder.write("renamed.bin", read(fixture("gpt2.json")));
  CHECK(open_tokenizer(path)->vocabulary_size() == open_tokenizer(fixture("gpt2.json"))->vocabulary_size());
}

}  // namespace
}  // namespace llama::test
