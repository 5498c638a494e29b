#include <doctest/doctest.h>

#include <span>
#include <sstream>

#include "examples/llama/tokenizer/chat_template.hpp"
#include "support.hpp"
#include "tests/examples/llama/longbench.hpp"
#include "tests/examples/llama/process.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Names and folders of the models and tokenizers that are in the cache and of whose ids
/// tests/reference/make_pretrained_fixtures.py has written hashes.
std::vector<std::pair<std::string, fs::path>> tokenizers() {
  std::vector<std::pair<std::string, fs::path>> found;
  for (const std::string name : {"smollm2", "qwen2.5-coder-0.5b", "llama3", "mistral_v1", "mistral_v3"}) {
    for (const fs::path& folder : {cached(name), cached("reference/tokenizers/" + name)}) {
      if (fs::exists(folder)) found.emplace_back(name, folder);
    }
  }
  return found;
}

const NeedsInput tokenizers_and_prompts(!tokenizers().empty() && LongBench::is_there(),
                                        "pretrained model in the cache, which examples/models/fetch.sh fetches, or no "
                                        "LongBench");

/// Files of token ids, hashed all at once.
class Hashes {
 public:
  void add(const std::vector<TokenId>& ids) {
    const auto bytes = std::as_bytes(std::span(ids));
    files_.push_back(
        folder_.write(std::to_string(files_.size()), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }

  /// The SHA-256 of each, in the order that they came in.
  std::vector<std::string> values() const {
    const ProcessResult result = run_process("sha256sum", files_);
    REQUIRE(result.status == 0);
    std::istringstream lines(result.out);
    std::vector<std::string> hashes;
    for (std::string hash, file; lines >> hash >> file;) hashes.push_back(hash);
    REQUIRE(hashes.size() == files_.size());
    return hashes;
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> files_;
};

TEST_CASE("pretrained tokenizers: hashes of the ids of every LongBench prompt are those of the tokenizers package") {
  const json fixture =
      json::parse(read(lazyllm::test::source_folder() / "tests/reference/fixtures/pretrained_ids.json"));
  LongBench longbench;
  CHECK(fixture.size() == 5);
  const auto found = tokenizers();
  if (found.size() < fixture.size()) MESSAGE("skipped: ", fixture.size() - found.size(), " that are not in the cache");
  for (const auto& each : found) {
    CAPTURE(each.first);
    const json& expected = fixture.at(each.first);
    const fs::path& folder = each.second;
    const auto tokenizer = open_tokenizer(folder);
    CHECK(expected.at("prompts").size() == 98);
    Hashes hashes;
    for (const auto& [place, hash] : expected.at("prompts").items()) {
      const std::size_t colon = place.find(':');
      const std::string prompt = longbench.prompt(place.substr(0, colon), std::stoul(place.substr(colon + 1)));
      hashes.add(tokenizer->encode(prompt, true));
    }
    const bool has_chat = expected.contains("chat");
    if (has_chat) hashes.add(open_chat_template(folder).encode(*tokenizer, longbench.prompt("2wikimqa.jsonl", 1)));
    const std::vector<std::string> actual = hashes.values();
    std::size_t next = 0;
    for (const auto& prompt : expected.at("prompts").items()) {
      CAPTURE(prompt.key());
      CHECK(actual[next++] == prompt.value().get<std::string>());
    }
    if (has_chat) CHECK(actual.back() == expected.at("chat").get<std::string>());
  }
}

}  // namespace
}  // namespace llama::test
