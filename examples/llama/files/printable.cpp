#include "examples/llama/files/printable.hpp"

#include <fmt/format.h>

namespace llama {
namespace {

/// Bytes of the UTF-8 character that `text` starts with; 0 if it starts with none.
std::size_t character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t size = byte(0) < 0x80                      ? 1
                           : byte(0) >= 0xc2 && byte(0) < 0xe0 ? 2
                           : byte(0) < 0xc2                    ? 0
                           : byte(0) < 0xf0                    ? 3
                           : byte(0) < 0xf5                    ? 4
                                                               : 0;
  if (size == 0 || size > text.size()) return 0;
  // No overlong form (of a control character, say), no surrogate, nothing above U+10FFFF.
  if (size == 3 && ((byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) >= 0xa0))) return 0;
  if (size == 4 && ((byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90))) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return size;
}

}  // namespace

std::string printable(std::string_view text, Controls kept) {
  std::string result;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t size = character_at(text);
    const bool ascii_control = first < 0x20 || first == 0x7f;
    const bool stays = kept == Controls::lines && (first == '\n' || first == '\t');
    const bool later_control = size == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (size == 0 || (ascii_control && !stays)) {
      result += fmt::format("\\x{:02x}", first);
      text.remove_prefix(1);
    } else if (later_control) {
      result += fmt::format("\\x{:02x}\\x{:02x}", first, static_cast<unsigned char>(text[1]));
      text.remove_prefix(2);
    } else {
      result += text.substr(0, size);
      text.remove_prefix(size);
    }
  }
  return result;
}

}  // namespace llama
