#include <unicode/utf8.h>

#include <utility>

#include "examples/llama/tokenizer/text.hpp"
#include "examples/llama/tokenizer/tokenizer.hpp"

namespace llama {
namespace {

std::string valid_utf8(std::string_view bytes) { return utf8(unicode(bytes)); }

}  // namespace

std::string TextStream::push(std::string_view bytes) {
  pending_ += bytes;
  auto complete = static_cast<std::int32_t>(pending_.size());
  U8_TRUNCATE_IF_INCOMPLETE(pending_.data(), 0, complete);
  std::string text = valid_utf8(std::string_view(pending_).substr(0, static_cast<std::size_t>(complete)));
  pending_.erase(0, static_cast<std::size_t>(complete));
  return text;
}

std::string TextStream::flush() { return valid_utf8(std::exchange(pending_, {})); }

}  // namespace llama
