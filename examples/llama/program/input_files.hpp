#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace llama {

/// `path` itself, or, if it is a folder, the files in it with one of `extensions`, by name. Throws
/// `std::invalid_argument` if there is none.
std::vector<std::filesystem::path> files_at(const std::filesystem::path& path,
                                            std::initializer_list<std::string_view> extensions);

}  // namespace llama
