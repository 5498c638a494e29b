#include "examples/llama/program/fingerprint.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "examples/llama/files/input_file.hpp"

namespace llama {
namespace {

/// Adds the bytes from `offset` on, as many as `block` holds.
void add_block(Fingerprint& fingerprint, const Descriptor& file, const std::filesystem::path& path, off_t offset,
               std::string& block) {
  for (std::size_t done = 0; done < block.size();) {
    const ssize_t count =
        ::pread(file.get(), block.data() + done, block.size() - done, offset + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_last_call(path, "cannot be read");
    if (count == 0) throw file_error(path.string() + ": has become shorter while it was read");
    done += static_cast<std::size_t>(count);
  }
  fingerprint.add(block);
}

}  // namespace

void Fingerprint::add(std::string_view text) {
  mix(std::to_string(text.size()) + ':');  // keeps "ab", "c" apart from "a", "bc"
  mix(text);
}

void Fingerprint::mix(std::string_view bytes) {
  for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
}

std::uint64_t fingerprint_of(std::span<const std::filesystem::path> files) {
  Fingerprint fingerprint;
  for (const auto& path : files) {
    const Descriptor file = open_input(path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail_last_call(path, "cannot read the file's size");
    fingerprint.add(path.filename().string());
    fingerprint.add(std::to_string(status.st_size));
    constexpr off_t block_size = 1 << 16;
    constexpr off_t max_blocks = 1 << 10;  // 64 MiB
    const off_t blocks = std::min((status.st_size + block_size - 1) / block_size, max_blocks);
    std::string block(static_cast<std::size_t>(std::min<off_t>(block_size, status.st_size)), '\0');
    const off_t last = status.st_size - std::ssize(block);  // where the last block begins
    for (off_t i = 0; i < blocks; ++i) {
      // The first block begins where the file does and the last one ends where it ends; up to 64 MiB none is left out.
      add_block(fingerprint, file, path,
                blocks == 1 ? 0 : last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1), block);
    }
  }
  return fingerprint.value();
}

}  // namespace llama
