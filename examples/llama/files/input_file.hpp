#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "examples/llama/files/descriptor.hpp"
#include "examples/llama/files/file_error.hpp"

/// \file
/// The one place where files are opened to be read.

namespace llama {

/// What may be opened: a pipe makes the program wait for who writes it.
enum class InputKind { regular_file, file_or_pipe };

/// Most bytes that `read_input` reads.
inline constexpr std::size_t max_input_bytes = std::size_t{1} << 30;

/// Opens `path`. Throws `file_error` if that fails, or it is a directory, a device or, unless `kind` allows it, a pipe.
Descriptor open_input(const std::filesystem::path& path, InputKind kind = InputKind::regular_file);

/// Whether `path` is there, or looking for it fails: opening it then says why.
bool may_be_there(const std::filesystem::path& path);

/// All of a file. Throws as `open_input`, and `file_error` if reading fails or there is more than `max_input_bytes`.
std::string read_input(const std::filesystem::path& path, InputKind kind = InputKind::regular_file);

/// Calls `on_line` with each line of a file that is not blank, and its number from 1 on. Throws as `read_input`, and
/// `std::bad_alloc` where memory runs out: no line is lost.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(const std::string& line, std::ptrdiff_t number)>& on_line);

/// What is left to be read of an open file. `path` is for messages. Throws `file_error` if that fails.
std::string read_rest(const Descriptor& file, const std::filesystem::path& path);

}  // namespace llama
