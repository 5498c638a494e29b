#include <doctest/doctest.h>

#include <fstream>
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

/// Folders of fetch.sh's models, of which tests/reference/make_pretrained_fixtures.py has written hashes of token ids.
std::vector<fs::path> models() {
  std::vector<fs::path> folders;
  for (const char* name : {"smollm2", "qwen2.5-coder-0.5b"}) {
    if (fs::exists(cached(name))) folders.push_back(cached(name));
  }
  return folders;
}

/// Folders with other tokenizers and what tests/reference/make_pretrained_reference.py has written of them.
std::vector<fs::path> references() {
  const fs::path all = cached("reference/tokenizers");
  if (!fs::exists(all)) return {};
  return {fs::directory_iterator(all), fs::directory_iterator()};
}

const NeedsInput models_and_prompts(
    (!models().empty() || !references().empty()) && LongBench::is_there(),
    "pretrained model in the cache, which examples/models/fetch.sh fetches, or no LongBench");

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

TEST_CASE("pretrained models: hashes of the ids of every LongBench prompt are those of the tokenizers package") {
  const json fixture =
      json::parse(read(lazyllm::test::source_folder() / "tests/reference/fixtures/pretrained_ids.json"));
  LongBench longbench;
  for (const fs::path& folder : models()) {
    CAPTURE(folder.filename());
    const json& expected = fixture.at(folder.filename());
    const auto tokenizer = open_tokenizer(folder);
    CHECK(expected.at("prompts").size() == 98);
    Hashes hashes;
    for (const auto& [place, hash] : expected.at("prompts").items()) {
      const std::size_t colon = place.find(':');
      const std::string prompt = longbench.prompt(place.substr(0, colon), std::stoul(place.substr(colon + 1)));
      hashes.add(tokenizer->encode(prompt, true));
    }
    hashes.add(open_chat_template(folder).encode(*tokenizer, longbench.prompt("2wikimqa.jsonl", 1)));
    const std::vector<std::string> actual = hashes.values();
    std::size_t next = 0;
    for (const auto& prompt : expected.at("prompts").items()) {
      CAPTURE(prompt.key());
      CHECK(actual[next++] == prompt.value());
    }
    CHECK(actual.back() == expected.at("chat"));
  }
}

std::vector<json> lines(const fs::path& path) {
  std::vector<json> result;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) result.push_back(json::parse(line));
  return result;
}

TEST_CASE("other pretrained tokenizers: ids of every LongBench prompt equal those of the tokenizers package") {
  const std::vector<fs::path> folders = references();
  if (folders.empty()) {
    MESSAGE("skipped: no tokenizers of Llama 3 and Mistral in the cache");
    return;
  }
  CHECK(folders.size() >= 3);  // Llama 3, and Mistral's first and third
  LongBench longbench;
  for (const fs::path& folder : folders) {
    CAPTURE(folder.filename());
    const auto tokenizer = open_tokenizer(folder);
    const std::vector<json> all = lines(folder / "ids.jsonl");
    CHECK(all.size() == 98);
    for (const json& expected : all) {
      const std::string name = expected["file"];
      const auto number = expected["line"].get<std::size_t>();
      CAPTURE(name);
      CAPTURE(number);
      const auto ids = expected["ids"].get<std::vector<TokenId>>();
      CHECK((tokenizer->encode(longbench.prompt(name, number), true) == ids));
    }
    if (!fs::exists(folder / "chat.json")) continue;
    const json chat = json::parse(read(folder / "chat.json"));
    const auto ids = chat["ids"].get<std::vector<TokenId>>();
    CHECK((open_chat_template(folder).encode(*tokenizer, chat["prompt"].get<std::string>()) == ids));
  }
}

}  // namespace
}  // namespace llama::test
