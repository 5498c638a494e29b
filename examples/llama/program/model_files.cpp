#include "examples/llama/program/model_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "examples/llama/files/file_error.hpp"
#include "examples/llama/program/input_files.hpp"

namespace llama {

namespace fs = std::filesystem;

namespace {

/// What is read beside a tokenizer.json.
constexpr std::array<std::string_view, 4> beside_tokenizer = {"tokenizer_config.json", "generation_config.json",
                                                              "chat_template.jinja", "special_tokens_map.json"};

bool is_read(const fs::path& path) {
  constexpr std::array<std::string_view, 4> names = {"config.json", "tokenizer.json", "tokenizer.model",
                                                     "tokenizer.bin"};
  const std::string name = path.filename().string();
  const auto holds = [&](const auto& all) { return std::ranges::find(all, name) != all.end(); };
  return holds(names) || holds(beside_tokenizer) || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json");
}

/// Whether both are one file, or will be once they are written.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error) && !error) return true;
  const fs::path whole = fs::weakly_canonical(fs::absolute(a, error), error);
  return !error && whole == fs::weakly_canonical(fs::absolute(b, error), error) && !error;
}

}  // namespace

std::vector<fs::path> model_files(const fs::path& model, const fs::path& tokenizer) {
  std::vector<fs::path> files;
  const auto add = [&](const fs::path& path) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) {
      files.push_back(path);
      return;
    }
    for (fs::path& entry : entries_of(path)) {
      if (is_read(entry)) files.push_back(std::move(entry));
    }
  };
  add(model);
  if (!tokenizer.empty()) {
    add(tokenizer);
    for (const std::string_view name : beside_tokenizer) {
      std::error_code ignored;
      const fs::path beside = tokenizer.parent_path() / name;
      if (!fs::is_directory(tokenizer, ignored) && fs::exists(beside, ignored)) files.push_back(beside);
    }
  }
  std::ranges::sort(files);
  return files;
}

std::vector<NamedFile> named_files(const std::string& option, const std::vector<fs::path>& paths) {
  std::vector<NamedFile> files;
  for (const fs::path& path : paths) files.push_back({option, path});
  return files;
}

void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& output = outputs[i];
    if (output.path.empty()) continue;
    const auto check = [&](const NamedFile& other) {
      if (other.path.empty() || !same_file(output.path, other.path)) return;
      throw file_error(fmt::format("{}: {} would write over what {} names: {}", output.path.string(), output.option,
                                   other.option, other.path.string()));
    };
    for (std::size_t j = i + 1; j < outputs.size(); ++j) check(outputs[j]);
    for (const NamedFile& input : inputs) check(input);
  }
}

void check_outside(const std::vector<NamedFile>& outputs, const fs::path& data,
                   const std::vector<std::string_view>& extensions) {
  for (const NamedFile& output : outputs) {
    std::error_code none;
    if (std::ranges::find(extensions, output.path.extension().string()) == extensions.end() ||
        !fs::equivalent(data, fs::absolute(output.path).parent_path(), none)) {
      continue;
    }
    throw file_error(fmt::format("{}: {} lies in the folder {} of --data, and the next run would read it as data",
                                 output.path.string(), output.option, data.string()));
  }
}

}  // namespace llama
