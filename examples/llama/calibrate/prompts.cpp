#include "examples/llama/calibrate/prompts.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/program/input_files.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::llama {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> prompts_in(const fs::path& path) {
  std::vector<std::string> prompts;
  const auto add = [&](std::string prompt, const std::string& place) {
    if (prompt.empty()) detail::fail(place, ": the prompt is empty");
    prompts.push_back(std::move(prompt));
  };
  if (path.extension() == ".jsonl") {
    std::ifstream file(path, std::ios::binary);
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string place = fmt::format("{}:{}", path.string(), number);
      const nlohmann::json line = parse_json(std::as_bytes(std::span(text)), place);
      const auto prompt = line.find("prompt");
      if (prompt == line.end() || !prompt->is_string()) detail::fail(place, ": there is no text prompt");
      add(*prompt, place);
    }
    if (!file.eof()) detail::fail("the file ", path.string(), " cannot be read");
  } else {
    add(read_text(path), path.string());
  }
  return prompts;
}

}  // namespace

std::vector<std::string> read_prompts(const fs::path& path) {
  std::vector<std::vector<std::string>> files;
  for (const fs::path& file : files_at(path, {".jsonl", ".txt"})) files.push_back(prompts_in(file));
  std::vector<std::string> prompts;
  for (std::size_t i = 0;; ++i) {
    bool more = false;
    for (auto& file : files) {
      if (i >= file.size()) continue;
      prompts.push_back(std::move(file[i]));
      more = true;
    }
    if (!more) break;
  }
  if (prompts.empty()) detail::fail(path.string(), " holds no prompt");
  return prompts;
}

}  // namespace lazyllm::llama
