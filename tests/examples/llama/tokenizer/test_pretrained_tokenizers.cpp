#include <doctest/doctest.h>

#include <fstream>
#include <map>

#include "examples/llama/tokenizer/chat_template.hpp"
#include "support.hpp"

namespace llama::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Folders with the tokenizers of pretrained models and what the package tokenizers makes of LongBench's prompts.
std::vector<fs::path> pretrained() {
  std::vector<fs::path> folders;
  const fs::path all = cached("reference/tokenizers");
  if (fs::exists(all)) folders.assign(fs::directory_iterator(all), fs::directory_iterator());
  if (folders.empty()) MESSAGE("skipped: no tokenizers of pretrained models in the cache");
  return folders;
}

std::vector<json> lines(const fs::path& path) {
  std::vector<json> result;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) result.push_back(json::parse(line));
  return result;
}

TEST_CASE("pretrained models: ids of every LongBench prompt equal those of the tokenizers package") {
  const auto folders = pretrained();
  if (folders.empty()) return;
  if (!fs::exists(real_input("longbench"))) {
    MESSAGE("skipped: no LongBench prompts");
    return;
  }
  CHECK(folders.size() >= 5);  // SmolLM2, Qwen2.5, Llama 3, and Mistral's first and third
  std::map<std::string, std::vector<json>> prompts;
  for (const fs::path& folder : folders) {
    CAPTURE(folder.filename());
    const auto tokenizer = open_tokenizer(folder);
    std::size_t compared = 0;
    for (const json& expected : lines(folder / "ids.jsonl")) {
      const std::string name = expected["file"];
      const auto number = expected["line"].get<std::size_t>();
      const auto& file = prompts.try_emplace(name, lines(real_input("longbench/" + name))).first->second;
      CAPTURE(name);
      CAPTURE(number);
      const auto prompt = file.at(number - 1)["prompt"].get<std::string>();
      const auto ids = expected["ids"].get<std::vector<TokenId>>();
      const auto actual = tokenizer->encode(prompt, true);
      CHECK((actual == ids));
      ++compared;
    }
    CHECK(compared >= 90);
  }
}

TEST_CASE("pretrained models: a prompt in the model's chat template has the ids of apply_chat_template") {
  std::size_t compared = 0;
  for (const fs::path& folder : pretrained()) {
    if (!fs::exists(folder / "chat.json")) continue;
    CAPTURE(folder.filename());
    const json expected = json::parse(read(folder / "chat.json"));
    const auto ids = expected["ids"].get<std::vector<TokenId>>();
    CHECK((open_chat_template(folder).encode(*open_tokenizer(folder), expected["prompt"].get<std::string>()) == ids));
    ++compared;
  }
  CHECK((compared >= 2 || pretrained().empty()));
}

}  // namespace
}  // namespace llama::test
