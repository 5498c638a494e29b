#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace llama {

/// What `folder` holds, in no order. Throws `file_error` if it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// `path` itself, or, if it is a folder, all that it holds with one of `extensions`, by name: who opens what is no file
/// says so. Throws `file_error` if the folder cannot be read, `std::invalid_argument` if it holds none.
std::vector<std::filesystem::path> files_at(const std::filesystem::path& path,
                                            const std::vector<std::string_view>& extensions);

}  // namespace llama
