#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lazyllm::llama {

/// The prompts of a file, or of all *.jsonl and *.txt in a folder, one of each file in turn. A *.jsonl has a JSON
/// object on each line, with a text `prompt`; any other file is one prompt. Throws `lazyllm::invalid_argument` or
/// `checkpoint_error`, naming file and line, for what cannot be read and for empty prompts.
std::vector<std::string> read_prompts(const std::filesystem::path& path);

}  // namespace lazyllm::llama
