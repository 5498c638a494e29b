#include "examples/calibrate/prompts.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "examples/llama/base.hpp"
#include "examples/llama/checkpoint/json.hpp"
#include "examples/llama/files/input_file.hpp"
#include "examples/llama/program/input_files.hpp"

namespace llama {
namespace {

namespace fs = std::filesystem;

std::string category_of(const nlohmann::json& line) {
  for (const char* name : {"category", "dataset"}) {
    const auto found = line.find(name);
    if (found != line.end() && found->is_string()) return *found;
  }
  return "";
}

Prompt prompt_of(const nlohmann::json& line, const std::string& place) {
  const auto text = line.find("prompt");
  if (text == line.end() || !text->is_string()) fail(place, ": there is no text prompt");
  Prompt prompt{*text, category_of(line), {}};
  if (const auto most = line.find("max_tokens"); most != line.end()) {
    if (!most->is_number_integer() || *most < 1) {
      fail(place, ": max_tokens is ", shown(*most), ", not a whole number of at least 1");
    }
    prompt.max_tokens = most->get<Index>();
  }
  return prompt;
}

std::vector<Prompt> prompts_in(const fs::path& path) {
  std::vector<Prompt> prompts;
  const auto add = [&](Prompt prompt, const std::string& place) {
    if (prompt.text.empty()) fail(place, ": the prompt is empty");
    prompts.push_back(std::move(prompt));
  };
  if (path.extension() == ".jsonl") {
    for_each_line(path, [&](const std::string& line, Index number) {
      const std::string place = fmt::format("{}:{}", path.string(), number);
      add(prompt_of(parse_json(std::as_bytes(std::span(line)), place), place), place);
    });
  } else {
    add({read_input(path), "", {}}, path.string());
  }
  return prompts;
}

const std::vector<std::string_view> extensions = {".jsonl", ".txt"};  // of files of prompts in a folder

}  // namespace

std::vector<bool> held_out(const std::vector<Prompt>& prompts) {
  std::map<std::string, std::size_t> next;  // of each category
  std::vector<bool> result;
  for (const Prompt& prompt : prompts) {
    const std::size_t categories = next.size();
    result.push_back(next.emplace(prompt.category, categories).first->second++ % 2 == 1);
  }
  return result;
}

std::vector<Prompt> read_prompts(const fs::path& path) {
  std::vector<std::vector<Prompt>> files;
  for (const fs::path& file : files_at(path, extensions)) files.push_back(prompts_in(file));
  std::vector<Prompt> prompts;
  for (std::size_t i = 0;; ++i) {
    bool more = false;
    for (auto& file : files) {
      if (i >= file.size()) continue;
      prompts.push_back(std::move(file[i]));
      more = true;
    }
    if (!more) break;
  }
  if (prompts.empty()) fail(path.string(), " holds no prompt");
  return prompts;
}

void check_apart_from_prompts(const std::vector<NamedFile>& outputs, std::vector<NamedFile> inputs,
                              const fs::path& data) {
  for (NamedFile& file : named_files("--data", files_at(data, extensions))) inputs.push_back(std::move(file));
  check_apart(outputs, inputs);
  check_outside(outputs, data, extensions);
}

}  // namespace llama
