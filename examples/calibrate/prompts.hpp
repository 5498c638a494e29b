#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "examples/llama/base.hpp"
#include "examples/llama/program/model_files.hpp"

namespace llama {

struct Prompt {
  std::string text;
  std::string category = {};        ///< kind of task; empty where the file does not say
  std::optional<Index> max_tokens;  ///< of the answer, where the file says it
};

/// Which prompts are held out of a search: of each category every second one, of every second category the first.
std::vector<bool> held_out(const std::vector<Prompt>& prompts);

/// The prompts of a file, or of all *.jsonl and *.txt in a folder, one of each file in turn. A *.jsonl has a JSON
/// object on each line, with a text `prompt` and, if it is there, a text `category` or `dataset` and a number
/// `max_tokens`; any other file is one prompt. Throws `std::invalid_argument` or
/// `file_error`, naming file and line, for what cannot be read and for empty prompts.
std::vector<Prompt> read_prompts(const std::filesystem::path& path);

/// Throws `file_error` if an output would be written over another one, over an input or over a file that `read_prompts`
/// reads at `data`, the path of --data, or if the next run would read it there. Throws as `read_prompts`, too, where
/// that finds no files.
void check_apart_from_prompts(const std::vector<NamedFile>& outputs, std::vector<NamedFile> inputs,
                              const std::filesystem::path& data);

}  // namespace llama
