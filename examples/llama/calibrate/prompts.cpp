#include "examples/llama/calibrate/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "examples/llama/checkpoint/json.hpp"
#include "lazyllm/error.hpp"

namespace lazyllm::llama {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> prompt_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const fs::path extension = entry.path().extension();
    if (entry.is_regular_file() && (extension == ".jsonl" || extension == ".txt")) files.push_back(entry.path());
  }
  if (files.empty()) lazyllm::detail::fail("the folder ", path.string(), " holds no *.jsonl or *.txt");
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> prompts;
  const auto add = [&](std::string prompt, const std::string& place) {
    if (prompt.empty()) lazyllm::detail::fail(place, ": the prompt is empty");
    prompts.push_back(std::move(prompt));
  };
  if (path.extension() == ".jsonl") {
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string place = fmt::format("{}:{}", path.string(), number);
      const nlohmann::json line = parse_json(std::as_bytes(std::span(text)), place);
      const auto prompt = line.find("prompt");
      if (prompt == line.end() || !prompt->is_string()) lazyllm::detail::fail(place, ": there is no text prompt");
      add(*prompt, place);
    }
    if (!file.eof()) lazyllm::detail::fail("the file ", path.string(), " cannot be read");
  } else {
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file) lazyllm::detail::fail("the file ", path.string(), " cannot be read");
    add(std::move(text), path.string());
  }
  return prompts;
}

}  // namespace

std::vector<std::string> read_prompts(const fs::path& path) {
  std::vector<std::vector<std::string>> files;
  for (const fs::path& file : prompt_files(path)) files.push_back(read_file(file));
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
  if (prompts.empty()) lazyllm::detail::fail(path.string(), " holds no prompt");
  return prompts;
}

}  // namespace lazyllm::llama
