#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// The files that a model at `model`, with a tokenizer at `tokenizer` unless that is empty, is read from, by name:
/// weights, configuration and tokenizer. A path that is no folder is a file.
std::vector<std::filesystem::path> model_files(const std::filesystem::path& model,
                                               const std::filesystem::path& tokenizer = {});

/// A file that an option names.
struct NamedFile {
  std::string option;
  std::filesystem::path path;
};

/// The same for several files of one option.
std::vector<NamedFile> named_files(const std::string& option, const std::vector<std::filesystem::path>& paths);

/// Throws `file_error` if an output is the same file as another output or as an input, by whatever name. Outputs with
/// an empty path are none.
void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

/// Throws `file_error` if an output lies in the folder `data` of --data and has one of the extensions that are read
/// there, such as `.jsonl`: the next run would read it as data. Outputs with an empty path are none.
void check_outside(const std::vector<NamedFile>& outputs, const std::filesystem::path& data,
                   const std::vector<std::string_view>& extensions);

}  // namespace llama
